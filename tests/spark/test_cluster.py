"""The jobs on a Spark cluster, unchanged: a master and two workers, as processes. What they write down, and the command
lines of all their processes, show no secret."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

import pyspark
import pytest

from busbar.client import OutgoingMessage, encode
from busbar.client.blocking import BlockingFactory, connect
from busbar.jobs import archive, capture
from busbar.message.decoded import DecodedMessage
from busbar.spark.session import prepare_environment
from harness.serving import Properties, serving
from harness.waiting import eventually
from tests.spark import pipeline_program
from tests.spark.campaign import PATIENCE, Program
from tests.spark.conftest import Namespace

MESSAGES = 600
SESSIONS = [f"order {number}" for number in range(5)]
STEPS = [f"step {number}" for number in range(12)]
DAEMONS = {
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}
SPARK_CLASS, SPARK_SUBMIT = (
    str(Path(pyspark.__file__).parent / "bin" / name) for name in ("spark-class", "spark-submit")
)


@contextmanager
def cluster(directory: Path, workers: int) -> Iterator[str]:
    """A cluster of workers with a core each; its address. The directory gets the workers' logs."""
    prepare_environment()
    with ExitStack() as programs:
        master = programs.enter_context(daemon(directory, "master.Master"))
        found: re.Match[str] | None = None

        def listens() -> bool:
            nonlocal found
            assert master.running, master.said
            found = re.search(r"spark://127\.0\.0\.1:\d+", master.said)
            return found is not None

        eventually(listens, "the master listens", seconds=PATIENCE, pause=0.005)
        assert found is not None
        address = found.group(0)
        for number in range(workers):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"worker{number}")]
            programs.enter_context(daemon(directory, "worker.Worker", *size, address))
        eventually(
            lambda: master.said.count("Registering worker") == workers,
            "the workers are there",
            seconds=PATIENCE,
            pause=0.005,
        )
        yield address


def daemon(directory: Path, name: str, *arguments: str) -> Program:
    command = [SPARK_CLASS, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--port", "0"]
    return Program([*command, "--webui-port", "0", *arguments], directory, DAEMONS)


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

    def taken(self, queue: str) -> list[DecodedMessage]:
        """All that is in a queue, taken out of it."""
        found: list[DecodedMessage] = []
        with self._factory.receiver(queue) as receiver:
            while messages := receiver.receive(MESSAGES, 1):
                receiver.complete(messages)
                found += [message.decode() for message in messages]
        return found

    def check(self) -> None:
        copies = [(str(message.message_id), message.data or b"") for message in self.taken("copies")]
        assert len(copies) == len(self.sent) and dict(copies) == self.sent
        steps = {
            (str(message.message_id), (message.data or b"").decode(), message.correlation_id)
            for message in self.taken("steps")
        }
        assert steps == {
            (f"{name} {number}", step, previous)
            for name in SESSIONS
            for number, (step, previous) in enumerate(zip(STEPS, [None, *STEPS], strict=False), 1)
        }, "every step once, behind the one before it"


pytestmark = pytest.mark.server(Pipeline.QUEUES)


@pytest.mark.req("D7")
@pytest.mark.deep  # what it is made of runs embedded in other tests
def test_the_program_runs_embedded(namespace: Namespace, tmp_path: Path) -> None:
    """The same program as on the cluster, with a session of this process."""
    pipeline = Pipeline(namespace.factory, 100)
    session = namespace.spark.newSession()
    pipeline_program.pipeline(session, str(namespace.secret), str(tmp_path / "checkpoint"))
    pipeline.check()


@pytest.mark.req("D7")
@pytest.mark.timeout(600)
def test_jobs_and_programs_run_on_a_cluster(tmp_path: Path) -> None:
    """Capture and replay, which are ready to run; source, sink and sessions with state in a program of a user's."""
    queues: dict[str, Properties] = {**Pipeline.QUEUES, "again": {"EnablePartitioning": True}}
    with serving(queues) as server, connect(server.connection_string) as factory:
        secret = tmp_path / "connection"
        secret.write_text(server.connection_string)
        pipeline = Pipeline(factory, MESSAGES)
        sent = pipeline.sent
        with CommandLines() as watched, cluster(tmp_path, 2) as master:
            submit = [SPARK_SUBMIT, "--master", master, "--properties-file", str(tmp_path / "spark.conf")]
            # Once submitted, with a file that every node has; once by the command, which sends it with what workers run.
            captured = run(
                tmp_path,
                submit,
                [capture.__file__, "orders", "--output", str(tmp_path / "archive"), "--available-now"],
                ["--connection-file", str(secret)],
            )
            assert f"orders: {MESSAGES} captured" in captured
            replayed = run(
                tmp_path,
                [sys.executable, "-m", "busbar", "replay", str(tmp_path / "archive"), "again"],
                ["--ids", "message", "--master", master, "-o", "json"],
                BUSBAR_CONNECTION_STRING=server.connection_string,
            )
            run(tmp_path, submit, [pipeline_program.__file__, str(secret), str(tmp_path / "checkpoint")])
        report = json.loads(replayed[replayed.index("{\n") :])
        assert (report["found"], report["sent"], report["refused"]) == (MESSAGES, MESSAGES, 0)
        rows = archive.dataset(tmp_path / "archive").to_table(["message_id", "body"]).to_pylist()
        assert len(rows) == MESSAGES and {row["message_id"]: row["body"] for row in rows} == sent
        copies = [(str(message.message_id), message.data or b"") for message in pipeline.taken("again")]
        assert len(copies) == MESSAGES and dict(copies) == sent
        pipeline.check()
    assert any(watched.seen) and not [line for line in watched.seen if server.key in line]
    for number in range(2):
        assert list((tmp_path / f"worker{number}").glob("app-*/*/stderr")), "a worker had nothing to do"
    logs = [*tmp_path.glob("*.log"), *tmp_path.glob("worker*/**/std*")]
    events = [path for path in (tmp_path / "events").rglob("*") if path.is_file()]
    assert any("SparkListenerSQLExecutionStart" in path.read_text() for path in events)
    for log in logs + events:
        assert server.key not in log.read_text(errors="replace"), log


def run(directory: Path, *command: list[str], **environment: str) -> str:
    events = directory / "events"
    events.mkdir(exist_ok=True)
    logged = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(events),
    }
    with Program([word for part in command for word in part], directory, environment, logged) as program:
        return program.wait()


class CommandLines:
    """Looks at the command lines that have to do with Spark as long as it is open."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
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
                except OSError:
                    continue  # it has ended
                if "spark" in line:
                    self.seen.add(line)
