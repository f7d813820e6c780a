"""The jobs on a Spark cluster, unchanged: a master and two workers, as processes that share no code (cluster.py). What they
write down, and the command lines of all their processes, show no secret."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from busbar.client import OutgoingMessage, encode
from busbar.client.blocking import BlockingFactory, connect
from busbar.jobs import archive
from busbar.message.decoded import DecodedMessage
from harness.page_blocks import blocks_of
from harness.serving import Properties, serving
from tests.spark import pipeline_program
from tests.spark.campaign import Program
from tests.spark.cluster import Cluster, cluster
from tests.spark.conftest import PATIENCE, SOURCES, Namespace, received
from tests.spark.pipeline_program import PAGE
from tests.spark.worker_environment import listed_packages, make_environment, pack

MESSAGES = 600
SESSIONS = [f"order {number}" for number in range(5)]
STEPS = [f"step {number}" for number in range(12)]


class Pipeline:
    """The queues of pipeline_program.py, filled, and what it must have made of them, wherever it ran."""

    QUEUES: ClassVar[dict[str, dict[str, object]]] = {
        "orders": {"EnablePartitioning": True},
        "copies": {"EnablePartitioning": True},
        "workflows": {"EnablePartitioning": True, "RequiresSession": True},
        "steps": {"EnablePartitioning": True},
    }

    def __init__(self, factory: BlockingFactory, messages: int) -> None:
        self._factory = factory
        self.sent = {f"message {number}": os.urandom(200) for number in range(messages)}
        factory.sender("orders").send(
            [encode(OutgoingMessage(body, message_id=name)) for name, body in self.sent.items()]
        )
        factory.sender("workflows").send(
            [encode(OutgoingMessage(step.encode(), session_id=name)) for step in STEPS for name in SESSIONS]
        )

    def taken(self, queue: str, count: int) -> list[DecodedMessage]:
        """So many messages, which are in a queue, and what else comes: taken out of it."""
        with self._factory.receiver(queue) as receiver:
            messages = received(receiver, count)
            messages += receiver.receive(count, 1)
            receiver.complete(messages)
        return [message.decode() for message in messages]

    def check(self) -> None:
        copies = [
            (str(message.message_id), message.data or b"") for message in self.taken("copies", len(self.sent))
        ]
        assert len(copies) == len(self.sent) and dict(copies) == self.sent
        steps = {
            (str(message.message_id), (message.data or b"").decode(), message.correlation_id)
            for message in self.taken("steps", len(SESSIONS) * len(STEPS))
        }
        assert steps == {
            (f"{name} {number}", step, previous)
            for name in SESSIONS
            for number, (step, previous) in enumerate(zip(STEPS, [None, *STEPS], strict=False), 1)
        }, "every step once, behind the one before it"


pytestmark = pytest.mark.server(Pipeline.QUEUES)


WORKER = """
import importlib.util, sys
import busbar.jobs.capture, busbar.jobs.parquet_files, busbar.jobs.replay_task, busbar.spark.sink
from pyspark_busbar import DefaultSource

for options in ({"entity": "orders"}, {"entityPattern": "o*"}):
    source = DefaultSource({"connectionStringFile": sys.argv[1], **options})
    reader = source.reader(source.schema())
    print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)))
print([name for name in sys.argv[2:] if importlib.util.find_spec(name)], busbar.__file__)
for kind, schema in (("json", "a INT"), ("avro", '"string"')):
    try:
        DefaultSource({"connectionStringFile": "-", "bodyFormat": kind, "bodySchema": schema, "entity": "-"}).schema()
    except Exception as error:
        print(error)
"""
OF_THE_SERVER = ("aiohttp", "cryptography", "defusedxml", "lark", "msgspec", "rich", "typer", "uvloop")


@pytest.mark.req("D7")
def test_a_worker_needs_the_packages_that_the_page_lists(namespace: Namespace, tmp_path: Path) -> None:
    """It has them, and Busbar in one file: nothing of a server, and nothing else."""
    always, sometimes = listed_packages()
    assert not set(always) & set(sometimes)
    python = make_environment(tmp_path / "environment", always)
    package = pack(tmp_path / "busbar.zip")
    namespace.send("orders", [b"a", b"b", b"c"])
    command = [str(python), "-c", WORKER, str(namespace.secret), *OF_THE_SERVER]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(package)}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["3", "3", f"[] {package}/busbar/__init__.py"]
    # A package that is missing is named.
    assert [re.findall(r"needs the package '(\w+)'", line) for line in lines[3:]] == [
        ["msgspec"],
        ["fastavro"],
    ]
    assert {"msgspec", "fastavro"} <= set(sometimes)


@pytest.mark.req("D7")
@pytest.mark.deep  # what it is made of runs embedded in other tests
def test_the_program_runs_embedded(namespace: Namespace, tmp_path: Path) -> None:
    """The same program as on the cluster, with a session of this process."""
    pipeline = Pipeline(namespace.factory, 100)
    session = namespace.spark.newSession()
    pipeline_program.pipeline(session, str(namespace.secret), str(tmp_path / "checkpoint"))
    pipeline.check()


@pytest.mark.req("D7")
@pytest.mark.timeout(1200)
def test_jobs_and_programs_run_on_a_cluster(tmp_path: Path) -> None:
    """The commands of docs/spark-cluster.md: source, sink and sessions with state in a program of a user's, and capture and
    replay, which are ready to run. Capture gets a file that every node has; replay sends the connection string with what
    workers run. The program runs beside the jobs, with an executor on each worker."""
    queues: dict[str, Properties] = {**Pipeline.QUEUES, "orders-again": {"EnablePartitioning": True}}
    with serving(queues) as server, connect(server.connection_string) as factory:
        secret = tmp_path / "connection"
        secret.write_text(server.connection_string)
        pipeline = Pipeline(factory, MESSAGES)
        sent = pipeline.sent
        program, capture, replay = (
            block.text for block in blocks_of(PAGE, ("sh", "python")) if block.language == "sh"
        )
        with (
            CommandLines() as watched,
            cluster(tmp_path, 2, cores=2) as running,
            ThreadPoolExecutor(1) as beside,
        ):
            names = {
                "/opt/python/bin/python": str(running.python),
                "spark://…": running.address,
                "/data/orders": str(tmp_path / "archive"),
                "/etc/busbar/connection": str(secret),
                "program.py": f"{pipeline_program.__file__} {secret} {tmp_path / 'checkpoint'}",
            }
            ended = beside.submit(run, tmp_path / "program", running, program, names)
            captured = run(tmp_path / "capture", running, capture, names, **ONE_EXECUTOR)
            assert f"orders: {MESSAGES} captured" in captured
            replayed = run(
                tmp_path / "replay",
                running,
                f"{replay.rstrip()} -o json",
                names,
                BUSBAR_CONNECTION_STRING=server.connection_string,
                **ONE_EXECUTOR,
            )
            ended.result()
        report = json.loads(replayed[replayed.index("{\n") :])
        assert (report["found"], report["sent"], report["refused"]) == (MESSAGES, MESSAGES, 0)
        rows = archive.dataset(tmp_path / "archive").to_table(["message_id", "body"]).to_pylist()
        assert len(rows) == MESSAGES and {row["message_id"]: row["body"] for row in rows} == sent
        copies = [
            (str(message.message_id), message.data or b"")
            for message in pipeline.taken("orders-again", MESSAGES)
        ]
        assert len(copies) == MESSAGES and dict(copies) == sent
        pipeline.check()
    tasks = [line for line, place in watched.places.items() if place.startswith(f"{tmp_path}/worker")]
    pythons = {line.split()[0] for line in tasks if "-m pyspark.daemon pyspark.worker" in line}
    assert pythons == {str(running.python)}, "workers have a Python of their own"
    assert watched.places and not [line for line in watched.places if server.key in line]
    for number in range(2):
        assert list((tmp_path / f"worker{number}").glob("app-*/*/stderr")), "a worker had nothing to do"
    applications = {path.name for path in tmp_path.glob("worker*/app-*")}
    assert len(applications) == 3, "capture, replay and the program have run on the cluster"
    logs = [*tmp_path.rglob("*.log"), *tmp_path.glob("worker*/**/std*")]
    events = [path for path in tmp_path.glob("*/events/**/*") if path.is_file()]
    assert len(logs) >= 6 and events, "logs of master, workers, capture, replay and the program"
    assert any("SparkListenerSQLExecutionStart" in path.read_text() for path in events)
    for log in logs + events:
        assert server.key not in log.read_text(errors="replace"), log


ONE_EXECUTOR = {"spark.cores.max": "1"}
"""For jobs that are small: an executor is a Java of its own."""


def run(directory: Path, on: Cluster, script: str, names: Mapping[str, str], **given: str) -> str:
    """Run a block of the page in a new directory, with the names of this cluster instead of the page's. Settings of Spark
    and variables of the environment can be given."""
    events = directory / "events"
    events.mkdir(parents=True)
    (directory / "busbar.zip").symlink_to(on.package)
    settings = {
        **on.settings,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(events),
        **{name: value for name, value in given.items() if name.startswith("spark.")},
    }
    for name, value in names.items():
        script = script.replace(name, value)
    environment = {
        **on.environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{SOURCES}:{SOURCES.parent}",
        **{name: value for name, value in given.items() if not name.startswith("spark.")},
    }
    command = ["bash", "-ec", f"cd {directory}\n{script}"]
    with Program(command, directory, environment, settings) as program:
        return program.wait()


class CommandLines:
    """Looks at the command lines that have to do with Spark as long as it is open."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        """The directory of each process, by its command line."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_text(errors="replace").replace("\0", " ")
                    place = os.readlink(path.with_name("cwd"))
                except OSError:
                    continue  # it has ended
                if "spark" in line:
                    self.places[line] = place
