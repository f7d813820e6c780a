"""Busbar beside other servers that keep messages durably: Redis, RabbitMQ, NATS JetStream and PostgreSQL.

    python -m bench.peers [--seconds 120] [--directory DIR]

Every server syncs before it acknowledges. Messages have 1 KiB; a client of ours pipelines (harness/peers/). The loads:

    steady state      send, receive and settle, with 1,000 messages in flight
    one in flight     one message is sent, received and settled before the next
    batches of 100    as the steady state, sent in batches
    backlog in, out   send without a receiver, then receive and settle everything

Rounds of all servers alternate, and medians count. Each ratio is Busbar's figure to that of the peer: above 1 is better for
messages a second, below 1 for CPU time. CPU time is that of all processes of the server. A rate with an asterisk is that of
a client that was busy, not of the server. A server that this machine has not, and cannot get, is left out, with the reason.
There is no budget: the exit code is 0.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import uvloop

from harness.cycle import Cost, Meter, send_for
from harness.measured import rooms_are_compiled
from harness.peers.busbar import BusbarPeer
from harness.peers.client import Peer
from harness.peers.nats import Nats
from harness.peers.packages import Unavailable
from harness.peers.postgresql import Postgresql
from harness.peers.rabbitmq import Rabbitmq
from harness.peers.redis import Redis
from harness.postgresql import remove_shared

SECONDS = 120.0
ROUNDS = 3
PARTS = 4  # the backlog takes the time of one of them
IN_FLIGHT = 1_000
BATCH = 100
WARM_UP = 20
BUSY = 0.9
PEERS: tuple[Callable[[Path], Peer], ...] = (Redis, Rabbitmq, Nats, Postgresql)


@dataclass(frozen=True, slots=True)
class Measured:
    cost: Cost
    client: float
    """The share of the time in which the client was busy."""

    @property
    def rate(self) -> float:
        return self.cost.messages / self.cost.seconds


class Round:
    """Measures one load of one server."""

    def __init__(self, peer: Peer) -> None:
        self._meter = Meter(peer)
        self._client = time.process_time()

    def end(self, what: str, messages: int) -> Measured:
        cost = self._meter.cost(what, messages)
        return Measured(cost, (time.process_time() - self._client) / cost.seconds)


async def steady(peer: Peer, seconds: float, batch: int, what: str) -> list[Measured]:
    receiver = await peer.receiver(IN_FLIGHT)
    sender = await peer.sender(IN_FLIGHT, batch)
    await sender.send(2 * IN_FLIGHT)
    await receiver.settled(2 * IN_FLIGHT)
    running = Round(peer)
    await send_for(sender, seconds)
    await receiver.settled(sender.acknowledged)
    return [running.end(what, sender.acknowledged - 2 * IN_FLIGHT)]


async def one_in_flight(peer: Peer, seconds: float) -> list[Measured]:
    receiver, sender = await peer.receiver(1), await peer.sender(1, 1)
    for number in range(WARM_UP):
        await sender.send(1)
        await receiver.settled(number + 1)
    running, until = Round(peer), time.monotonic() + seconds
    while time.monotonic() < until:
        await sender.send(1)
        await receiver.settled(sender.acknowledged)
    return [running.end("one in flight", sender.acknowledged - WARM_UP)]


async def backlog(peer: Peer, seconds: float) -> list[Measured]:
    sender = await peer.sender(IN_FLIGHT, 1)
    running = Round(peer)
    await send_for(sender, seconds / 2)
    found = [running.end("backlog in", sender.acknowledged)]
    running = Round(peer)
    receiver = await peer.receiver(IN_FLIGHT)
    await receiver.settled(sender.acknowledged)
    return [*found, running.end("backlog out", sender.acknowledged)]


async def measure(peer: Peer, seconds: float) -> list[Measured]:
    """All loads, one after the other, each with connections of its own. The queue is empty after each."""
    found: list[Measured] = []
    loads = (
        partial(steady, batch=1, what="steady state"),
        one_in_flight,
        partial(steady, batch=BATCH, what=f"batches of {BATCH}"),
        backlog,
    )
    for load in loads:
        found += await load(peer, seconds)
        await peer.close()
    return found


@contextlib.contextmanager
def running_peers(directory: Path | None) -> Iterator[list[Peer]]:
    """Busbar, then the peers that this machine has or can get."""
    with contextlib.ExitStack() as stack:
        started: list[Peer] = []
        for make in (BusbarPeer, *PEERS):
            own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="busbar-peer-", dir=directory)))
            try:
                peer = make(own)
                peer.start()
            except (Unavailable, RuntimeError) as reason:
                print(f"not measured: {make.__name__}: {reason}", flush=True)
                continue
            stack.callback(peer.stop)
            started.append(peer)
        yield started


Rounds = dict[str, list[Measured]]
"""The rounds of each load."""


def compare(peers: list[Peer], seconds: float) -> dict[str, Rounds]:
    found: dict[str, Rounds] = {peer.name: {} for peer in peers}
    for number in range(ROUNDS):
        for peer in peers if number % 2 == 0 else reversed(peers):
            for measured in uvloop.run(measure(peer, seconds)):
                found[peer.name].setdefault(measured.cost.what, []).append(measured)
    return found


def report(found: dict[str, Rounds]) -> None:
    own = found.pop(BusbarPeer.name)
    for load, rounds in own.items():
        print(f"\n{load:<22}{'msg/s':>10}{'ratio':>10}{'CPU-µs/msg':>14}{'ratio':>8}")
        rate, cpu = _row(BusbarPeer.name, rounds)
        print()
        for name, loads in found.items():
            their_rate, their_cpu = _row(name, loads[load], rate, cpu)
            print(f"{rate / their_rate:>9.2f}{their_cpu:>14.1f}{cpu / their_cpu:>8.2f}")


def _row(name: str, rounds: list[Measured], *own: float) -> tuple[float, float]:
    rate = median(one.rate for one in rounds)
    cpu = median(one.cost.cpu_us for one in rounds)
    mark = "*" if median(one.client for one in rounds) > BUSY else " "
    print(f"  {name:<20}{rate:>10,.0f}{mark}", end="" if own else f"{'':>9}{cpu:>14.1f}")
    return rate, cpu


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="how long all loads take together")
    arguments.add_argument("--directory", type=Path, default=None, help="where to write (a real disk)")
    given = arguments.parse_args()
    if not rooms_are_compiled():
        print("the compiled rooms are not built: Busbar is measured interpreted, at a fraction of its speed")
    print(f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, ", end="")
    print(f"load {os.getloadavg()[0]:.1f} before the run", flush=True)
    try:
        with running_peers(given.directory) as peers:
            found = compare(peers, given.seconds / (len(peers) * ROUNDS * PARTS))
    finally:
        remove_shared()
    report(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
