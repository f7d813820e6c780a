"""Several factories, and several queues: how much more they carry than one, with one process and with two brokers.

The load is a cycle (send, receive, complete) of busbar.client. The factories use one partitioned queue. The queues are
regular, and each has a factory of its own. All variants run in turn, and the best round of each counts. They run first on
this machine as it is. Then both brokers get a processor that is SLOWER times slower than this one's, as if each had a small
machine to itself. What limits the rate:

- As it is, the cores. The client and all processes of the server share them, so there is no budget.
- With slow processors, a factory uses the gateway of one broker, and a queue the store of one broker. So several factories
  and several queues have to give more. A queue is faster if its factory happens to be at the broker of its store. That is
  why there are many rounds. The figures need a machine without other load:

    2 factories / 1, 2 queues / 1       at least 1.2, with two brokers and slow processors
    4 factories / 1, 4 queues / 1       the same
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import uvloop

from busbar.client import MessagingFactory, OutgoingMessage, Receiver, encode
from harness.faults.shims import build_shim
from harness.measured import rooms_are_compiled
from harness.processes import broker_of
from harness.serving import Busbar, config_text

COUNTS = (1, 2, 4)
BROKERS = (1, 2)
ROUNDS, SLOW_ROUNDS = 3, 6
MESSAGES, SLOW_MESSAGES = 24_000, 12_000
SLOWER = 12
LEAST = 1.2
PAYLOAD = encode(OutgoingMessage(b"x" * 1024))
IN_FLIGHT = 500
"""Of each factory."""
CANDIDATES = [f"queue-{number}" for number in range(8)]

Rates = dict[tuple[int, str, int], list[float]]
"""Messages per second of each round, by brokers, what there are several of, and how many."""


class Remaining:
    """The number of messages that are still to be completed."""

    def __init__(self, count: int) -> None:
        self.count = count


async def cycle(connection_string: str, queues: Sequence[str], messages: int) -> float:
    """Messages per second, with one factory for each of the queues. A queue may be named several times."""
    share = messages // len(queues)
    async with AsyncExitStack() as stack:
        pairs = []
        for queue in queues:
            factory = await stack.enter_async_context(await MessagingFactory.connect(connection_string))
            pairs.append(
                (
                    await factory.sender(queue, in_flight=IN_FLIGHT),
                    await factory.receiver(queue, credit=IN_FLIGHT),
                )
            )
        left = Remaining(share * len(queues))
        began = time.perf_counter()
        await asyncio.gather(
            *[sender.send([PAYLOAD] * share) for sender, _ in pairs],
            *[complete(receiver, left) for _, receiver in pairs],
        )
        return share * len(queues) / (time.perf_counter() - began)


async def complete(receiver: Receiver, left: Remaining) -> None:
    while left.count:
        received = await receiver.receive(IN_FLIGHT, 0.05)
        await receiver.complete(received)
        left.count -= len(received)


@contextmanager
def servers(directory: Path, slow: Path) -> Iterator[dict[int, Busbar]]:
    """A server for each number of brokers. Their processors are slow while the file `slow` exists."""
    shim = build_shim("slow_processor", directory)
    environment = {
        "LD_PRELOAD": str(shim),
        "SLOW_PROCESSOR": str(SLOWER),
        "SLOW_PROCESSOR_FILE": str(slow),
    }
    config = config_text({queue: {} for queue in CANDIDATES} | {"partitioned": {"EnablePartitioning": True}})
    with ExitStack() as stack:
        started = {}
        for brokers in BROKERS:
            arguments = ("--brokers", str(brokers), "--stores", "4")
            data = directory / f"data-{brokers}"
            started[brokers] = Busbar(data, config, arguments=arguments, environment=environment).start()
            stack.callback(started[brokers].stop)
        yield started


def spread(server: Busbar) -> list[str]:
    """Queues of both brokers in turn."""
    by_broker: dict[str, list[str]] = {}
    for queue in CANDIDATES:
        by_broker.setdefault(broker_of(server, queue), []).append(queue)
    found = [queue for pair in zip(*by_broker.values(), strict=False) for queue in pair]
    if len(by_broker) < 2 or len(found) < max(COUNTS):
        raise SystemExit(f"the queues are not spread over the brokers: {by_broker}")
    return found


async def measure(started: dict[int, Busbar], queues: list[str], messages: int, rounds: int) -> Rates:
    rates: Rates = {}
    for _ in range(rounds):  # in turn: the machine is shared
        for brokers, server in started.items():
            for count in COUNTS:
                for what, used in (("factories", ["partitioned"] * count), ("queues", queues[:count])):
                    rate = await cycle(server.connection_string, used, messages)
                    rates.setdefault((brokers, what, count), []).append(rate)
    return rates


def ratio(rates: Rates, brokers: int, what: str, count: int) -> float:
    """How many times the rate of one: other programs of the machine only take time, so the best rounds are compared."""
    return max(rates[brokers, what, count]) / max(rates[brokers, what, 1])


def report(title: str, rates: Rates) -> None:
    print(f"\n{title:<40}{'1':>11}{'2':>11}{'4':>11}{'2 to 1':>10}{'4 to 1':>10}")
    for what in ("factories", "queues"):
        for brokers in dict.fromkeys(key[0] for key in rates):
            shown = "".join(f"{max(rates[brokers, what, count]):>9,.0f}/s" for count in COUNTS)
            ratios = "".join(f"{ratio(rates, brokers, what, count):>8.2f} x" for count in COUNTS[1:])
            where = "one process" if brokers == 1 else f"{brokers} brokers"
            print(f"{f'  {what}, {where}':<40}{shown}{ratios}", flush=True)


def main() -> int:
    if not rooms_are_compiled():
        print("the compiled rooms are not built: the interpreted ones are measured")
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory:
        slow = Path(directory) / "slow"
        with servers(Path(directory), slow) as started:
            queues = spread(started[max(BROKERS)])
            rates = uvloop.run(measure(started, queues, MESSAGES, ROUNDS))
            report(f"this machine, {os.cpu_count()} cores", rates)
            slow.touch()
            several = {max(BROKERS): started[max(BROKERS)]}
            rates = uvloop.run(measure(several, queues, SLOW_MESSAGES, SLOW_ROUNDS))
            slow.unlink()
            report(f"processors {SLOWER} times slower", rates)
    missed = [
        f"{count} {what} give less than {LEAST} times as much as one, with {max(BROKERS)} brokers"
        for what in ("factories", "queues")
        for count in COUNTS[1:]
        if ratio(rates, max(BROKERS), what, count) < LEAST
    ]
    for line in missed:
        print(line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
