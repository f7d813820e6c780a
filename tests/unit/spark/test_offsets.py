"""Offsets: what a checkpoint keeps, and whose it is."""

from __future__ import annotations

import json

import pytest

from busbar.spark.errors import SourceError
from busbar.spark.offsets import Offset, checked, initial, is_initial, parse
from busbar.spark.options import SourceOptions

OFFSET = Offset("orders", "", "messages", "17", "capture", "me", {10: 5, 2: 7, 0: 1})


def options(**more: str) -> SourceOptions:
    return SourceOptions.parse(
        {"entity": "orders", "connectionString": "Endpoint=sb://x;SharedAccessKey=hidden", **more},
        streaming=True,
    )


def test_an_offset_comes_back_as_it_was() -> None:
    text = json.dumps(OFFSET.to_json())
    assert parse(json.loads(text)) == OFFSET
    assert list(OFFSET.to_json()["positions"]) == ["0", "2", "10"]
    assert checked(json.loads(text), options(tap="capture", owner="me")) == OFFSET


def test_a_beginning_is_kept_where_there_is_one() -> None:
    first = Offset("orders", "", "messages", "17", "capture", "me", {0: 9}, {0: 4})
    assert parse(first.to_json()).begins == {0: 4}


def test_an_initial_offset_is_no_other_and_holds_no_secret() -> None:
    given = initial(options())
    assert is_initial(given) and not is_initial(OFFSET.to_json())
    assert "hidden" not in json.dumps(given)


@pytest.mark.parametrize(
    ("changed", "condition"),
    [
        ({"busbar": 2}, "BUSBAR_CHECKPOINT_NEWER"),
        ({"busbar": None}, "BUSBAR_CHECKPOINT"),
        ({"positions": {"x": 1}}, "BUSBAR_CHECKPOINT"),
        ({"positions": None}, "BUSBAR_CHECKPOINT"),
        ({"entity": "others"}, "BUSBAR_CHECKPOINT_MISMATCH"),
        ({"subQueue": "deadletter"}, "BUSBAR_CHECKPOINT_MISMATCH"),
        ({"stream": "events"}, "BUSBAR_CHECKPOINT_MISMATCH"),
        ({"tap": "another"}, "BUSBAR_CHECKPOINT_MISMATCH"),
        ({"owner": "somebody"}, "BUSBAR_CHECKPOINT_MISMATCH"),
    ],
)
def test_anothers_checkpoint_is_refused(changed: dict[str, object], condition: str) -> None:
    with pytest.raises(SourceError) as caught:
        checked(OFFSET.to_json() | changed, options(tap="capture", owner="me"))
    assert caught.value.condition == condition
    assert str(caught.value).startswith(f"[{condition}] ")
