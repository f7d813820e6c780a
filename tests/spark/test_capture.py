"""busbar capture: every message once in an archive that anything reads, whatever receivers do, and however often it is
stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from busbar.cli.main import run as busbar
from busbar.jobs import archive
from busbar.jobs.archive_identity import CHECKPOINTS
from busbar.jobs.capture import CaptureFailed, Summary, capture
from busbar.jobs.manifest import ArchiveError
from busbar.jobs.progress import BatchProgress
from busbar.spark.errors import SourceError
from busbar.spark.secrets import Secret
from harness.lateness import Lateness
from harness.waiting import eventually
from tests.spark.campaign import members
from tests.spark.conftest import PATIENCE, SOURCES, JobMaster, Namespace, numbered, received

pytestmark = pytest.mark.timeout(600)  # a bound for what hangs: a machine that is busy takes minutes
ENDS_WITHIN = 2.0


def captured(
    namespace: Namespace, entities: Sequence[str], output: Path, *, events: Path | None = None, **options: str
) -> Summary:
    """All that is available now."""
    return capture(
        entities,
        output,
        connection=Secret(file=str(namespace.secret)),
        events=events,
        available_now=True,
        session=namespace.spark,
        options={"waitForBroker": "20s", **options},
    )


def bodies(spark: SparkSession, directory: Path) -> list[bytes]:
    return sorted(bytes(row.body) for row in archive.read(spark, directory).select("body").collect())


@pytest.mark.req("D3")
def test_every_reader_sees_every_message_once(
    namespace: Namespace, queue: str, wide: str, tmp_path: Path
) -> None:
    spark, output = namespace.spark, tmp_path / "archive"
    namespace.send(wide, numbered(0, 300), keyed=True)
    summary = captured(namespace, [wide], output, maxMessagesPerTrigger="200")
    assert summary.rows == {wide: 300}
    # The same call goes on, another entity joins, and receivers have taken everything meanwhile.
    namespace.send(wide, numbered(300, 500), keyed=True)
    namespace.receive(wide, 500)
    namespace.send(queue, numbered(500, 600))
    steps: list[BatchProgress] = []
    summary = capture(
        [wide, queue],
        output,
        connection=namespace.server.connection_string,
        available_now=True,
        session=spark,
        on_progress=steps.append,
    )
    assert summary.rows == {wide: 200, queue: 100}
    assert {(step.name, step.total, step.lag) for step in steps} >= {(wide, 200, 0), (queue, 100, 0)}
    sent = sorted(numbered(0, 600))
    assert bodies(spark, output) == sent
    assert sorted(archive.dataset(output).to_table().column("body").to_pylist()) == sent
    # Readers that know nothing of the manifest.
    plain = spark.read.parquet(str(output))
    assert sorted(bytes(row.body) for row in plain.collect()) == sent
    by_entity = {row.entity: row["count"] for row in plain.groupBy("entity").count().collect()}
    assert by_entity == {wide: 500, queue: 100}
    arrow = ds.dataset(str(output), format="parquet", partitioning="hive").to_table()
    assert sorted(arrow.column("body").to_pylist()) == sent
    pattern = f"{output}/**/*.parquet"
    rows = duckdb.read_parquet(pattern, hive_partitioning=True).select("body", "date").fetchall()
    assert sorted(row[0] for row in rows) == sent
    assert {str(row[1]) for row in rows} <= {str(day) for day in _days_around_now()}
    assert sorted(polars.scan_parquet(pattern).collect()["body"].to_list()) == sent
    # All was committed, so nothing is kept any more.
    eventually(lambda: namespace.kept(wide) + namespace.kept(queue) == 0, seconds=PATIENCE)


def _days_around_now() -> list[object]:
    now = datetime.now(UTC).timestamp()
    return [datetime.fromtimestamp(now - offset, UTC).date() for offset in (0, 3600)]


@pytest.mark.req("D3")
def test_a_checkpoint_that_was_lost_costs_nothing(namespace: Namespace, queue: str, tmp_path: Path) -> None:
    spark, output = namespace.spark, tmp_path / "archive"
    namespace.send(queue, numbered(0, 20))
    captured(namespace, [queue], output)
    (checkpoint,) = (output / CHECKPOINTS).iterdir()
    # One that was put back to an earlier state asks for what the tap has passed.
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    with pytest.raises(CaptureFailed, match="BUSBAR_DATA_LOSS"):
        captured(namespace, [queue], output)
    shutil.rmtree(checkpoint)
    namespace.send(queue, numbered(20, 30))
    assert captured(namespace, [queue], output).rows == {queue: 10}
    assert bodies(spark, output) == sorted(numbered(0, 30))


@pytest.mark.req("D3")
def test_events_are_an_archive_of_their_own(namespace: Namespace, queue: str, tmp_path: Path) -> None:
    output, events = tmp_path / "messages", tmp_path / "events"
    captured(namespace, [queue], output, events=events)
    namespace.send(queue, numbered(0, 12))
    namespace.receive(queue, 12)
    summary = captured(namespace, [queue], output, events=events)
    assert summary.rows == {queue: 12, f"{queue} (events)": 12}
    rows = archive.read(namespace.spark, events).collect()
    assert {(row.entity, row.outcome) for row in rows} == {(queue, "completed")}
    assert sorted(row.sequence_number for row in rows) == list(range(1, 13))
    assert namespace.spark.read.parquet(str(events)).count() == 12
    # Of messages nobody wants more than once, nothing is kept.
    eventually(lambda: namespace.kept(queue) == 0, seconds=PATIENCE)


def test_dead_letters_are_captured_under_their_own_name(
    namespace: Namespace, queue: str, tmp_path: Path
) -> None:
    namespace.send(queue, numbered(0, 5))
    with namespace.factory.receiver(queue) as receiver:
        receiver.dead_letter(received(receiver, 2), "broken")
    captured(namespace, [f"{queue.upper()}/$DeadLetterQueue", queue], tmp_path / "archive")
    rows = archive.read(namespace.spark, tmp_path / "archive").collect()
    reasons = {row.dead_letter_reason for row in rows if row.entity == f"{queue}/$deadletterqueue"}
    assert reasons == {"broken"}
    assert sum(row.entity == queue for row in rows) == 5


def test_mistakes_are_said_before_spark_has_work(namespace: Namespace, queue: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"\[BUSBAR_NOT_FOUND\].*'nowhere'"):
        captured(namespace, ["nowhere"], tmp_path / "archive")
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            capture(
                [queue],
                tmp_path / "archive",
                connection=Secret(file=str(namespace.secret)),
                interval="200 milliseconds",
                session=namespace.spark,
                stop=stop,
            )
        except BaseException as error:
            failures.append(error)

    running = threading.Thread(target=run)
    running.start()
    try:
        namespace.send(queue, numbered(0, 7))
        eventually(lambda: archive_has(tmp_path / "archive", 7) or bool(failures), seconds=PATIENCE)
        with pytest.raises(ArchiveError, match=f"is being written by process {os.getpid()}"):
            captured(namespace, [queue], tmp_path / "archive")
        with pytest.raises(ArchiveError, match="events need a directory of their own"):
            stop.set()
            running.join(PATIENCE)
            captured(namespace, [queue], tmp_path / "other", events=tmp_path / "archive")
    finally:
        stop.set()
        running.join(PATIENCE)
    assert not failures


def archive_has(directory: Path, count: int) -> bool:
    try:
        return int(archive.dataset(directory).count_rows()) == count
    except ArchiveError:
        return False


# ---- as a command ------------------------------------------------------------------------------------


@contextmanager
def running_command(namespace: Namespace, on: JobMaster, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "busbar", "capture", *arguments, "--master", on.address],
        env={
            **os.environ,
            **on.variables(namespace.secret.parent),
            "PYTHONPATH": str(SOURCES),
            "BUSBAR_CONNECTION_STRING": namespace.server.connection_string,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()  # and Spark with it, which ends when nobody listens to it
        process.wait()


def command_lines(session: int) -> str:
    """Of all processes of a session."""
    found = ""
    for pid in members(session):
        try:
            found += Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.req("D3")
def test_the_command_goes_on_and_ends_well(
    namespace: Namespace,
    queue: str,
    tmp_path: Path,
    job_master: JobMaster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "archive"
    namespace.send(queue, numbered(0, 50))
    # The first one finds the session of the tests, whose workers are older than the variable of its connection string.
    assert namespace.spark.sparkContext is not None
    monkeypatch.setenv("BUSBAR_CONNECTION_STRING", namespace.server.connection_string)
    first = ["capture", queue, "--output", str(output), "--master", "spark://session-of-the-tests"]
    assert busbar([*first, "--available-now"]) == 0
    said, errors = capsys.readouterr()
    assert said == f"{queue}: 50 captured\n"
    assert f"{queue}: batch 0, 50 in" in errors
    namespace.send(queue, numbered(50, 80))
    with running_command(
        namespace, job_master, queue, "--output", str(output), "--interval", "200ms"
    ) as second:
        eventually(lambda: archive_has(output, 80) or second.poll() is not None, seconds=PATIENCE)
        arguments = command_lines(second.pid)
        namespace.send(queue, numbered(80, 90))
        with Lateness(second.pid) as lateness:
            asked = time.monotonic()
            second.send_signal(signal.SIGTERM)
            second.wait(PATIENCE)
            took = time.monotonic() - asked
        said, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors
    assert took < lateness.allowed(ENDS_WITHIN), errors
    assert errors.splitlines()[-1] == (
        "busbar: capture stopped by SIGTERM; the same command continues there."
    )
    assert " WARN " not in errors and "Exception" not in errors, "Spark's log is in a file"
    # The batch that was under way is in the archive as a whole, or not at all. The tap is not ahead of it.
    found = bodies(namespace.spark, output)
    assert found in (sorted(numbered(0, 80)), sorted(numbered(0, 90)))
    (tap,) = namespace.taps(queue).list()
    assert tap.fragments[0].position <= len(found)
    captured(namespace, [queue], output)
    assert bodies(namespace.spark, output) == sorted(numbered(0, 90))
    key = namespace.server.key
    assert "org.apache.spark" in arguments and key not in arguments
    assert key not in errors + said
    for file in output.rglob("*"):
        if file.is_file():
            assert key.encode() not in file.read_bytes(), file
