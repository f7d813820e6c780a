"""What broker processes bring and cost: throughput, and processor time of the serving process and of its brokers.

The same cycle (send, receive, complete) on a partitioned queue, with all in one process and with two and four brokers. How
many messages a second that gives depends on the cores that are free; processor time for each message does not, and says
where the next limit is: the busiest process. Nothing is asked of the figures here.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.load import connect
from bench.measured import rooms_are_compiled
from tests.serving import Busbar, config_text

BROKERS = (1, 2, 4)
ROUNDS = 3
SECONDS = 2.0
IN_FLIGHT = 1_000
BODY = b"x" * 1024
WITHOUT_END = 1 << 30


@dataclass(frozen=True, slots=True)
class Figures:
    rate: float
    serving: float
    """CPU-µs a message of the serving process."""
    busiest: float
    """Of the broker that had most to do."""
    total: float


def processes_of(server: Busbar) -> list[int]:
    """The serving process, then its brokers."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return [server.pid, *map(int, children.split())]


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def cycle(server: Busbar) -> Figures:
    sending, receiving = await connect(server.port), await connect(server.port)
    receiver = await receiving.receiver("orders", credit=IN_FLIGHT)
    sender = await sending.sender("orders", in_flight=IN_FLIGHT, body=BODY)
    await sender.send(2 * IN_FLIGHT)
    await receiver.settled(2 * IN_FLIGHT)
    processes = processes_of(server)
    before, began, confirmed = (
        [processor_seconds(one) for one in processes],
        time.monotonic(),
        receiver.confirmed,
    )
    sender.start(WITHOUT_END)
    await asyncio.sleep(SECONDS)
    sender.stop()
    await sender.until(lambda: sender.outstanding == 0)
    await receiver.settled(sender.acknowledged)
    took, messages = time.monotonic() - began, receiver.confirmed - confirmed
    spent = [
        1e6 * (processor_seconds(one) - then) / messages for one, then in zip(processes, before, strict=True)
    ]
    if sender.refused or receiver.denied:
        raise SystemExit("operations failed")
    await sending.close()
    await receiving.close()
    return Figures(messages / took, spent[0], max(spent[1:], default=0.0), sum(spent))


def main() -> int:
    best: dict[int, Figures] = {}
    for _ in range(ROUNDS):  # in turn: the machine is shared
        for count in BROKERS:
            with tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory:
                queues = {"orders": {"EnablePartitioning": True}}
                server = Busbar(
                    Path(directory) / "data", config_text(queues), arguments=("--brokers", str(count))
                ).start()
                try:
                    found = uvloop.run(cycle(server))
                finally:
                    server.stop()
            if count not in best or found.total < best[count].total:
                best[count] = found
    print(f"{'':<12}{'cycle':>11}{'CPU-µs a message: serving':>29}{'busiest broker':>17}{'all':>8}")
    for count, found in best.items():
        print(
            f"{count} broker{'s' if count > 1 else ' ':<4}{found.rate:>9,.0f}/s{found.serving:>29.1f}"
            f"{found.busiest:>17.1f}{found.total:>8.1f}"
        )
    alone = best[1]
    for count in BROKERS[1:]:
        limit = max(best[count].serving, best[count].busiest)
        print(
            f"{count} to 1: throughput {best[count].rate / alone.rate:.2f}, busiest process {limit / alone.total:.2f}, "
            f"all together {best[count].total / alone.total:.2f}   ({os.cpu_count()} cores)"
        )
    if not rooms_are_compiled():
        print("the compiled rooms are not built: the interpreted ones were measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
