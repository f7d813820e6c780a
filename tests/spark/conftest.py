"""One Spark session for each test process, on two cores and the loopback interface; a real server for each module.

With BUSBAR_SPARK_MASTER=standalone the session, and the jobs that tests start, are on a standalone cluster (cluster.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from busbar.client import OutgoingMessage, Received, encode
from busbar.client.blocking import BlockingFactory, BlockingReceiver, BlockingTaps, connect
from busbar.spark.session import open_session
from harness.object_store import CREDENTIALS
from harness.serving import Busbar
from tests.spark.cluster import Cluster, cluster

STANDALONE = os.environ.get("BUSBAR_SPARK_MASTER") == "standalone"
SOURCES = Path(__file__).resolve().parents[2] / "src"
VARIABLE = "BUSBAR_TEST_CONNECTION"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For Java that lives shortly: half of what it would spend goes into making code fast that runs a few times."""
PATIENCE = 500.0
"""Of a test that waits, on a machine that is busy: less than the limit for what hangs."""
RECEIVE_SECONDS = 60.0
"""How long a receiver waits for messages that are there."""
MOST_LOCKED = 500
FAST = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "20",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
}


LONGEST_FIRST = (
    "test_exactly_once_capture.py",
    "test_cluster.py",
    "test_exactly_once_copying.py",
    "test_capture.py",
    "test_pages.py",
    "test_recipes.py",
    "test_insight.py",
)

NOT_STANDALONE = {
    "test_cluster.py": "it starts a cluster of its own, in every suite",
    "test_pages.py": "the pages show sessions on this machine",
    "test_recipes.py": "recipes and sample open sessions on this machine; pipeline_program.py has the sample's code",
    "test_session.py": "it is about sessions on this machine",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, so that no process is left with one of them alone. A JVM and its workers start slowly on
    a busy machine; the limit is for what hangs."""
    here = Path(__file__).parent
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))
        if STANDALONE and item.path.parent == here and item.path.name in NOT_STANDALONE:
            item.add_marker(pytest.mark.skip(reason=NOT_STANDALONE[item.path.name]))


@dataclass(frozen=True, slots=True)
class JobMaster:
    """Where the jobs run that tests start as programs: the address for `--master`, and what a driver there needs."""

    address: str = "local[2]"
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, running: Cluster) -> JobMaster:
        """A cluster whose workers may use the object store of the tests."""
        credentials = {f"spark.executorEnv.{name}": value for name, value in CREDENTIALS.items()}
        return cls(running.address, running.environment, {**running.settings, **credentials})

    def variables(self, directory: Path) -> dict[str, str]:
        """The environment of a program that gets its settings from a file in a directory."""
        file = directory / "cluster.conf"
        file.write_text("".join(f"{name} {value}\n" for name, value in self.settings.items()))
        return {"PYSPARK_SUBMIT_ARGS": f"--properties-file {file} pyspark-shell", **self.environment}


@pytest.fixture(scope="session")
def job_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobMaster]:
    if not STANDALONE:
        yield JobMaster(settings={"spark.driver.extraJavaOptions": QUICK_JAVA})
        return
    with cluster(tmp_path_factory.mktemp("cluster"), workers=2, cores=4) as running:
        yield JobMaster.of(running)


@pytest.fixture(scope="session")
def spark(job_master: JobMaster) -> Iterator[SparkSession]:
    # Workers are processes of their own: they find what the tests find. On a cluster they find what they were sent.
    os.environ.update(CREDENTIALS)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.update(job_master.environment)
    master = job_master.address if STANDALONE else "local[2,2]"  # a task that fails is tried again
    config = FAST | job_master.settings | ({"spark.task.maxFailures": "2"} if STANDALONE else {})
    session = open_session("busbar-tests", master=master, config=config)
    yield session
    session.stop()


QUEUES: dict[str, dict[str, object]] = {
    **{f"queue{number}": {} for number in range(40)},
    **{f"wide{number}": {"EnablePartitioning": True} for number in range(6)},
}


@pytest.fixture(scope="session")
def server_mark() -> pytest.Mark:
    return pytest.mark.server(QUEUES).mark


def received(receiver: BlockingReceiver, count: int) -> list[Received]:
    """So many messages, which are there. A call of the receiver returns those that have come, which may be fewer."""
    found: list[Received] = []
    while len(found) < count:
        more = receiver.receive(count - len(found), RECEIVE_SECONDS)
        assert more, f"{len(found)} of {count}"
        found += more
    return found


def numbered(first: int, last: int) -> list[bytes]:
    """Bodies, from the first number up to but without the last."""
    return [f"body {number}".encode() for number in range(first, last)]


class Namespace:
    """A namespace to read from and to send to."""

    def __init__(self, request: pytest.FixtureRequest, server: Busbar, directory: Path) -> None:
        self._request = request
        self.server = server
        self.secret = directory / "connection"
        self.secret.write_text(server.connection_string)
        self._directory = directory
        self._factory: BlockingFactory | None = None
        self._checkpoints = 0

    @property
    def spark(self) -> SparkSession:
        session = self._request.getfixturevalue("spark")
        assert isinstance(session, SparkSession)
        return session

    @property
    def factory(self) -> BlockingFactory:
        if self._factory is None:
            self._factory = connect(self.server.connection_string)
        return self._factory

    def taps(self, entity: str, sub_queue: str = "") -> BlockingTaps:
        return self.factory.taps(entity, sub_queue=sub_queue)

    def send(self, entity: str, bodies: Sequence[bytes], *, keyed: bool = False) -> None:
        """Messages whose ids are their bodies; keyed ones are spread over the fragments of a partitioned queue."""
        messages = [
            encode(
                OutgoingMessage(
                    body=body,
                    message_id=body.decode("latin-1")[:100],
                    partition_key=f"key {index % 50}" if keyed else None,
                )
            )
            for index, body in enumerate(bodies)
        ]
        with self.factory.sender(entity) as sender:
            sender.send(messages)

    def kept(self, entity: str) -> int:
        """How many messages the taps of an entity keep."""
        return sum(fragment.kept for tap in self.taps(entity).list() for fragment in tap.fragments)

    def receive(self, entity: str, count: int) -> list[bytes]:
        """Take messages out of the queue as an ordinary receiver does."""
        taken: list[bytes] = []
        with self.factory.receiver(entity) as receiver:
            while len(taken) < count:
                messages = received(receiver, min(count - len(taken), MOST_LOCKED))
                receiver.complete(messages)
                taken += [message.payload for message in messages]
        return taken

    def remake(self, queue: str) -> None:
        """Delete a queue and make one of the same name."""
        with ServiceBusAdministrationClient.from_connection_string(
            self.server.connection_string, connection_verify=str(self.server.data / "tls" / "ca.pem")
        ) as administration:
            administration.delete_queue(queue)
            administration.create_queue(queue)

    def options(self, entity: str, **options: str) -> dict[str, str]:
        return {"connectionStringFile": str(self.secret), "entity": entity, "waitForBroker": "20s"} | options

    def read(self, entity: str, **options: str) -> DataFrame:
        return self.spark.read.format("busbar").options(**self.options(entity, **options)).load()

    def stream(self, entity: str, **options: str) -> DataFrame:
        return self.spark.readStream.format("busbar").options(**self.options(entity, **options)).load()

    def checkpoint(self) -> Path:
        self._checkpoints += 1
        return self._directory / f"checkpoint{self._checkpoints}"

    def close(self) -> None:
        if self._factory is not None:
            self._factory.close()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, server: Busbar, tmp_path: Path) -> Iterator[Namespace]:
    made = Namespace(request, server, tmp_path)
    yield made
    made.close()


_given: dict[tuple[int, str], int] = {}


def _fresh(server: Busbar, kind: str) -> str:
    number = _given.get((id(server), kind), 0)
    _given[id(server), kind] = number + 1
    assert f"{kind}{number}" in QUEUES, "more tests than queues: add some to QUEUES"
    return f"{kind}{number}"


@pytest.fixture
def queue(server: Busbar) -> str:
    """A queue that no other test has used."""
    return _fresh(server, "queue")


@pytest.fixture
def wide(server: Busbar) -> str:
    """A partitioned one."""
    return _fresh(server, "wide")


def explained(frame: DataFrame) -> str:
    """The formatted plan, as `explain` prints it."""
    jvm: Any = frame.sparkSession.sparkContext._jvm
    return str(jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted"))


class Collected:
    """What a query wrote, batch by batch; a batch that is repeated replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = frame.collect()

    @property
    def rows(self) -> list[Any]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def has(self, count: int) -> bool:
        return len(self.rows) == count

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(row.body) for row in self.rows]


@pytest.fixture
def collected() -> Collected:
    return Collected()


def run_now(frame: DataFrame, checkpoint: Path, sink: Collected) -> None:
    """All that is available now, to its end."""
    wait_for_end(
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def wait_for_end(query: StreamingQuery) -> None:
    """Wait until a query has ended by itself. Raises what ended it."""
    assert query.awaitTermination(int(PATIENCE)), f"it does not end: {query.status}"
