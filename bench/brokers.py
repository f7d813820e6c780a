"""What broker processes bring and cost: throughput, and processor time of the controller and of its brokers.

The load is a cycle (send, receive, complete) of eight senders and eight receivers on a partitioned queue, with all in one
process and with two and four brokers. It runs first on this machine as it is. Then every process gets a processor that is
SLOWER times slower than this one's, as if each had a small machine to itself. On the machine as it is, the figures depend on
the free cores, and there is no budget. With slow processors the brokers are the bottleneck, so throughput has to grow with
them:

    2 brokers / 1 broker       at least 1.25
    4 brokers / 1 broker       at least 1.75
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop

from harness.amqp_driver import connect
from harness.faults.shims import build_shim
from harness.measured import rooms_are_compiled
from harness.processes import processor_seconds
from harness.serving import Busbar, config_text

BROKERS = (1, 2, 4)
ROUNDS = 3
MESSAGES, SLOW_MESSAGES = 48_000, 8_000
SLOWER = 12
CLIENTS = 8
IN_FLIGHT = 1_600
"""Of all senders together."""
BODY = b"x" * 1024
ASKED = {2: 1.25, 4: 1.75}


@dataclass(frozen=True, slots=True)
class Figures:
    rate: float
    serving: float
    """CPU-µs a message of the controller."""
    busiest: float
    """Of the broker with the most work."""
    total: float


async def cycle(server: Busbar, messages: int) -> Figures:
    """Send everything, then receive and complete everything: waits between the two are not measured."""
    share = IN_FLIGHT // CLIENTS
    connections = [await connect(server.port) for _ in range(2 * CLIENTS)]
    senders = [await one.sender("orders", in_flight=share, body=BODY) for one in connections[:CLIENTS]]
    processes = server.processes()
    before, began = [processor_seconds(one) for one in processes], time.monotonic()
    await asyncio.gather(*[sender.send(messages // CLIENTS) for sender in senders])
    receivers = [await one.receiver("orders", credit=share) for one in connections[CLIENTS:]]
    while sum(receiver.confirmed for receiver in receivers) < messages:
        await asyncio.sleep(0.005)
    took = time.monotonic() - began
    spent = [
        1e6 * (processor_seconds(one) - then) / messages for one, then in zip(processes, before, strict=True)
    ]
    if any(sender.refused for sender in senders) or any(receiver.denied for receiver in receivers):
        raise SystemExit("operations failed")
    for connection in connections:
        await connection.close()
    return Figures(messages / took, spent[0], max(spent[1:], default=0.0), sum(spent))


def measure(brokers: int, shim: Path | None) -> Figures:
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory:
        slow = Path(directory) / "slow"
        environment = {"SLOW_PROCESSOR": str(SLOWER), "SLOW_PROCESSOR_FILE": str(slow)}
        if shim is not None:
            environment["LD_PRELOAD"] = str(shim)
        server = Busbar(
            Path(directory) / "data",
            config_text({"orders": {"EnablePartitioning": True}}),
            arguments=("--brokers", str(brokers)),
            environment=environment,
        ).start()
        slow.touch()
        try:
            return uvloop.run(cycle(server, MESSAGES if shim is None else SLOW_MESSAGES))
        finally:
            slow.unlink()
            server.stop()


def compare(title: str, shim: Path | None) -> dict[int, float]:
    """Throughput with several brokers, relative to one: the medians of rounds, each of neighbours in time."""
    rounds: dict[int, list[Figures]] = {count: [] for count in BROKERS}
    for _ in range(ROUNDS):  # in turn: the machine is shared
        for count in BROKERS:
            rounds[count].append(measure(count, shim))
    print(f"{title:<34}{'cycle':>9}  {'CPU-µs a message: serving':>27}{'busiest broker':>17}{'all':>8}")
    for count, figures in rounds.items():
        found = min(figures, key=lambda one: one.total)
        rate = median(one.rate for one in figures)
        print(
            f"{count} broker{'s' if count > 1 else ' ':<26}{rate:>9,.0f}/s{found.serving:>27.1f}"
            f"{found.busiest:>17.1f}{found.total:>8.1f}"
        )
    return {
        count: median(many.rate / alone.rate for many, alone in zip(rounds[count], rounds[1], strict=True))
        for count in BROKERS[1:]
    }


def main() -> int:
    if not rooms_are_compiled():
        print("the compiled rooms are not built: the interpreted ones are measured")
    for count, ratio in compare(f"this machine, {os.cpu_count()} cores", None).items():
        print(f"  {count} to 1: throughput {ratio:.2f}")
    held = True
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory:
        shim = build_shim("slow_processor", Path(directory))
        for count, ratio in compare(f"processors {SLOWER} times slower", shim).items():
            missed = "" if ratio >= ASKED[count] else "  MISSED"
            held &= not missed
            print(f"  {count} to 1: throughput {ratio:.2f} (at least {ASKED[count]}){missed}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
