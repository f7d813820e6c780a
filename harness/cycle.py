"""Measures what messages cost a server: meters, and the measured loads (send, receive, the full cycle).

Clients pipeline on connections of their own, in another process than the server. A load that runs for a time warms up with
twice its number of messages in flight, which are not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from harness.amqp_driver import Payload, Receiver, Sender, connect
from harness.measured import MeasuredServer

BODY = b"x" * 1024
WITHOUT_END = 1 << 30


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a number of messages at the server."""

    what: str
    messages: int
    seconds: float
    cpu_seconds: float
    syncs: int | None

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds * 1e6 / max(1, self.messages)


class Spending(Protocol):
    """A server whose expenses can be read."""

    def cpu_seconds(self) -> float: ...

    def syncs(self) -> int | None: ...


class Sending(Protocol):
    """A sender that keeps a number of messages unanswered."""

    outstanding: int
    acknowledged: int

    def start(self, count: int) -> None: ...

    def stop(self) -> None: ...

    async def send(self, count: int) -> None: ...

    async def until(self, condition: Callable[[], bool]) -> None: ...


class Meter:
    """Measures what the server spends between two moments."""

    def __init__(self, server: Spending) -> None:
        self._server = server
        self._began = time.monotonic()
        self._cpu = server.cpu_seconds()
        self._syncs = server.syncs()

    def cost(self, what: str, messages: int) -> Cost:
        syncs = self._server.syncs()
        spent = None if syncs is None or self._syncs is None else syncs - self._syncs
        seconds = time.monotonic() - self._began
        return Cost(what, messages, seconds, self._server.cpu_seconds() - self._cpu, spent)


async def sending(
    server: MeasuredServer,
    queue: str,
    in_flight: int,
    seconds: float,
    *,
    batch: int = 1,
    payload: Payload | None = None,
    what: str = "send",
) -> Cost:
    """Send for a time, `batch` messages in a transfer."""
    connection = await connect(server.busbar.port)
    sender = await connection.sender(queue, payload, in_flight=in_flight, batch=batch, body=BODY)
    await sender.send(2 * in_flight)
    meter, before = Meter(server), sender.acknowledged
    await send_for(sender, seconds)
    cost = meter.cost(what, sender.acknowledged - before)
    require_success(sender)
    await connection.close()
    return cost


async def draining(
    server: MeasuredServer, queue: str, in_flight: int, count: int, *, what: str = "receive"
) -> Cost:
    """Receive and settle a backlog of that many messages, which were sent before and are not counted."""
    connection = await connect(server.busbar.port)
    sender = await connection.sender(queue, in_flight=5_000, body=BODY)
    await sender.send(count)
    await connection.close()
    connection = await connect(server.busbar.port)
    meter = Meter(server)
    receiver = await connection.receiver(queue, credit=in_flight)
    await receiver.settled(count)
    cost = meter.cost(what, count)
    require_success(receiver)
    await connection.close()
    return cost


async def cycling(
    server: MeasuredServer,
    queue: str,
    in_flight: int,
    seconds: float,
    *,
    payload: Payload | None = None,
    what: str = "cycle",
) -> Cost:
    """Run a sender and a receiver at once, each on its own connection; settled messages are counted."""
    sending_side, receiving_side = await connect(server.busbar.port), await connect(server.busbar.port)
    receiver = await receiving_side.receiver(queue, credit=in_flight)
    sender = await sending_side.sender(queue, payload, in_flight=in_flight, body=BODY)
    await sender.send(2 * in_flight)
    await receiver.settled(2 * in_flight)
    meter, before = Meter(server), receiver.confirmed
    await send_for(sender, seconds)
    await receiver.settled(sender.acknowledged)
    cost = meter.cost(what, receiver.confirmed - before)
    require_success(sender)
    require_success(receiver)
    await sending_side.close()
    await receiving_side.close()
    return cost


async def send_for(sender: Sending, seconds: float) -> None:
    """Send without a pause for a time; returns when all messages are answered."""
    sender.start(WITHOUT_END)
    await asyncio.sleep(seconds)
    sender.stop()
    await sender.until(lambda: sender.outstanding == 0)


def require_success(end: Sender | Receiver) -> None:
    failed = end.refused if isinstance(end, Sender) else end.denied
    if failed:
        raise SystemExit(f"{len(failed)} operations failed, the first with {failed[0][1]}")
