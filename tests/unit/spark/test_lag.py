"""The lag of a stream: what a source reports is what a program reads, for each entity and for all."""

from __future__ import annotations

import json
from types import SimpleNamespace

from busbar.spark.lag import StreamLag, source_progress, sum_of, with_lag
from busbar.spark.offsets import Offset, document_of, parse_all
from busbar.spark.options import SourceOptions

ORDERS = StreamLag(10, 4.5, 3, 20, 2_000, 100.0, 5_000)
BILLS = StreamLag(5, 9.0, 0, 1, 100, None, 4_000)


def offset(entity: str, sub_queue: str = "") -> Offset:
    return Offset(entity, sub_queue, "messages", "17", "t", "me", {0: 9})


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({"connectionStringEnv": "PLACE", **given}, streaming=True)


def progress(*latest: str | None) -> SimpleNamespace:
    """The progress of a query, as far as it is read."""
    return SimpleNamespace(
        sources=[
            SimpleNamespace(latestOffset=each, inputRowsPerSecond=2.0, processedRowsPerSecond=3.0)
            for each in latest
        ]
    )


def test_a_lag_comes_back_as_it_was() -> None:
    for lag in (ORDERS, BILLS):
        assert StreamLag.parse(json.loads(json.dumps(lag.to_json()))) == lag
    assert "retentionLeftSeconds" not in BILLS.to_json()


def test_the_lag_of_all_has_sums_and_the_worst() -> None:
    assert sum_of([ORDERS, BILLS]) == StreamLag(15, 9.0, 3, 21, 2_100, 100.0, 4_000)
    assert sum_of([]) == StreamLag(0, 0.0, 0, 0, 0, None, None)


def test_progress_of_one_entity_and_of_several() -> None:
    one = with_lag(document_of([offset("orders")], options(entity="orders")), {"orders": ORDERS})
    entities = [offset("orders"), offset("bills", "deadletter")]
    several = with_lag(
        document_of(entities, options(entities="orders,bills/$DeadLetterQueue")),
        {"orders": ORDERS, "bills/$deadletterqueue": BILLS},
    )
    assert several["lag"]["behindMessages"] == 15
    assert sorted(each.entity for each in parse_all(several)) == ["bills", "orders"]
    found = source_progress(progress(json.dumps(one), json.dumps(several)))
    assert [(each.entity, each.tap, each.lag) for each in found] == [
        ("orders", "t", ORDERS),
        ("bills/$deadletterqueue", "t", BILLS),
        ("orders", "t", ORDERS),
    ]
    assert {(each.input_rate, each.processed_rate) for each in found} == {(2.0, 3.0)}


def test_other_sources_have_no_lag() -> None:
    initial = {"busbar": 2, "initial": True}
    texts = (None, "7", '{"topic": {"0": 1}}', "{", json.dumps(initial), json.dumps(offset("a").to_json()))
    assert source_progress(progress(*texts)) == []
    assert source_progress(None) == []
