"""Writers as links name them."""

from __future__ import annotations

import pytest

from busbar.gateway.amqp.writer_properties import BATCH, WRITER, writer_of, writer_of_link
from busbar.model.commands import MAX_BATCH
from busbar.model.errors import ArgumentError


def test_a_link_may_name_a_writer() -> None:
    assert writer_of_link({}) is None
    named = writer_of_link({WRITER: "job", BATCH: 7})
    assert named is not None and (named.name, named.batch) == ("job", 7)


@pytest.mark.parametrize("name", ["", "x" * 257, 7, None, "\0move/3"])
def test_what_is_no_name_is_refused(name: object) -> None:
    """A name that begins with NUL would be a mark of messages that were moved."""
    with pytest.raises(ArgumentError, match="writer"):
        writer_of(name, 1)


@pytest.mark.parametrize("batch", [-1, MAX_BATCH + 1, True, "1", None])
def test_what_is_no_batch_is_refused(batch: object) -> None:
    with pytest.raises(ArgumentError, match="batch"):
        writer_of("job", batch)
