"""busbar.client under random disconnects, kills of brokers and slow readers, for ten minutes with BUSBAR_DEEP=1.

One process has clients of all kinds, asynchronous and blocking. The test cuts and stalls their connections by a plan that
follows from a seed (BUSBAR_SOAK_SEED), and kills the server or one of its two brokers. At the end every call has ended, no
task and no thread is left, memory was flat on both sides, and the journal agrees with the promises of soak_journal.py.

The memory of a server is that of the processes that are not killed. So a single server is killed in the first third only,
and of two brokers always the same one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from busbar.cli.failure import CommandFailure
from busbar.client import MessagingFactory
from harness.processes import brokers_of
from harness.promises import require_kept
from harness.serving import BROKERS, PATIENCE, Busbar, Properties, config_text, resident_bytes_of
from tests.durability.soak_client import MEASURED
from tests.durability.soak_faults import CuttingProxy, Fault, FaultKind, fault_plan
from tests.durability.soak_journal import DELETED, ORDERS, REPLIES, Ledger, MemorySample
from tests.durability.soak_workers import CALL_SECONDS, PLAIN, SESSIONS, UNIQUE
from tests.durability.test_store_outage import Operator

DEEP = bool(os.environ.get("BUSBAR_DEEP"))
SEED = int(os.environ.get("BUSBAR_SOAK_SEED", time.time_ns() % 1_000_000))
SECONDS = float(os.environ.get("BUSBAR_SOAK_SECONDS", "600" if DEEP else "6"))
LEAK_SECONDS = 60.0
OPERATION_TIMEOUT = 10.0 if DEEP else 4.0
LONGEST_STALL = 1.3 * OPERATION_TIMEOUT
DRAIN_SECONDS = 90.0
VICTIM = "broker-1"

RESIDENT_RATIO = 1.15 if DEEP else 1.5
OBJECTS_RATIO = 1.10 if DEEP else 1.5
"""The most that the memory in the last third of the time may be of that in the second: bytes, and objects of the client. A
short run is hardly warm, so it may grow by more."""

COMMON: Properties = {"LockDuration": "PT3S", "MaxDeliveryCount": 1000}
QUEUES: dict[str, Properties] = {
    PLAIN: COMMON,
    UNIQUE: {
        **COMMON,
        "EnablePartitioning": True,
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "PT1M",
    },
    SESSIONS: {**COMMON, "RequiresSession": True},
    ORDERS: COMMON,
    REPLIES: COMMON,
    DELETED: COMMON,
}
COUNTS = ("active", "deadLetter", "scheduled", "deferred", "transfer", "transferDeadLetter")
LIMITS = PATIENCE | {"min_lock_duration": 100}

pytestmark = [
    pytest.mark.timeout(SECONDS + 300),
    pytest.mark.skipif(bool(BROKERS), reason="the number of its brokers is its own"),
]


@dataclass(slots=True)
class Campaign:
    """A server, a client process and what happens to them."""

    server: Busbar
    directory: Path
    victim: str = ""
    """The broker that is killed; without it the whole server is."""
    kills_until: float = 0.0
    seconds: float = SECONDS
    options: tuple[str, ...] = ()
    kills: int = 0
    server_memory: list[MemorySample] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    _client: subprocess.Popen[str] | None = None

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    async def run(self) -> Ledger:
        """Start the client, let the plan happen, wait until all queues are empty, and read the journal."""
        plan = fault_plan(SEED, self.seconds, self.kills_until, LONGEST_STALL)
        async with CuttingProxy(self.server) as proxy:
            with (self.directory / "errors").open("w") as errors:
                self._start_client(proxy.connection_string, errors)
                try:
                    await self._expect("ready")
                    await self._load(plan, proxy)
                    await self._say("stop")
                    await self._expect("stopped")
                    await self._drained()
                    await self._say("close")
                    self.report = json.loads(await self._line())
                    code = await asyncio.to_thread(self._running.wait, CALL_SECONDS)
                finally:
                    self._running.kill()
        assert code == 0, self._errors()
        assert "Traceback" not in self._errors() and "never" not in self._errors(), self._errors()
        print(f"{proxy.accepted} connections, {len(plan)} faults, {self.kills} kills")
        return Ledger(self.journal)

    def _start_client(self, connection_string: str, errors: Any) -> None:
        command = [sys.executable, "-m", "tests.durability.soak_client", connection_string, str(self.journal)]
        command += [str(SEED), str(self.seconds), str(OPERATION_TIMEOUT), *self.options]
        self._client = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._client is not None
        return self._client

    def _errors(self) -> str:
        return (self.directory / "errors").read_text()

    async def _line(self) -> str:
        assert self._running.stdout is not None
        async with asyncio.timeout(3 * CALL_SECONDS):
            line = await asyncio.to_thread(self._running.stdout.readline)
        assert line, f"the client has ended: {self._errors()}"
        return line.strip()

    async def _expect(self, text: str) -> None:
        assert await self._line() == text, self._errors()

    async def _say(self, text: str) -> None:
        assert self._running.stdin is not None
        self._running.stdin.write(text + "\n")
        self._running.stdin.flush()

    # ---- faults and measurements -----------------------------------------------------------------

    async def _load(self, plan: Sequence[Fault], proxy: CuttingProxy) -> None:
        began = time.monotonic()
        sampling = asyncio.create_task(self._sample(began))
        for fault in plan:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            assert self._running.poll() is None, self._errors()
            if fault.kind is FaultKind.KILL:
                await self._kill()
            else:
                proxy.inject(fault)
        await asyncio.sleep(max(0.0, began + self.seconds - time.monotonic()))
        sampling.cancel()

    async def _kill(self) -> None:
        if self.victim:
            process = brokers_of(self.server).get(self.victim)
            if process is not None:  # it is not back yet
                self.kills += 1
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            return
        self.kills += 1
        self.server.kill()
        await asyncio.to_thread(self.server.start)

    async def _sample(self, began: float) -> None:
        while True:
            await asyncio.sleep(self.seconds / 60)
            with suppress(OSError, AssertionError):  # it is killed right now
                resident = sum(map(resident_bytes_of, self._lasting_processes()))
                self.server_memory.append(MemorySample(time.monotonic() - began, resident))

    def _lasting_processes(self) -> list[int]:
        others = [process for name, process in brokers_of(self.server).items() if name != self.victim]
        return [self.server.pid, *others]

    async def _drained(self) -> None:
        """Wait until the receivers have completed all messages."""
        left: dict[str, int] | None = None
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            left = await asyncio.to_thread(messages_left, self.server)
            if left is not None and not any(left.values()):
                return
        raise AssertionError(f"seed {SEED}: after {DRAIN_SECONDS:g} s these messages are left: {left}")


def messages_left(server: Busbar) -> dict[str, int] | None:
    """How many messages each queue has. None if one of its fragments does not answer: the count would be without it."""
    operator, left = Operator(server), {}
    try:
        for queue in QUEUES:
            views = operator.ask("GET", f"fragments/{queue}")
            if any(view["state"] != "open" for view in views):
                return None
            left[queue] = sum(view[count] for view in views for count in COUNTS)
    except CommandFailure:
        return None  # a broker is starting
    return left


async def messages_stored(server: Busbar, queue: str) -> list[str]:
    """The ids of the messages that a queue has."""
    found: list[str] = []
    async with (
        MessagingFactory(server.connection_string) as factory,
        factory.message_receiver(queue) as receiver,
    ):
        while messages := await receiver.peek_messages(100):
            found += [str(message.message_id) for message in messages]
    return found


def ratio(samples: Sequence[MemorySample], of: Callable[[MemorySample], int], seconds: float) -> float:
    """The median of the last third of the time, as a multiple of that of the second."""

    def middle(start: float, end: float) -> float:
        return median(of(sample) for sample in samples if start <= sample.seconds < end)

    return middle(seconds * 2 / 3, seconds * 2) / middle(seconds / 3, seconds * 2 / 3)


def growth(ledger: Ledger, campaign: Campaign) -> list[str]:
    """Whose memory is not flat."""
    seconds = campaign.seconds
    client, server = ledger.memory, campaign.server_memory
    measured = (
        ("the memory of the client", ratio(client, lambda each: each.resident, seconds), RESIDENT_RATIO),
        ("the objects of the client", ratio(client, lambda each: each.objects, seconds), OBJECTS_RATIO),
        ("the memory of the server", ratio(server, lambda each: each.resident, seconds), RESIDENT_RATIO),
    )
    for what, grown, most in measured:
        print(f"{what} in the last third is {grown:.3f} of that in the second (at most {most})")
    return [what for what, grown, most in measured if grown > most]


def check(campaign: Campaign) -> None:
    print(f"BUSBAR_SOAK_SEED={SEED} for {SECONDS:g} s")
    ledger = asyncio.run(campaign.run())
    print(ledger.summary())
    print("errors that calls ended with:", json.dumps(campaign.report["errors"], indent=1))
    print("slowest calls:", json.dumps(campaign.report["slowest"], indent=1))
    faults = ledger.faults()
    if faults:  # what is still stored is not lost: the wait for the end of all messages was too short
        stored = {
            name: asyncio.run(messages_stored(campaign.server, name)) for name in (PLAIN, UNIQUE, ORDERS)
        }
        require_kept(f"BUSBAR_SOAK_SEED={SEED}, stored are {stored}", faults)
    assert growth(ledger, campaign) == [], f"seed {SEED}"
    for name in MEASURED:
        assert len(ledger.queues[name].completed if name != ORDERS else ledger.transactions) > SECONDS, name
    assert campaign.kills > 0


@pytest.mark.skipif(not DEEP, reason="a long campaign: `make deep` runs it")
def test_clients_of_one_server(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text(QUEUES, LIMITS), arguments=("--brokers", "1"))
    server.start()
    try:
        check(Campaign(server, tmp_path, kills_until=SECONDS / 3))
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text


def test_clients_of_two_brokers(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text(QUEUES, LIMITS), arguments=("--brokers", "2"))
    server.start()
    try:
        check(Campaign(server, tmp_path, victim=VICTIM, kills_until=SECONDS))
    finally:
        server.stop()
    assert "Traceback" not in server.error_text, server.error_text


@pytest.mark.deep
def test_a_leak_of_the_client_is_found(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text(QUEUES, LIMITS), arguments=("--brokers", "1")).start()
    try:
        campaign = Campaign(server, tmp_path, seconds=LEAK_SECONDS, options=("leak",))
        found = growth(asyncio.run(campaign.run()), campaign)
    finally:
        server.stop()
    assert found == ["the memory of the client", "the objects of the client"]


@pytest.mark.deep
def test_a_leak_of_the_server_is_found(tmp_path: Path) -> None:
    leaking = ("-m", "tests.durability.serve_leaking")
    server = Busbar(
        tmp_path / "data", config_text(QUEUES, LIMITS), arguments=("--brokers", "1"), program=leaking
    ).start()
    try:
        campaign = Campaign(server, tmp_path, seconds=LEAK_SECONDS)
        found = growth(asyncio.run(campaign.run()), campaign)
    finally:
        server.stop()
    assert found == ["the memory of the server"]
