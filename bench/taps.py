"""What taps cost the server: browsing compared with receiving and completing, and a tapped queue with an untapped one.

Unique bodies of 1 KiB, all through busbar.client, in another process than the server. Server CPU is that of all its threads.
Alternatives are measured in turn, and medians of ROUNDS count, since the machine is seldom quiet.

The budget: a browsed message costs at most BROWSE of one that is received and completed by a disposition of its own. The
client sends a thousand of these in one write, so a server can hardly do less for each. Also shown are the Azure SDK, which
waits for each answer, and completing by ranges. The last figures are what a tap adds to sends and completions, and the cost
of passing kept messages.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from statistics import median

from azure.servicebus.aio import ServiceBusClient

from busbar.client import MessagingFactory, OutgoingMessage, Receiver, Taps, encode
from harness.measured import MeasuredServer, measured_server, rooms_are_compiled

ROUNDS = 5
BACKLOG = 50_000
RECEIVED = 10_000
RECEIVED_BY_SDK = 1_000
BROWSE = 0.25
REST = 0.1
IDLE = 0.02
"""The share of a processor that an idle server may use."""
TAP = "bench"
SDK = "receive and complete, Azure SDK"
OWNER = "bench"
UNLIMITED = 1 << 40

Work = Callable[[], Awaitable[int]]
"""Does some work and returns its number of messages."""


class Bench:
    def __init__(self, server: MeasuredServer, factory: MessagingFactory) -> None:
        self._server = server
        self._factory = factory
        self._sent = 0

    async def send(self, queue: str, count: int) -> int:
        sender = await self._factory.sender(queue)
        for first in range(0, count, 2_000):
            messages = []
            for _ in range(min(2_000, count - first)):
                self._sent += 1
                message = OutgoingMessage(body=os.urandom(1024), message_id=str(self._sent))
                messages.append(encode(message))
            await sender.send(messages)
        await sender.close()
        return count

    async def receive(self, receiver: Receiver, count: int, *, one_by_one: bool = False) -> int:
        left = count
        while left:
            messages = await receiver.receive(min(1_000, left), 10)
            if one_by_one:
                await asyncio.gather(*(receiver.complete([message]) for message in messages))
            else:
                await receiver.complete(messages)
            left -= len(messages)
        return count

    async def receive_with_sdk(self) -> int:
        left = RECEIVED_BY_SDK
        client = ServiceBusClient.from_connection_string(self._server.busbar.connection_string)
        async with client, client.get_queue_receiver("sdk") as receiver:
            while left:
                for message in await receiver.receive_messages(min(100, left), 10):
                    await receiver.complete_message(message)
                    left -= 1
        return RECEIVED_BY_SDK

    async def receive_all(self, queue: str) -> int:
        async with await self._factory.receiver(queue) as receiver:
            return await self.receive(receiver, RECEIVED)

    async def browse(self, queue: str) -> int:
        taps = await self._factory.taps(queue)
        (state,) = (await taps.show(TAP)).fragments
        read = 0
        async for page in taps.pages(TAP, 0, state.position, state.end):
            read += page.count
        return read

    async def advance(self, taps: Taps) -> int:
        """Pass everything that was kept, and wait until it is deleted."""
        (state,) = (await taps.show(TAP)).fragments
        kept = state.kept
        await taps.advance(TAP, OWNER, {0: state.end})
        await taps.advance(TAP, OWNER, {0: state.event_end}, stream="events")
        while state.kept:
            await asyncio.sleep(0.01)
            (state,) = (await taps.show(TAP)).fragments
        return kept

    async def in_turn(self, works: dict[str, Work]) -> dict[str, float]:
        """The median of the CPU-µs of a message, for each of these."""
        spent: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(ROUNDS):
            for name, work in works.items():
                before = self._server.cpu_seconds()
                count = await work()
                spent[name].append((await self._at_rest() - before) * 1e6 / count)
        return {name: median(found) for name, found in spent.items()}

    async def _at_rest(self) -> float:
        """The server's CPU seconds when it has finished postponed work, which belongs to the measurement before."""
        last = self._server.cpu_seconds()
        while True:
            await asyncio.sleep(REST)
            now = self._server.cpu_seconds()
            if now - last < REST * IDLE:
                return last
            last = now


async def browsing(bench: Bench, factory: MessagingFactory) -> float:
    taps = await factory.taps("browsed")
    await taps.create(TAP, from_earliest=True, max_size=UNLIMITED)
    await bench.send("browsed", BACKLOG)
    await bench.send("sdk", ROUNDS * RECEIVED_BY_SDK)
    for queue in ("single", "ranges"):
        await bench.send(queue, ROUNDS * RECEIVED)
    await bench.browse("browsed")  # the first pages make the C library allocate large blocks
    single, ranges = await factory.receiver("single"), await factory.receiver("ranges")
    costs = await bench.in_turn(
        {
            "browse": lambda: bench.browse("browsed"),
            SDK: bench.receive_with_sdk,
            "receive and complete, one by one": lambda: bench.receive(single, RECEIVED, one_by_one=True),
            "receive and complete, in ranges": lambda: bench.receive(ranges, RECEIVED),
        }
    )
    await single.close()
    await ranges.close()
    browse = costs["browse"]
    for name, cost in costs.items():
        print(f"  {name:<36}{cost:>8.2f} CPU-µs/message; browse is {browse / cost:.3f} of it", flush=True)
    return browse / costs["receive and complete, one by one"]


async def keeping(bench: Bench, factory: MessagingFactory) -> None:
    for queue, events in (("tapped", False), ("recorded", True)):
        taps = await factory.taps(queue)
        await taps.create(TAP, events=events, owner=OWNER, max_size=UNLIMITED)
    works: dict[str, Work] = {}
    for queue in ("untapped", "tapped", "recorded"):
        works[f"send, {queue}"] = lambda queue=queue: bench.send(queue, RECEIVED)  # type: ignore[misc]
        works[f"complete, {queue}"] = lambda queue=queue: bench.receive_all(queue)  # type: ignore[misc]
        if queue != "untapped":
            passed = await factory.taps(queue)
            works[f"pass, {queue}"] = lambda taps=passed: bench.advance(taps)  # type: ignore[misc]
    costs = await bench.in_turn(works)
    untapped = sum(costs[f"{what}, untapped"] for what in ("send", "complete"))
    print(f"  {'':<20}{'send':>10}{'complete':>10}{'pass':>10}{'all':>10}  in CPU-µs/message", flush=True)
    for queue, name in (("untapped", "no tap"), ("tapped", "a tap"), ("recorded", "a tap with events")):
        parts = [costs.get(f"{what}, {queue}", 0.0) for what in ("send", "complete", "pass")]
        shown = "".join(f"{part:>10.2f}" for part in [*parts, sum(parts)])
        print(f"  {name:<20}{shown}  {sum(parts) / untapped:.2f} of no tap", flush=True)


async def measure(server: MeasuredServer) -> float:
    factory = await MessagingFactory.connect(server.busbar.connection_string)
    bench = Bench(server, factory)
    ratio = await browsing(bench, factory)
    await keeping(bench, factory)
    await factory.close()
    return ratio


def main() -> int:
    names = ("browsed", "sdk", "single", "ranges", "untapped", "tapped", "recorded")
    with measured_server({name: {"LockDuration": "PT5M"} for name in names}) as server:
        ratio = asyncio.run(measure(server))
    if not rooms_are_compiled():
        print(
            "\nthe compiled rooms are not built: the interpreted ones were measured, and nothing is asked of them"
        )
        return 0
    if ratio > BROWSE:
        print(f"\nover the budget: {ratio:.3f}, not {BROWSE}")
    return 0 if ratio <= BROWSE else 1


if __name__ == "__main__":
    sys.exit(main())
