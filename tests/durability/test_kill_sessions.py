"""`kill -9` of a server while workers accept sessions, complete messages and set states: order, exclusivity and state hold.

What is certain is what was answered. After each kill:
- a message that was acknowledged comes, unless its completion was confirmed (then never again) or left unknown;
- within one holding of a session, messages come in the order they were sent, and none is left out;
- a session's state is the last one that was confirmed, or one whose setting was left unknown since then;
- nobody gets a session that another worker holds.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from contextlib import suppress
from pathlib import Path

import pytest

from busbar.amqp.events import Delivery
from harness.amqp_driver import (
    COMPLETE,
    ConnectionOver,
    LinkRefused,
    LoadConnection,
    Receiver,
    Requests,
    Sender,
    connect,
    session_payload,
)
from harness.promises import require_kept
from harness.serving import Busbar, config_text

SEED = random.randrange(1 << 32)
ROUNDS = 100 if os.environ.get("BUSBAR_DEEP") else 4
SESSIONS = 12
WORKERS = 3
QUEUES = {
    "regular": {"RequiresSession": True},
    "partitioned": {"RequiresSession": True, "EnablePartitioning": True},
}
NUMBER = re.compile(rb"\xa1\x0c(\d{12})")


def session_of(number: int) -> str:
    return f"s{number % SESSIONS}"


class Truth:
    """What a client of one queue knows for certain."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.completed: set[int] = set()
        self.maybe_completed: set[int] = set()
        self.states: dict[str, list[bytes | None]] = {}
        self.held: set[str] = set()
        self.holdings = 0
        self.faults: list[str] = []

    def missing(self) -> set[int]:
        return self.acknowledged - self.completed - self.maybe_completed

    def possible_states(self, session: str) -> list[bytes | None]:
        return self.states.setdefault(session, [None])


class Holding:
    """One worker with one session."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self.numbers: dict[int, int] = {}  # by delivery id
        self.delivered: list[int] = []
        self.session = ""

    def decide(self, deliveries: list[Delivery]) -> list[tuple[list[int], bytes]]:
        for delivery in deliveries:
            found = NUMBER.search(delivery.payload)
            assert found is not None
            number = int(found.group(1))
            self.numbers[delivery.id] = number
            self.delivered.append(number)
        return [([delivery.id for delivery in deliveries], COMPLETE)]

    def check(self, session: str, before: set[int]) -> None:
        """`before`: what had certainly to come when the session was accepted."""
        faults = self._truth.faults
        if any(session_of(number) != session for number in self.delivered):
            faults.append(f"{session} was given {self.delivered}")
        if self.delivered != sorted(set(self.delivered)):
            faults.append(f"{session} out of order: {self.delivered}")
        if self.delivered:
            due = {
                number for number in before if session_of(number) == session and number < self.delivered[-1]
            }
            if due - set(self.delivered):
                faults.append(f"{session} left out {sorted(due - set(self.delivered))}: {self.delivered}")

    def settle(self, receiver: Receiver) -> None:
        unknown = {self.numbers[id] for id in receiver.unconfirmed}
        self._truth.maybe_completed |= unknown
        self._truth.completed |= (
            set(self.delivered) - unknown - {self.numbers[id] for id, _ in receiver.denied}
        )


async def hold_one(truth: Truth, connection: LoadConnection, node: Requests, chance: random.Random) -> None:
    """Accept a session, look at its state, complete some of its messages, set its state, close it."""
    holding = Holding(truth)
    receiver = await connection.receiver(
        truth.queue, session=None, wait=300, credit=chance.choice((1, 5, 50)), decide=holding.decide
    )
    due = truth.missing()  # the holder before has settled what it did
    session = receiver.session
    if session in truth.held:
        truth.faults.append(f"{session} has two holders")
    truth.held.add(session)
    truth.holdings += 1
    try:
        named: dict[str, object] = {"session-id": session}
        reply = await node.ask(named, {"operation": "com.microsoft:get-session-state"})
        assert isinstance(reply.value, dict), reply.application_properties
        state, possible = reply.value["session-state"], truth.possible_states(session)
        if state not in possible:
            truth.faults.append(f"the state of {session} is {state!r} and not one of {possible}")
        truth.states[session] = [state]
        with suppress(TimeoutError):
            await asyncio.wait_for(receiver.settled(chance.randrange(1, 30)), 0.05)
        if chance.random() < 0.7:
            new = b"state %d of %s" % (truth.holdings, session.encode())
            truth.states[session].append(new)
            await node.ask({**named, "session-state": new}, {"operation": "com.microsoft:set-session-state"})
            truth.states[session] = [new]
    finally:
        truth.held.discard(session)
        holding.check(session, due)
        if receiver.link is not None and not receiver.over:
            with suppress(TimeoutError, ConnectionOver):
                await asyncio.wait_for(receiver.until(lambda: not receiver.unconfirmed), 2)
            receiver.link.detach()
            connection.flush()
        holding.settle(receiver)


async def work(truth: Truth, port: int, chance: random.Random, until_empty: bool) -> None:
    connection = await connect(port)
    node = await connection.requests(f"{truth.queue}/$management")
    while not (until_empty and not truth.missing()):
        with suppress(LinkRefused):  # nothing was available in time
            await hold_one(truth, connection, node, chance)
    await connection.close()


async def send(truth: Truth, port: int) -> None:
    connection = await connect(port)
    base = truth.sent
    payload = session_payload(session_of)
    sender: Sender = await connection.sender(truth.queue, lambda number: payload(base + number), in_flight=60)
    sender.on_acknowledged = lambda first, count: truth.acknowledged.update(
        range(base + first, base + first + count)
    )
    try:
        while True:
            await sender.send(60)
            await asyncio.sleep(0.02)
    finally:
        truth.sent = base + sender.next
        assert sender.refused == []


async def round_of(server: Busbar, truths: list[Truth], chance: random.Random, after: float) -> None:
    tasks = [
        asyncio.create_task(work(truth, server.port, chance, until_empty=False))
        for truth in truths
        for _ in range(WORKERS)
    ]
    tasks += [asyncio.create_task(send(truth, server.port)) for truth in truths]
    await asyncio.sleep(after)
    await asyncio.to_thread(server.kill)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if not isinstance(result, ConnectionOver | OSError):
            raise AssertionError(f"seed {SEED}: {result!r}") from (
                result if isinstance(result, BaseException) else None
            )
    for truth in truths:
        truth.held.clear()


async def drain(server: Busbar, truths: list[Truth], chance: random.Random) -> None:
    tasks = [work(truth, server.port, chance, until_empty=True) for truth in truths for _ in range(WORKERS)]
    await asyncio.wait_for(asyncio.gather(*tasks), 30)


@pytest.mark.timeout(600 + 20 * ROUNDS)
@pytest.mark.req("S12")
def test_order_and_state_survive_kills(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    server = Busbar(tmp_path / "data", config_text(QUEUES))
    truths = [Truth(name) for name in QUEUES]
    began = time.monotonic()
    for _ in range(ROUNDS):
        server.start()
        asyncio.run(round_of(server, truths, chance, chance.uniform(0.2, 0.7)))
        for truth in truths:
            require_kept(f"BUSBAR_KILL_SEED={SEED}", truth.faults)
    server.start()
    try:
        asyncio.run(drain(server, truths, chance))
    finally:
        assert server.stop() == 0, server.error_text
    for truth in truths:
        print(
            f"{truth.queue}: {len(truth.acknowledged)} acknowledged, {len(truth.completed)} completed, "
            f"{len(truth.maybe_completed)} unknown, {truth.holdings} holdings, {time.monotonic() - began:.1f} s"
        )
        require_kept(f"BUSBAR_KILL_SEED={SEED}", truth.faults)
        require_kept(f"nothing acknowledged is lost, BUSBAR_KILL_SEED={SEED}", truth.missing())
        assert len(truth.completed) > 100 and truth.holdings > 20, "there was no load"
