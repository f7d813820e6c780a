"""Links of writers that may repeat themselves: their properties, and where their messages go."""

from __future__ import annotations

import pytest

from busbar.amqp.types import Symbol, ULong
from busbar.gateway.amqp.writer_properties import writer_of_link
from busbar.model.api import EntityView
from busbar.model.effects import Sent
from busbar.model.entities import QueueDescription
from busbar.model.errors import ArgumentError
from busbar.model.message import Draft
from busbar.model.partitioning import index_of_key
from busbar.partitions.routing import Router
from busbar.partitions.sends import MixedBatch, WriterBatch
from tests.unit.partitions.test_sends import Asking, Told

ENTITY = EntityView("q", QueueDescription(enable_partitioning=True), tuple(range(100, 116)))


def draft(message_id: str, partition: str | None = None) -> Draft:
    return Draft(b"content", message_id, None, partition, 0, 0)


def test_a_link_names_its_writer_or_none() -> None:
    assert writer_of_link({}) is None and writer_of_link({Symbol("other"): 1}) is None
    given: dict[object, object] = {Symbol("busbar:writer"): "w", Symbol("busbar:batch"): ULong(4)}
    assert writer_of_link(given) == WriterBatch("w", 4)


@pytest.mark.parametrize(
    "given", [{"busbar:writer": "w"}, {"busbar:batch": 1}, {"busbar:writer": "w", "busbar:batch": "1"}]
)
def test_half_a_writer_is_refused(given: dict[object, object]) -> None:
    with pytest.raises(ArgumentError):
        writer_of_link(given)


def test_a_message_goes_where_its_first_copy_went() -> None:
    for first in range(2):  # each link begins its round robin elsewhere
        router = Router(ENTITY, first, repeats=True)
        assert [router.index(draft(f"m{n}")) for n in range(50)] == [
            index_of_key(f"m{n}", 16) for n in range(50)
        ]
        assert router.index(draft("m1", "key")) == index_of_key("key", 16)
        assert not router.keyless([draft("m1")])


def test_every_part_of_a_batch_is_the_writers() -> None:
    peer, link = Asking(), Told()
    drafts = [draft(f"m{n}") for n in range(40)]
    MixedBatch(peer, link, Router(ENTITY, 0, True), 5, drafts, WriterBatch("w", 9)).send()  # type: ignore[arg-type]
    assert sum(len(send.drafts) for send in peer.sends) == 40
    for send in peer.sends:
        assert (send.writer, send.batch, send.atomic) == ("w", 9, False)
        assert {100 + index_of_key(one.message_id, 16) for one in send.drafts} == {send.fragment}
        peer.answer(send, Sent(1, send.request, [0] * len(send.drafts), [], list(range(len(send.drafts)))))
    assert link.accepted == [5], "what was dropped as known is sent, to its sender"
