"""Capture into an S3 server and into Delta tables, and what reads them: replay, insight, and other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from busbar.jobs import archive
from busbar.jobs.archive_location import ArchiveLocation
from busbar.jobs.capture import Summary, capture
from busbar.jobs.insight import insight
from busbar.jobs.replay import replay
from busbar.spark.errors import OptionError
from busbar.spark.secrets import Secret
from harness.object_store import ObjectStore
from harness.waiting import eventually
from tests.spark.conftest import PATIENCE, Namespace, explained, numbered

pytestmark = pytest.mark.timeout(600)  # a bound for what hangs: a machine that is busy takes minutes


def captured(
    namespace: Namespace, entities: Sequence[str], output: str, table_format: str, events: str | None = None
) -> Summary:
    """All that is available now."""
    return capture(
        entities,
        output,
        connection=Secret(file=str(namespace.secret)),
        events=events,
        table_format=table_format,
        available_now=True,
        session=namespace.spark,
        options={"waitForBroker": "20s", "maxMessagesPerTrigger": "60"},
    )


def bodies(namespace: Namespace, url: str) -> list[bytes]:
    frame = archive.read(namespace.spark, url)
    return sorted(bytes(row.body) for row in frame.select("body").collect())


def check_selection(namespace: Namespace, url: str, entity: str) -> None:
    """A query of its own reads the columns that it names, and leaves out rows by filters in its plan."""
    narrow = archive.read(namespace.spark, url, columns=["entity", "message_id", "sequence_number"])
    few = narrow.where("message_id = 'body 7'")
    assert [(row.entity, row.message_id) for row in few.collect()] == [(entity, "body 7")]
    plan = explained(few)
    assert "EqualTo(message_id,body 7)" in next(
        line for line in plan.splitlines() if line.startswith("PushedFilters")
    )
    assert "raw" not in plan and "annotations" not in plan
    with pytest.raises(OptionError, match="names 'bodies'"):
        archive.read(namespace.spark, url, columns=["bodies"])


@pytest.mark.req("D3")
@pytest.mark.req("D4")
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_an_archive_in_a_store_goes_on_and_is_replayed(
    namespace: Namespace, queue: str, wide: str, object_store: ObjectStore, table_format: str
) -> None:
    url = f"{object_store.bucket()}/archives/all"
    namespace.send(wide, numbered(0, 100), keyed=True)
    assert captured(namespace, [wide], url, table_format).rows == {wide: 100}
    # The same call continues. Receivers have taken everything meanwhile; nothing of it is on this machine.
    namespace.send(wide, numbered(100, 150), keyed=True)
    namespace.receive(wide, 150)
    assert captured(namespace, [wide], url, table_format).rows == {wide: 50}
    assert captured(namespace, [wide], url, table_format).rows == {wide: 0}
    assert bodies(namespace, url) == sorted(numbered(0, 150))
    assert archive.dataset(url).count_rows() == 150
    check_selection(namespace, url, wide)
    # All was committed, so the broker keeps nothing any more.
    eventually(lambda: namespace.kept(wide) == 0, seconds=PATIENCE)
    result = replay(url, queue, connection=Secret(file=str(namespace.secret)), session=namespace.spark)
    assert (result.found, result.sent) == (150, 150)
    replayed = sorted(bytes(row.body) for row in namespace.read(queue).select("body").collect())
    assert replayed == sorted(numbered(0, 150))


@pytest.mark.req("D6")
def test_insight_reads_messages_and_events_of_a_store(
    namespace: Namespace, queue: str, object_store: ObjectStore, tmp_path: Path
) -> None:
    url, events = f"{object_store.bucket()}/messages", str(tmp_path / "events")
    captured(namespace, [queue], url, "delta", events)
    namespace.send(queue, numbered(0, 12))
    namespace.receive(queue, 12)
    assert captured(namespace, [queue], url, "delta", events).rows == {queue: 12, f"{queue} (events)": 12}
    report = insight(archives=[url, events], session=namespace.spark)
    assert [each.figures.entity for each in report.entities] == [queue]
    # Other programs read the tables as what they are.
    options = ArchiveLocation.parse(url).delta_options()
    assert polars.read_delta(url, storage_options=options).height == 12
    outcomes = DeltaTable(events).to_pyarrow_dataset().to_table(columns=["outcome"])
    assert set(outcomes.column("outcome").to_pylist()) == {"completed"}
    found = duckdb.read_parquet(archive.files(events), hive_partitioning=True)
    assert len(found.fetchall()) == 12
