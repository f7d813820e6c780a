"""From a queue to a queue, and from a queue to Spark's own file sink, under `kill -9`: everything arrives once.

The program (copying_program.py) is killed with all its processes: half of the times in the middle of a batch, that is,
between Spark's note of what the batch is and its note that it is committed; half of the times at random. The broker is
killed too. Nothing detects duplicates in the target but what the sink and the broker agree on.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from harness.serving import Busbar, config_text
from harness.waiting import eventually
from tests.spark.campaign import DEEP, PATIENCE, Content, Program, Traffic, content, seed_of
from tests.spark.conftest import JobMaster
from tests.spark.copying_program import copy

SOURCE, TARGET = "orders", "copies"
ROUNDS = int(os.environ.get("BUSBAR_ROUNDS") or (80 if DEEP else 2))
PROGRAM = str(Path(__file__).with_name("copying_program.py"))
WIDE = {"EnablePartitioning": True}


@pytest.mark.req("D1", "D2")
@pytest.mark.timeout(4 * 3600 if DEEP else 1800)
def test_all_that_was_sent_is_copied_once(spark: SparkSession, job_master: JobMaster, tmp_path: Path) -> None:
    seed = seed_of("copying")
    chance = random.Random(seed)
    server = Busbar(tmp_path / "data", config_text({SOURCE: WIDE, TARGET: WIDE})).start()
    traffic = Traffic(server.connection_string, [SOURCE], seed)
    try:
        traffic.start_senders()
        for number in range(ROUNDS):
            began = time.monotonic()
            amid, broker = number % 2 == 0, chance.random() < 0.5 or number == 1
            killed = False
            while not killed:
                with start(server, tmp_path, job_master) as program:
                    killed = run_for_a_while(
                        program, tmp_path, chance, amid=amid, server=server if broker else None
                    )
            traffic.start_receivers()
            print(f"round {number}: {amid=} {broker=}, {time.monotonic() - began:.1f} s")
        traffic.stop()
        secret = tmp_path / "connection"
        secret.write_text(server.connection_string)
        connection = {"connectionStringFile": str(secret)}
        copy(spark, tmp_path, SOURCE, TARGET, connection, now=True)  # in a Java that runs
        copies = rows(spark.read.format("busbar").options(**connection, entity=TARGET).load())
        files = rows(spark.read.parquet(str(tmp_path / "files")))
    finally:
        server.stop()
    expected = Counter(traffic.expected(SOURCE).items())
    assert expected.total() > 20 * ROUNDS and traffic.received[SOURCE] > 0
    for place, found in (("the target", copies), ("the files", files)):
        lost, more = (expected - found).total(), (found - expected).total()
        assert found == expected, f"{place}: {lost} are missing, {more} are there without need"
    print(f"{expected.total()} messages")


def start(server: Busbar, directory: Path, on: JobMaster) -> Program:
    environment = {"BUSBAR_CONNECTION_STRING": server.connection_string, **on.environment}
    command = [sys.executable, PROGRAM, str(directory), SOURCE, TARGET, on.address]
    settings = {**on.settings, **worker_variables(environment)}
    return Program(command, directory, environment, settings)


def worker_variables(environment: dict[str, str]) -> dict[str, str]:
    """The connection string for workers that do not inherit the environment of the driver."""
    name = "BUSBAR_CONNECTION_STRING"
    return {f"spark.executorEnv.{name}": environment[name]}


def run_for_a_while(
    program: Program, directory: Path, chance: random.Random, *, amid: bool, server: Busbar | None
) -> bool:
    """Returns when it is to be killed; False if it fell before, see `Program.fell`."""
    before = {query: last_batch(directory, query, "commits") for query in ("copied", "filed")}

    def committed() -> bool:
        assert program.running or program.fell, program.said
        return program.fell or all(
            last_batch(directory, query, "commits") > batch for query, batch in before.items()
        )

    eventually(committed, "both queries commit a batch", seconds=PATIENCE, pause=0.005)
    if server is not None:
        time.sleep(chance.uniform(0.0, 0.3))
        server.kill()
        time.sleep(chance.uniform(0.0, 0.5))
        server.start()
    time.sleep(chance.uniform(0.0, 1.5))
    if amid:
        query = chance.choice(("copied", "filed"))
        eventually(
            lambda: under_way(directory, query) or not program.running,
            "a batch is under way",
            seconds=PATIENCE,
            pause=0.005,
        )
        time.sleep(chance.uniform(0.0, 0.3))
    assert program.running or program.fell, program.said
    return program.running


def under_way(directory: Path, query: str) -> bool:
    return last_batch(directory, query, "offsets") > last_batch(directory, query, "commits")


def last_batch(directory: Path, query: str, log: str) -> int:
    try:
        return max((int(name) for name in os.listdir(directory / query / log) if name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


def rows(frame: DataFrame) -> Counter[tuple[str, Content]]:
    found = frame.select("message_id", "body", "raw").collect()
    return Counter((row.message_id, content(row.body, bytes(row.raw))) for row in found)
