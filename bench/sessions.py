"""Message sessions: throughput with 1, 100 and 100,000 of them, and how long an accept takes among a million.

Throughput is measured on a backlog of 1 KiB messages, spread over the sessions. Workers, each with a connection of its own,
accept the next available session, receive and complete its messages, and close it. Sending is measured too. The ratio is to
the messages completed with one session, which is one worker. With 100,000 sessions each message costs an accept and a close
as well. A measurement ends after SECONDS and reports how far it came.

An accept of the next available session reads nothing that grows with the number of waiting sessions. With a million of them
it may take twice as long as with a thousand. The fragment's own machine writes the million into the store of a stopped
server.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from busbar.fragment.machine import Fragment
from busbar.message.parsing import parse_message
from busbar.model.commands import Send
from busbar.model.settings import FragmentSettings
from busbar.store.sqlite.store import SqliteStore
from harness.amqp_driver import LinkRefused, Receiver, connect, session_payload
from harness.measured import MeasuredServer, measured_server, rooms_are_compiled
from harness.serving import Busbar, config_text

BODY = b"x" * 1024
WORKERS = 32
THROUGHPUTS = ((1, 40_000), (100, 40_000), (100_000, 100_000))
"""The number of sessions, and the number of messages in all."""
KINDS = ("regular", "partitioned")
SECONDS = 90.0
WAITING = (1_000, 1_000_000)
ACCEPTS = 200
ROUNDS = 4
RATIO = 2.0
QUEUE = {"RequiresSession": True, "MaxSizeInMegabytes": 5120}


async def throughput(server: MeasuredServer, kind: str, sessions: int, messages: int) -> tuple[float, float]:
    """Messages completed per second, and the server's CPU-µs for each."""
    queue = f"{kind}-{sessions}"
    port = server.busbar.port
    connection = await connect(port)
    sender = await connection.sender(queue, session_payload(lambda n: f"session-{n % sessions}", BODY))
    began = time.perf_counter()
    await sender.send(messages)
    sending = time.perf_counter() - began
    assert not sender.refused, sender.refused[:3]
    backlog = Backlog(messages, messages // sessions)
    cpu, syncs = server.cpu_seconds(), server.syncs()
    began = time.perf_counter()
    workers = [asyncio.create_task(work(port, queue, backlog)) for _ in range(min(WORKERS, sessions))]
    _, late = await asyncio.wait(workers, timeout=SECONDS)
    receiving = time.perf_counter() - began
    cpu_us = (server.cpu_seconds() - cpu) * 1e6 / max(1, backlog.completed)
    synced = (server.syncs() or 0) - (syncs or 0)
    for worker in late:
        worker.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    await connection.close()
    for worker in workers:
        if worker not in late:
            worker.result()
    print(
        f"{kind:<12}{sessions:>8,} sessions{messages / sending:>9,.0f} sent/s"
        f"{backlog.completed / receiving:>9,.0f} completed/s"
        f"{backlog.accepts / receiving:>8,.0f} accepts/s{cpu_us:>7,.0f} CPU-µs/message"
        f"{backlog.completed / max(1, synced):>8,.1f} messages/sync"
        + (f"  (after {SECONDS:.0f} s, {backlog.left:,} were left)" if late else ""),
        flush=True,
    )
    return backlog.completed / receiving, cpu_us


class Backlog:
    def __init__(self, messages: int, each: int) -> None:
        self.left = messages
        self.each = each
        self.completed = 0
        self.accepts = 0


async def work(port: int, queue: str, backlog: Backlog) -> None:
    connection = await connect(port)
    while backlog.left > 0:
        with suppress(LinkRefused):
            receiver = await connection.receiver(queue, session=None, wait=200, credit=1_000)
            backlog.accepts += 1
            await receiver.settled(backlog.each)
            backlog.completed += backlog.each
            backlog.left -= backlog.each
            leave(receiver)
    await connection.close()


def leave(receiver: Receiver) -> None:
    assert receiver.link is not None
    receiver.link.detach()
    receiver.connection.flush()


async def accept_latency(port: int, queue: str) -> float:
    """The median time of an accept, in ms. The session is closed again and goes to the end of the line."""
    connection = await connect(port)
    times = []
    for _ in range(ACCEPTS):
        began = time.perf_counter()
        receiver = await connection.receiver(queue, session=None, credit=0)
        times.append((time.perf_counter() - began) * 1000)
        leave(receiver)
    await connection.close()
    return statistics.median(times)


async def send_one(port: int, queue: str) -> None:
    """Send one message, so that the queue's fragment has been written once."""
    connection = await connect(port)
    sender = await connection.sender(queue, session_payload(lambda _n: "first"))
    await sender.send(1)
    await connection.close()


def fill(data: Path, count: int) -> None:
    """Write one message in each of so many sessions, in the store of the only queue of a stopped server."""
    for path in sorted(data.glob("store-*.db")):
        store = SqliteStore(path)
        store.claim()
        heads = store.heads()
        if heads:
            break
        store.close()
    head = heads[0]
    settings = FragmentSettings(60_000, 10, 0, False, 0, True, True, requires_session=True)
    machine = Fragment(head.fragment, settings, head, 0, [])
    payload = session_payload(lambda n: f"session-{n:08}", b"x" * 64)
    now = time.time_ns() // 1_000_000
    for first in range(0, count, 1_000):
        drafts = [
            parse_message(encoded, 0, len(encoded), str(number), 128)
            for number in range(first, first + 1_000)
            for encoded in (payload(number),)
        ]
        command = Send(head.fragment, 1, 1, drafts, False)
        reads = machine.needs(command, now)
        if reads:
            store.read(head.fragment, reads)
            machine.supply(reads)
        machine.apply(command, now, 1)
        machine.take_effects()
        changes = machine.take_changes()
        if changes is not None:
            store.commit([changes])
    store.close()


def latencies(directory: Path, environment: dict[str, str]) -> list[float]:
    """The median accept in ms for each of WAITING; the best of ROUNDS, taken in turn, since the machine is shared."""
    servers = []
    best = [float("inf")] * len(WAITING)
    try:
        for count in WAITING:
            server = Busbar(directory / str(count), config_text({"q": QUEUE}), environment=environment)
            server.start()
            uvloop.run(send_one(server.port, "q"))
            server.stop()
            fill(server.data, count)
            servers.append(server.start())
        for _ in range(ROUNDS):
            for index, server in enumerate(servers):
                best[index] = min(best[index], uvloop.run(accept_latency(server.port, "q")))
        for count, latency, server in zip(WAITING, best, servers, strict=True):
            memory = server.resident_bytes() / 1024 / 1024
            print(
                f"{count:>9,} sessions wait: an accept takes {latency:.2f} ms; {memory:.0f} MB of memory",
                flush=True,
            )
    finally:
        for server in servers:
            server.stop()
    return best


def throughputs(interpreted: bool) -> None:
    queues = {
        f"{kind}-{sessions}": {**QUEUE, "EnablePartitioning": kind == "partitioned"}
        for kind in KINDS
        for sessions, _ in THROUGHPUTS
    }
    with measured_server(queues, interpreted=interpreted) as server:
        for kind in KINDS:
            rows = [
                uvloop.run(throughput(server, kind, sessions, messages)) for sessions, messages in THROUGHPUTS
            ]
            (rate_of_one, cpu_of_one), *_ = rows
            for (sessions, _), (rate, cpu) in zip(THROUGHPUTS[1:], rows[1:], strict=True):
                print(
                    f"{kind:<12}{sessions:>8,} sessions to one: {rate / rate_of_one:.2f} times the throughput, "
                    f"{cpu / cpu_of_one:.1f} times the CPU"
                )


def main() -> int:
    compiled = rooms_are_compiled()
    environment = {} if compiled else {"BUSBAR_INTERPRETED": "1"}
    throughputs(not compiled)
    with TemporaryDirectory(prefix="busbar-bench-") as directory:
        few, many = latencies(Path(directory), environment)
    ratio = many / few
    print(f"{'ratio':>18}: {ratio:.2f}")
    if ratio > RATIO:
        print(f"\nover the budget: with {WAITING[1]:,} sessions an accept may take {RATIO} times as long")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
