"""Express queues against durable ones: senders that wait for each acknowledgement, and the full cycle.

    python -m bench.express [--seconds 4]

The first rows are one sender and 20 senders. Each has a connection of its own and one message in flight. The last row is one
client that sends a message, receives it and completes it, again and again. Columns: messages per second, the median time of
each, messages per sync. The ratio is express to durable. It must be at least ONE for a lone sender and CYCLE for the cycle,
where every step of a durable queue waits for the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time

import uvloop

from harness.amqp_driver import Sender, connect
from harness.cycle import Meter
from harness.measured import MeasuredServer, measured_server, rooms_are_compiled

BODY = b"x" * 256
ONE = 1.5
CYCLE = 2.0
QUEUES: dict[str, dict[str, object]] = {"express": {"EnableExpress": True}, "durable": {}}


async def _send_one_by_one(sender: Sender, until: float, times: list[float]) -> None:
    while (began := time.perf_counter()) < until:
        await sender.send(1)
        times.append(time.perf_counter() - began)


async def sends(server: MeasuredServer, queue: str, senders: int, seconds: float) -> float:
    """Messages per second of so many senders. A receiver takes them all, so that none stays."""
    connections = [await connect(server.busbar.port) for _ in range(senders)]
    links = [await connection.sender(queue, in_flight=1, body=BODY) for connection in connections]
    reading = await connect(server.busbar.port)
    await reading.receiver(queue, delete=True)
    for link in links:
        await link.send(1)
    times: list[float] = []
    meter = Meter(server)
    until = time.perf_counter() + seconds
    await asyncio.gather(*[_send_one_by_one(link, until, times) for link in links])
    rate = _print(f"{senders} senders", queue, meter, times)
    for connection in (*connections, reading):
        await connection.close()
    return rate


async def cycles(server: MeasuredServer, queue: str, seconds: float) -> float:
    """Cycles per second of one client: send, receive, complete."""
    connection = await connect(server.busbar.port)
    sender = await connection.sender(queue, in_flight=1, body=BODY)
    receiver = await connection.receiver(queue, credit=1)
    times: list[float] = []
    done = 0
    meter = Meter(server)
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        done += 1
        await sender.send(1)
        await receiver.settled(done)
        times.append(time.perf_counter() - began)
    rate = _print("cycle", queue, meter, times)
    await connection.close()
    return rate


def _print(what: str, queue: str, meter: Meter, times: list[float]) -> float:
    cost = meter.cost(what, len(times))
    per_sync = "" if cost.syncs is None else f"{cost.messages / max(1, cost.syncs):>9.1f} messages/sync"
    print(
        f"{what:<12}{queue:<9}{cost.messages / cost.seconds:>8,.0f}/s{statistics.median(times) * 1000:>8.2f} ms"
        f"{per_sync}{cost.cpu_us:>8,.0f} CPU-µs/message",
        flush=True,
    )
    return cost.messages / cost.seconds


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    seconds = parser.parse_args().seconds
    ratios = {}
    with measured_server(QUEUES, interpreted=not rooms_are_compiled()) as server:
        for senders in (1, 20):
            rates = [uvloop.run(sends(server, queue, senders, seconds)) for queue in QUEUES]
            ratios[f"{senders} senders"] = rates[0] / rates[1]
        rates = [uvloop.run(cycles(server, queue, seconds)) for queue in QUEUES]
        ratios["cycle"] = rates[0] / rates[1]
    for what, ratio in ratios.items():
        print(f"{what:<12}express is {ratio:.2f} times durable")
    return 0 if ratios["1 senders"] >= ONE and ratios["cycle"] >= CYCLE else 1


if __name__ == "__main__":
    sys.exit(main())
