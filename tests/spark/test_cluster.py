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

import pyspark
import pytest

from busbar.client import OutgoingMessage, encode
from busbar.client.blocking import connect
from busbar.jobs import archive, capture
from busbar.spark.session import prepare_environment
from tests.serving import serving
from tests.spark.campaign import Program, eventually

MESSAGES = 600
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

        eventually("the master listens", listens)
        assert found is not None
        address = found.group(0)
        for number in range(workers):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"worker{number}")]
            programs.enter_context(daemon(directory, "worker.Worker", *size, address))
        eventually("the workers are there", lambda: master.said.count("Registering worker") == workers)
        yield address


def daemon(directory: Path, name: str, *arguments: str) -> Program:
    command = [SPARK_CLASS, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--port", "0"]
    return Program([*command, "--webui-port", "0", *arguments], directory, DAEMONS)


@pytest.mark.req("D7")
@pytest.mark.timeout(600)
def test_capture_and_replay_run_on_a_cluster(tmp_path: Path) -> None:
    sent = {f"message {number}": os.urandom(200) for number in range(MESSAGES)}
    wide = {"EnablePartitioning": True}
    with serving({"orders": wide, "again": wide}) as server, connect(server.connection_string) as factory:
        secret = tmp_path / "connection"
        secret.write_text(server.connection_string)
        factory.sender("orders").send(
            [encode(OutgoingMessage(body, message_id=name)) for name, body in sent.items()]
        )
        with CommandLines() as watched, cluster(tmp_path, 2) as master:
            # Once submitted, with a file that every node has; once by the command, which sends it with what workers run.
            captured = run(
                tmp_path,
                [SPARK_SUBMIT, "--master", master, "--properties-file", str(tmp_path / "spark.conf")],
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
        report = json.loads(replayed[replayed.index("{\n") :])
        assert (report["found"], report["sent"], report["refused"]) == (MESSAGES, MESSAGES, 0)
        rows = archive.dataset(tmp_path / "archive").to_table(["message_id", "body"]).to_pylist()
        assert len(rows) == MESSAGES and {row["message_id"]: row["body"] for row in rows} == sent
        with factory.receiver("again") as receiver:
            copies: list[tuple[str, bytes]] = []
            while messages := receiver.receive(MESSAGES, 1):
                receiver.complete(messages)
                for message in messages:
                    decoded = message.decode()
                    copies.append((str(decoded.message_id), decoded.data or b""))
        assert len(copies) == MESSAGES and dict(copies) == sent
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
