"""`busbar capture` under `kill -9`: the archive is what was sent, once, whatever died when.

The whole process tree of Spark is killed: at named points (fault_points.py), in the long campaign at each of them, and at
random: in its work, or somewhere on the way there. The broker is killed in between. Senders and ordinary receivers are at
the queues all the time, hours are compacted as soon as they have two files, and a witness reads the archive by its manifest
throughout.

Archives in an S3 server and Delta tables have long campaigns only. tests/unit/jobs/test_archive_kills.py kills their writers
at every point, without Spark.
"""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession

from busbar.jobs import archive
from busbar.jobs.archive import MESSAGES
from busbar.jobs.archive_identity import DELTA, format_of
from busbar.jobs.archive_location import ArchiveLocation
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.capture import capture
from busbar.jobs.delta_archive import delta_table
from busbar.jobs.fault_points import VARIABLE
from busbar.jobs.manifest import load
from busbar.spark.secrets import Secret
from harness.object_store import ObjectStore
from harness.serving import Busbar, config_text
from harness.waiting import eventually
from tests.spark.campaign import DEEP, PATIENCE, Program, Traffic, Witness, content, seed_of
from tests.spark.conftest import JobMaster

QUEUES = {"orders": {"EnablePartitioning": True}} | ({"invoices": {}} if DEEP else {})
POINTS = ("after-offset-log", "mid-write", "before-commit", "before-advance", "inside-compaction")
ROUNDS = int(os.environ.get("BUSBAR_ROUNDS") or (120 if DEEP else 4))
STORE_ROUNDS = int(os.environ.get("BUSBAR_ROUNDS") or 40)
STORE_POINTS = ("mid-write", "before-commit", "before-place", "inside-compaction", "before-replace")
EAGER = str(Path(__file__).with_name("eager_capture.py"))


@dataclass(frozen=True)
class Round:
    """One run of the capture, and how it is ended."""

    point: str | None
    """A named point; None: at random."""
    passes: int
    """How often the point is passed before."""
    broker: bool
    """Whether the broker is killed as well."""
    early: bool = False
    """At random: at any time from its start on, and not only once it has worked."""


def plan(chance: random.Random) -> list[Round]:
    """Each point about as often as the others; half of the rounds are random, and at least one. Few rounds have some of the
    points, by the seed."""
    points = list(POINTS)
    chance.shuffle(points)
    named = [points[number % len(points)] for number in range(max(ROUNDS // 2, min(len(points), ROUNDS - 1)))]
    rounds = [Round(point, chance.randrange(3), chance.random() < 0.25) for point in named]
    count = ROUNDS - len(rounds)
    others = [Round(None, 0, chance.random() < 0.5, early=number % 2 == 0) for number in range(count)]
    mixed = rounds + others
    chance.shuffle(mixed)
    first = next(number for number, each in enumerate(mixed) if not each.early)
    mixed.insert(0, mixed.pop(first))  # what is killed early has to have been begun
    if not any(each.broker for each in mixed):
        mixed[-1] = replace(mixed[-1], broker=True)
    return mixed


@pytest.mark.req("D3")
@pytest.mark.timeout(4 * 3600 if DEEP else 1800)
def test_the_archive_is_what_was_sent(spark: SparkSession, job_master: JobMaster, tmp_path: Path) -> None:
    seed = seed_of("capture")
    chance = random.Random(seed)
    directory = tmp_path / "archive"
    server = Busbar(tmp_path / "data", config_text(QUEUES)).start()
    traffic = Traffic(server.connection_string, tuple(QUEUES), seed)
    witness = Witness(directory).start()
    try:
        traffic.start_senders()
        lives: list[float] = []
        for number, each in enumerate(plan(chance)):
            began = time.monotonic()
            if each.early:
                kill_early(max(lives), each, server, directory, tmp_path, job_master, chance)
            else:
                while not run_until_killed(each, server, directory, tmp_path, job_master, chance):
                    print(f"round {number}: Spark fell over, once more")
                lives.append(time.monotonic() - began)
            traffic.start_receivers()
            print(f"round {number}: {each}, {time.monotonic() - began:.1f} s")
        traffic.stop()
        capture_the_rest(server, directory, tmp_path, spark)
        witness.stop()
    finally:
        server.stop()
    assert min(traffic.sent.values()) > 20 * ROUNDS and min(traffic.received.values()) > 0
    assert witness.looks > ROUNDS
    check_archive(spark, directory, traffic)
    print(f"{sum(traffic.sent.values())} messages, {len(archive.files(directory))} files")


@pytest.mark.req("D3")
@pytest.mark.deep
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_an_archive_in_a_store_is_what_was_sent(
    spark: SparkSession,
    job_master: JobMaster,
    tmp_path: Path,
    object_store: ObjectStore,
    table_format: str,
) -> None:
    seed = seed_of(f"capture in a store, {table_format}")
    chance = random.Random(seed)
    url = f"{object_store.bucket()}/archive"
    ArchiveWriter.open(url, MESSAGES, table_format=table_format).close()
    server = Busbar(tmp_path / "data", config_text(QUEUES)).start()
    traffic = Traffic(server.connection_string, tuple(QUEUES), seed)
    witness = Witness(url).start()
    try:
        traffic.start_senders()
        for number in range(STORE_ROUNDS):
            point = STORE_POINTS[(seed + number) % len(STORE_POINTS)] if number % 3 < 2 else None
            each = Round(point, chance.randrange(2), broker=chance.random() < 0.25)
            while not run_until_killed(each, server, url, tmp_path, job_master, chance):
                print(f"round {number}: Spark fell over, once more")
            traffic.start_receivers()
            print(f"round {number}: {each}")
        traffic.stop()
        capture_the_rest(server, url, tmp_path, spark)
        witness.stop()
    finally:
        server.stop()
    assert min(traffic.sent.values()) > 20 * STORE_ROUNDS
    assert witness.looks > STORE_ROUNDS
    columns = ["entity", "message_id", "body", "raw"]
    check_readers(
        traffic,
        {
            "Spark": of_spark(archive.read(spark, url).select(*columns)),
            "pyarrow": archive.dataset(url).to_table(columns).to_pylist(),
        },
    )


def start_capture(
    server: Busbar,
    directory: Path | str,
    base: Path,
    on: JobMaster,
    point: str = "",
) -> Program:
    arguments = [sys.executable, EAGER, "capture", *QUEUES, "--output", str(directory)]
    arguments += ["--master", on.address, "--interval", "200ms"]
    arguments.append("--verbose")  # what `Program.fell` looks for is in the log of Spark
    environment = {"BUSBAR_CONNECTION_STRING": server.connection_string} | (
        {VARIABLE: point} if point else {}
    )
    return Program(arguments, base, {**environment, **on.environment}, on.settings)


def capture_the_rest(server: Busbar, directory: Path | str, base: Path, spark: SparkSession) -> None:
    """Capture to the end of what is there, in a Java that runs."""
    secret = base / "connection"
    secret.write_text(server.connection_string)
    capture(tuple(QUEUES), directory, connection=Secret(file=str(secret)), available_now=True, session=spark)


def commits_of(directory: Path | str) -> int:
    """How many commits an archive has; of a Delta table, its version."""
    location = ArchiveLocation.parse(directory)
    if format_of(location) == DELTA:
        return int(delta_table(location).version())
    return load(location).number


def run_until_killed(
    each: Round, server: Busbar, directory: Path | str, base: Path, on: JobMaster, chance: random.Random
) -> bool:
    """Whether it was; if not, it fell before, see `Program.fell`."""
    before = commits_of(directory)
    point = f"{each.point}:{each.passes + 1}" if each.point else ""
    with start_capture(server, directory, base, on, point) as program:

        def commits() -> bool:
            assert program.running or each.point or program.fell, program.said
            return commits_of(directory) > before or not program.running

        eventually(commits, "the capture commits", seconds=PATIENCE, pause=0.005)
        if each.broker:
            time.sleep(chance.uniform(0.0, 0.5))
            server.kill()
            time.sleep(chance.uniform(0.0, 0.5))
            server.start()
        if each.point:
            return program.wait_for_death()
        time.sleep(chance.uniform(0.0, 2.5))
        assert program.running or program.fell, program.said
        return program.running


def kill_early(
    life: float,
    each: Round,
    server: Busbar,
    directory: Path,
    base: Path,
    on: JobMaster,
    chance: random.Random,
) -> None:
    """At any time of a life that lasts as long as others did."""
    with start_capture(server, directory, base, on):
        time.sleep(life * chance.random())
        if each.broker:
            server.kill()
            server.start()


def check_archive(spark: SparkSession, directory: Path, traffic: Traffic) -> None:
    """By the manifest and, as no capture runs, by listing files: ids, bodies and whole messages."""
    columns = ["entity", "message_id", "body", "raw"]
    by_manifest = duckdb.read_parquet(archive.files(directory), hive_partitioning=True)
    by_listing = duckdb.read_parquet(f"{directory}/**/*.parquet", hive_partitioning=True)
    found = {
        "Spark by the manifest": of_spark(archive.read(spark, directory).select(*columns)),
        "Spark": of_spark(spark.read.parquet(str(directory)).select(*columns)),
        "pyarrow by the manifest": archive.dataset(directory).to_table(columns).to_pylist(),
        "pyarrow": ds.dataset(directory, partitioning="hive").to_table(columns).to_pylist(),
        "DuckDB by the manifest": of_duckdb(by_manifest, columns),
        "DuckDB": of_duckdb(by_listing, columns),
    }
    check_readers(traffic, found)


def check_readers(traffic: Traffic, found: dict[str, list[dict[str, Any]]]) -> None:
    for reader, rows in found.items():
        for queue in traffic.sent:
            mine = [row for row in rows if row["entity"] == queue]
            expected = traffic.expected(queue)
            assert len(mine) == len(expected), f"{reader}: {len(mine)} of {len(expected)} {queue}"
            got = {row["message_id"]: content(row["body"], bytes(row["raw"])) for row in mine}
            assert got.keys() == expected.keys(), reader
            assert got == expected, reader


def of_spark(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def of_duckdb(relation: duckdb.DuckDBPyRelation, columns: list[str]) -> list[dict[str, Any]]:
    rows = relation.select(*(duckdb.ColumnExpression(name) for name in columns)).fetchall()
    return [dict(zip(columns, row, strict=True)) for row in rows]
