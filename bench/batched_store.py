"""Batched store access: sends of 1 and of 100 senders, with EnableBatchedOperations on and off.

    python -m bench.batched_store [--seconds 4]

Each sender has a connection of its own and one message in flight, so it waits for each acknowledgement. Columns: messages
per second, the median time of a send, messages per sync. The ratio is on to off. A lone sender must not be slower with
batching (LONE): its write waits for no other. With 100 senders, batching must give at least MANY times as much.
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

SENDERS = (1, 100)
BODY = b"x" * 256
LONE = 0.6
MANY = 1.5
QUEUES: dict[str, dict[str, object]] = {"on": {}, "off": {"EnableBatchedOperations": False}}


async def _send_one_by_one(sender: Sender, until: float, times: list[float]) -> None:
    while True:
        began = time.perf_counter()
        if began > until:
            return
        await sender.send(1)
        times.append(time.perf_counter() - began)


async def rate(server: MeasuredServer, queue: str, senders: int, seconds: float) -> float:
    """Messages per second of so many senders; prints a row."""
    connections = [await connect(server.busbar.port) for _ in range(senders)]
    links = [await connection.sender(queue, in_flight=1, body=BODY) for connection in connections]
    for link in links:
        await link.send(1)
    times: list[float] = []
    meter = Meter(server)
    until = time.perf_counter() + seconds
    await asyncio.gather(*[_send_one_by_one(link, until, times) for link in links])
    cost = meter.cost(queue, len(times))
    for connection in connections:
        await connection.close()
    per_sync = "" if not cost.syncs else f"{cost.messages / cost.syncs:>8.1f} messages/sync"
    print(
        f"{senders:>4} senders, {queue:<4}{cost.messages / cost.seconds:>8,.0f}/s"
        f"{statistics.median(times) * 1000:>8.2f} ms{per_sync}{cost.cpu_us:>8,.0f} CPU-µs/message",
        flush=True,
    )
    return cost.messages / cost.seconds


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    seconds = parser.parse_args().seconds
    failed = False
    with measured_server(QUEUES, interpreted=not rooms_are_compiled()) as server:
        for senders, least in zip(SENDERS, (LONE, MANY), strict=True):
            on, off = (uvloop.run(rate(server, queue, senders, seconds)) for queue in QUEUES)
            print(f"{senders:>4} senders: on is {on / off:.2f} times off (at least {least})", flush=True)
            failed = failed or on / off < least
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
