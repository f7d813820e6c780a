"""Offsets: what a checkpoint keeps, and whose it is."""

from __future__ import annotations

import json

import pytest

from busbar.spark.errors import SourceError
from busbar.spark.offsets import Offset, checked_all, document_of, initial, is_initial, parse
from busbar.spark.options import SourceOptions

OFFSET = Offset("orders", "", "messages", "17", "capture", "me", {10: 5, 2: 7, 0: 1})


SECRET = {"connectionString": "Endpoint=sb://x;SharedAccessKey=hidden"}


def options(**more: str) -> SourceOptions:
    return SourceOptions.parse({"entity": "orders", **SECRET, **more}, streaming=True)


def checked(document: dict[str, object], given: SourceOptions) -> Offset:
    """The offset of a query of one entity."""
    (offset,) = checked_all(document, given).values()
    return offset


def several(**more: str) -> SourceOptions:
    return SourceOptions.parse(SECRET | more, streaming=True)


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
        ({"busbar": 3}, "BUSBAR_CHECKPOINT_NEWER"),
        ({"busbar": 2}, "BUSBAR_CHECKPOINT"),
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


DEAD = Offset("Shop/Bills", "deadletter", "messages", "18", "capture", "me", {0: 4}, {0: 2})


def test_several_entities_come_back_each_as_it_was() -> None:
    given = several(entities="orders,shop/bills/$DeadLetterQueue")
    document = json.loads(json.dumps(document_of([DEAD, OFFSET], given)))
    assert document["busbar"] == 2
    assert list(document["entities"]) == ["orders", "Shop/Bills/$deadletterqueue"]
    assert checked_all(document, given) == {"orders": OFFSET, "shop/bills/$deadletterqueue": DEAD}
    assert is_initial(initial(given))


def test_one_entity_keeps_the_format_of_earlier_versions() -> None:
    assert document_of([OFFSET], options()) == OFFSET.to_json()
    assert OFFSET.to_json()["busbar"] == 1


def test_a_checkpoint_of_one_entity_can_go_on_with_several() -> None:
    assert checked_all(OFFSET.to_json(), several(entities="bills,ORDERS")) == {"orders": OFFSET}
    assert checked_all(OFFSET.to_json(), several(entityPattern="ord*")) == {"orders": OFFSET}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (several(entities="bills"), "'orders', but the option 'entities' says 'bills'"),
        (several(entityPattern="shop/*"), "'orders', but the option 'entityPattern' says 'shop/*'"),
        (
            several(entityPattern="**"),
            "'Shop/Bills/$deadletterqueue', but the option 'entityPattern' says '**'",
        ),
        (
            options(),
            "entities 'orders', 'Shop/Bills/$deadletterqueue', but the option 'entity' says 'orders'",
        ),
    ],
)
def test_entities_of_another_query_are_refused(given: SourceOptions, said: str) -> None:
    document = document_of([OFFSET, DEAD], several(entityPattern="**"))
    with pytest.raises(SourceError) as caught:
        checked_all(document, given)
    assert caught.value.condition == "BUSBAR_CHECKPOINT_MISMATCH"
    assert said in str(caught.value)
