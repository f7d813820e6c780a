"""What campaigns of kills need: programs that end with all their processes, traffic with a book of what was sent, and a
reader that looks at an archive the whole time.

The senders are writers: what a killed broker left unanswered they send again, and the broker drops what it has. So the
book is exact: what is in it was stored once, and nothing else was.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from busbar.amqp.codec import decode_value
from busbar.client import BusbarClientError, OutgoingMessage, Retry, encode
from busbar.client.blocking import BlockingReceiver, connect
from busbar.client.sender import Writer
from busbar.jobs import archive
from busbar.message.sections import find_sections, value_of

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
SOURCES = Path(__file__).resolve().parents[2] / "src"
PATIENCE = 400.0
"""Of tests with machines that are busy; nothing takes as long as that on others."""
CHANCE_TO_BURY = 0.1
OF_SPARK = ("Python worker failed to connect back", "IllegalStateException: Illegal size")
"""What ends a program through no fault of ours: Spark gives its workers ten seconds to start, which a busy machine
misses; and now and then it serializes a task's plan while another query of the session still writes into it."""

SPARK_DEFAULTS = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    # It starts faster this way, and a campaign is made of starts.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "20",
    "spark.ui.enabled": "false",
}


def seed_of(name: str) -> int:
    """The seed of a campaign; printed, so that a failure can be had again with BUSBAR_SEED."""
    seed = int(os.environ.get("BUSBAR_SEED") or random.SystemRandom().randrange(10**9))
    print(f"{name}: BUSBAR_SEED={seed}{' (deep)' if DEEP else ''}")
    return seed


# ---- programs ----------------------------------------------------------------------------------------


class Program:
    """A program in a session of its own: all its processes, those of Spark too, can be found and killed. Used in a
    `with` block, none of them survives it."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._log = directory / f"program-{time.monotonic_ns()}.log"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **spark_environment(directory, settings), **environment},
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def fell(self) -> bool:
        """Whether Spark itself brought it down. Whoever runs such a program starts it again, and so do campaigns."""
        return not self.running and any(words in self.said for words in OF_SPARK)

    def kill(self) -> None:
        """`kill -9` of the whole tree. Workers of Spark make process groups of their own, but stay in the session."""
        while alive := members(self.process.pid):
            for member in alive:
                try:
                    os.kill(member, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.poll()
            time.sleep(0.01)
        self.process.wait()

    def wait_for_death(self, seconds: float = PATIENCE) -> bool:
        """The program kills itself at a fault point; what it leaves behind is killed at once. False if it fell before."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it never came to its fault point:\n{self.said}") from None
        self.kill()
        assert code == -signal.SIGKILL or self.fell, f"it ended by itself ({code}):\n{self.said}"
        return code == -signal.SIGKILL

    def wait(self, seconds: float = PATIENCE) -> str:
        """It ends well; what it said."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end:\n{self.said}") from None
        self.kill()
        assert code == 0, f"exit code {code}:\n{self.said}"
        return self.said

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()


def spark_environment(directory: Path, settings: Mapping[str, str] | None) -> dict[str, str]:
    """Where Spark's programs find small settings, and Busbar. (A SPARK_CONF_DIR would be part of their class path, for which
    there is no archive.)"""
    properties = directory / "spark.conf"
    lines = [f"{key} {value}\n" for key, value in (SPARK_DEFAULTS | dict(settings or {})).items()]
    properties.write_text("".join(lines))
    return {
        "PYSPARK_SUBMIT_ARGS": f"--properties-file {properties} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def members(session: int) -> list[int]:
    """The processes of a session that are not zombies."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue  # it has ended
        state, _parent, _group, of = text.rpartition(")")[2].split()[:4]
        if int(of) == session and state not in "ZX":
            found.append(int(entry))
    return found


# ---- messages --------------------------------------------------------------------------------------------

Content = tuple[bytes, str, bytes]


def content(body: bytes, whole: bytes) -> Content:
    """The body, the annotations, and every byte of the bare message. Annotations are the broker's to write: their values
    stay, not the width of their map."""
    found = find_sections(whole, 0, len(whole))
    annotations: object = {}
    if found.annotations < found.properties:
        annotations, _ = decode_value(whole, value_of(whole, found.annotations, found.end), found.properties)
    return bytes(body), repr(annotations), bytes(whole[found.properties :])


# ---- traffic -----------------------------------------------------------------------------------------


class Traffic:
    """Senders and ordinary receivers of some queues, in threads, through whatever becomes of the broker."""

    def __init__(self, connection: str, queues: Sequence[str], seed: int, pause: float = 0.5) -> None:
        self._connection = connection
        self._seed = seed
        self._pause = pause
        self._over = threading.Event()
        self._sending_over = threading.Event()
        self._failures: list[BaseException] = []
        self.sent: dict[str, int] = dict.fromkeys(queues, 0)
        self.received: Counter[str] = Counter()
        self._senders = [self._thread(self._send, queue) for queue in queues]
        self._receivers = [
            self._thread(self._receive, queue, delete) for queue in queues for delete in (False, True)
        ]

    def message(self, queue: str, number: int) -> tuple[str, bytes, bytes]:
        """The id, the body and the whole of a message: they follow from its number."""
        chance = random.Random(f"{self._seed} {queue} {number}")
        body = chance.randbytes(chance.choice((0, 10, 200, 1000, 5000)))
        name = f"{queue} {number}"
        key = f"key {number % 7}" if number % 3 == 0 else None
        whole = encode(
            OutgoingMessage(
                body=body,
                message_id=name,
                partition_key=key,
                subject=f"subject {number % 5}",
                application_properties={"number": number},
            )
        )
        return name, body, whole

    def expected(self, queue: str) -> dict[str, Content]:
        """What was sent, by id."""
        messages = (self.message(queue, number) for number in range(self.sent[queue]))
        return {name: content(body, whole) for name, body, whole in messages}

    def start_senders(self) -> Traffic:
        for thread in self._senders:
            thread.start()
        return self

    def start_receivers(self) -> None:
        """To be called when there is a tap: what is received before is nobody's to keep. A second call does nothing."""
        for thread in self._receivers:
            if not thread.ident:
                thread.start()

    def stop(self) -> None:
        """Senders end with what they have begun, then receivers."""
        self._sending_over.set()
        for thread in self._senders:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a sender does not end"
        self._over.set()
        for thread in self._receivers:
            thread.join(PATIENCE)
        if self._failures:
            raise self._failures[0]

    def _thread(self, run: Callable[..., None], *arguments: object) -> threading.Thread:
        def guarded() -> None:
            try:
                run(*arguments)
            except BaseException as error:
                self._failures.append(error)

        return threading.Thread(target=guarded, daemon=True)

    def _send(self, queue: str) -> None:
        chance = random.Random(f"{self._seed} {queue}")
        with connect(self._connection, retry=Retry(patience=PATIENCE, longest=0.5)) as factory:
            sender = factory.sender(queue, writer=Writer(f"campaign {queue}", 0))
            while not self._sending_over.wait(self._pause * chance.uniform(0.2, 1.8)):
                first = self.sent[queue]
                last = first + chance.choice((1, 5, 20, 80))
                sender.send([self.message(queue, number)[2] for number in range(first, last)])
                self.sent[queue] = last

    def _receive(self, queue: str, delete: bool) -> None:
        chance = random.Random(f"{self._seed} {queue} {delete}")
        while not self._over.is_set():
            try:
                with (
                    connect(self._connection, retry=Retry(patience=0.0)) as factory,
                    factory.receiver(queue, credit=50, delete=delete) as receiver,
                ):
                    while not self._over.is_set():
                        self._take(receiver, queue, delete, chance)
            except BusbarClientError:
                self._over.wait(0.2)  # the broker is away, or the lock went with it

    def _take(self, receiver: BlockingReceiver, queue: str, delete: bool, chance: random.Random) -> None:
        messages = receiver.receive(50, 0.2)
        if not delete and messages:
            if chance.random() < CHANCE_TO_BURY:
                receiver.dead_letter(messages, "campaign")
            else:
                receiver.complete(messages)
        self.received[queue] += len(messages)
        self._over.wait(0.05 * chance.random())


# ---- archives ----------------------------------------------------------------------------------------


class Witness:
    """Reads an archive by its manifest again and again: nothing is ever there twice, and nothing goes away."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = directory
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._failure: BaseException | None = None
        self.looks = 0

    def start(self) -> Witness:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        if self._failure is not None:
            raise self._failure

    def _watch(self) -> None:
        seen: set[str] = set()
        while not self._over.wait(0.5):
            try:
                ids = self._ids()
                assert len(ids) == len(set(ids)), f"{len(ids) - len(set(ids))} messages are there twice"
                missing = seen.difference(ids)
                assert not missing, f"{len(missing)} messages have gone, such as {min(missing)!r}"
            except BaseException as error:
                self._failure = error
                return
            seen.update(ids)
            self.looks += 1

    def _ids(self) -> list[str]:
        try:
            found: pa.Table = archive.dataset(self._directory).to_table(columns=["message_id"])
        except archive.ArchiveError:
            return []  # it was not begun yet
        return [str(each) for each in found.column(0).to_pylist()]
