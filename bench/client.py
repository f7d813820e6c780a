"""Client library: CPU per message against azure-servicebus, client-side batching, prefetching, and receive modes.

The server is another process, so the CPU time of this process is the client's. Both clients run the same programs, on plain
asyncio, with bodies of 1 KiB: send messages one by one, receive up to 100 messages and complete them one by one. Senders of
the vendor's client are not made for concurrent use, so its client makes one call after the other. busbar.client is measured
- with CALLERS concurrent calls, with batching and without: without, each message and each completion has a frame of its own;
- with one call after the other. Then most of the CPU time is the kernel's, for a write and a read of a few bytes by call.

A cycle is a send, a receive and a completion. Requirements, as ratios in one run: with concurrent calls the client takes a
tenth of the CPU of the vendor's with batching and a fifth without. Many small senders are compared with senders whose calls
share nothing: that of the vendor's client, and one of ours that waits for each answer. With batching they send at least
APART times as many messages. They send THROUGHPUT times as many as without batching. It is not APART times, since calls of
one turn share a write and a commit in any case. What batching saves then is CPU time, whose ratio is printed. A larger cache
is not slower, and neither is ReceiveAndDelete, which needs no settlement.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from busbar.client import MessagingFactory, OutgoingMessage, Received
from harness.measured import measured_server, rooms_are_compiled

BODY = b"x" * 1024
VENDOR_MESSAGES = 1_500
MESSAGES = 6_000
MANY = 20_000
CALLERS = 200
SMALL_SENDERS = 2_000
WITH_BATCHING, WITHOUT_BATCHING, THROUGHPUT, APART = 10.0, 5.0, 1.5, 3.0
LONE_MESSAGES = 1_000
PREFETCHES = (0, 10, 600)
ROUNDS = 3


@dataclass(frozen=True)
class Measured:
    """CPU of this process for each message, and messages per second."""

    cpu_us: float
    rate: float


async def measure(count: int, work: Callable[[], Awaitable[None]]) -> Measured:
    cpu, began = time.process_time(), time.perf_counter()
    await work()
    seconds = time.perf_counter() - began
    return Measured((time.process_time() - cpu) * 1e6 / count, count / seconds)


async def vendor(connection_string: str, queue: str) -> tuple[Measured, Measured]:
    """Send, and receive with completion, by the vendor's asynchronous client."""
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)

        async def send(count: int) -> None:
            for _ in range(count):
                await sender.send_messages(ServiceBusMessage(BODY))

        async def receive(count: int) -> None:
            while count:
                for message in await receiver.receive_messages(max_message_count=100, max_wait_time=10):
                    await receiver.complete_message(message)
                    count -= 1

        await send(100)
        await receive(100)
        sending = await measure(VENDOR_MESSAGES, lambda: send(VENDOR_MESSAGES))
        receiving = await measure(VENDOR_MESSAGES, lambda: receive(VENDOR_MESSAGES))
        await sender.close()
        await receiver.close()
    return sending, receiving


async def ours(
    connection_string: str, queue: str, interval: float, callers: int
) -> tuple[Measured, Measured]:
    """Send, and receive with completion, by busbar.client with so many concurrent calls."""
    async with MessagingFactory(connection_string, batch_flush_interval=interval) as factory:
        client = factory.queue_client(queue)

        async def send(count: int) -> None:
            for _ in range(count):
                await client.send_messages(OutgoingMessage(BODY))

        async def complete(messages: list[Received]) -> None:
            for message in messages:
                await client.complete_message(message)

        async def receive(count: int) -> None:
            while count:
                messages = await client.receive_messages(max(100, callers), 10)
                count -= len(messages)
                if callers == 1:
                    await complete(messages)
                else:
                    await asyncio.gather(*[complete([message]) for message in messages])

        async def send_all(count: int) -> None:
            await asyncio.gather(*[send(count // callers) for _ in range(callers)])

        warm_up = 2 * callers if callers > 1 else 100
        await send_all(warm_up)
        await receive(warm_up)
        count = MANY if callers > 1 else MESSAGES
        sending = await measure(count, lambda: send_all(count))
        receiving = await measure(count, lambda: receive(count))
    return sending, receiving


async def sending_rate(
    connection_string: str, queue: str, interval: float, senders: int = SMALL_SENDERS, count: int = MANY
) -> Measured:
    """Many small senders: concurrent calls of one client, each with a message of a few bytes."""
    async with MessagingFactory(connection_string, batch_flush_interval=interval) as factory:
        sender = factory.message_sender(queue)

        async def send(count: int) -> None:
            for _ in range(count):
                await sender.send_messages(OutgoingMessage(b"small"))

        async def send_all(count: int) -> None:
            await asyncio.gather(*[send(count // senders) for _ in range(senders)])

        await send_all(2 * senders)
        return await measure(count, lambda: send_all(count))


async def prefetching(connection_string: str, queue: str, prefetch_count: int) -> Measured:
    """Receive one message at a time from a backlog and delete it."""
    async with MessagingFactory(connection_string) as factory:
        sender = factory.message_sender(queue)
        for _ in range(10):
            await sender.send_messages([OutgoingMessage(BODY) for _ in range(MESSAGES // 10)])
        receiver = factory.message_receiver(
            queue, receive_mode="receiveanddelete", prefetch_count=prefetch_count
        )

        async def receive() -> None:
            for _ in range(MESSAGES - 1):
                await receiver.receive_messages(1, 10)

        await receiver.receive_messages(1, 10)
        return await measure(MESSAGES - 1, receive)


async def receiving(connection_string: str, queue: str, receive_mode: str) -> Measured:
    """Receive a backlog, up to 100 messages in a call, and complete them if they are locked."""
    async with MessagingFactory(connection_string) as factory:
        sender = factory.message_sender(queue)
        for _ in range(10):
            await sender.send_messages([OutgoingMessage(BODY) for _ in range(MESSAGES // 10)])
        receiver = factory.message_receiver(queue, receive_mode=receive_mode)

        async def receive() -> None:
            count = MESSAGES
            while count:
                messages = await receiver.receive_messages(100, 10)
                count -= len(messages)
                if receive_mode == "peeklock":
                    await asyncio.gather(*[receiver.complete_message(message) for message in messages])

        return await measure(MESSAGES, receive)


def line(what: str, measured: Measured, against: Measured | None = None) -> float:
    """Print a row. Returns how much less CPU it takes than the vendor's."""
    ratio = 0.0 if against is None else against.cpu_us / measured.cpu_us
    shown = f"{ratio:>10.1f} x" if ratio else ""
    print(f"{what:<50}{measured.rate:>10,.0f}{measured.cpu_us:>13.1f}{shown}", flush=True)
    return ratio


def with_cycle(sending: Measured, receiving: Measured) -> tuple[Measured, Measured, Measured]:
    """Both, and the cycle: a send and a receive."""
    rate = 1 / (1 / sending.rate + 1 / receiving.rate)
    return sending, receiving, Measured(sending.cpu_us + receiving.cpu_us, rate)


async def run(connection_string: str) -> list[str]:
    failures = []
    print(f"{'':<50}{'msg/s':>10}{'CPU-µs/msg':>13}{'less CPU':>12}")
    theirs = with_cycle(*await vendor(connection_string, "vendor"))
    for what, measured in zip(("send", "receive", "cycle"), theirs, strict=True):
        line(f"azure-servicebus, {what}", measured)
    for name, interval, callers, required in (
        ("one call after the other", 0.0, 1, 0.0),
        ("without batching", 0.0, CALLERS, WITHOUT_BATCHING),
        ("with batching", 0.020, CALLERS, WITH_BATCHING),
    ):
        own = with_cycle(*await ours(connection_string, "ours", interval, callers))
        for what, measured, against in zip(("send", "receive", "cycle"), own, theirs, strict=True):
            if line(f"busbar.client {name}, {what}", measured, against) < required:
                failures.append(f"{what} {name} takes more than 1/{required:.0f} of the vendor's CPU")
    failures += await run_small_senders(connection_string, theirs[0])
    failures += await run_prefetching(connection_string)
    failures += await run_receive_modes(connection_string)
    return failures


async def run_small_senders(connection_string: str, vendors: Measured) -> list[str]:
    """Rounds alternate, and the best of each counts, since other programs of the machine take time as well."""
    lones, offs, ons = [], [], []
    for _ in range(ROUNDS):
        lones.append(await sending_rate(connection_string, "off", 0.0, 1, LONE_MESSAGES))
        offs.append(await sending_rate(connection_string, "off", 0.0))
        ons.append(await sending_rate(connection_string, "on", 0.020))
    lone, off, on = (max(each, key=lambda one: one.rate) for each in (lones, offs, ons))
    line("a small sender that waits for each answer", lone)
    line(f"{SMALL_SENDERS:,} small senders, batching off", off)
    line(f"{SMALL_SENDERS:,} small senders, batching on", on)
    failures = []
    for what, other, required in (
        ("off", off, THROUGHPUT),
        ("a sender that waits", lone, APART),
        ("azure-servicebus", vendors, APART),
    ):
        rate, cpu = on.rate / other.rate, other.cpu_us / on.cpu_us
        print(f"{f'batching on against {what}':<50}{rate:>9.1f} x{cpu:>20.1f} x")
        if rate < required:
            failures.append(f"batching sends less than {required:g} times as many messages as {what}")
    return failures


async def run_prefetching(connection_string: str) -> list[str]:
    rates = []
    for prefetch_count in PREFETCHES:
        measured = await prefetching(connection_string, f"prefetch-{prefetch_count}", prefetch_count)
        line(f"receive one by one, prefetch {prefetch_count}", measured)
        rates.append(measured.rate)
    return [] if rates == sorted(rates) else ["a larger cache is slower"]


async def run_receive_modes(connection_string: str) -> list[str]:
    locked, deleted = [], []
    for _ in range(ROUNDS):
        locked.append(await receiving(connection_string, "modes", "peeklock"))
        deleted.append(await receiving(connection_string, "modes", "receiveanddelete"))
    peek_lock, delete = max(locked, key=lambda one: one.rate), max(deleted, key=lambda one: one.rate)
    line("receive 100 at a time, PeekLock and complete", peek_lock)
    line("receive 100 at a time, ReceiveAndDelete", delete)
    print(f"{'ReceiveAndDelete against PeekLock':<50}{delete.rate / peek_lock.rate:>9.1f} x")
    return [] if delete.rate > peek_lock.rate else ["ReceiveAndDelete is slower than PeekLock"]


def main() -> int:
    queues = ["vendor", "ours", "off", "on", "modes", *[f"prefetch-{count}" for count in PREFETCHES]]
    compiled = rooms_are_compiled()
    print("compiled" if compiled else "interpreted: the compiled rooms are not built")
    with measured_server({queue: {"MaxSizeInMegabytes": 1024} for queue in queues}) as server:
        failures = asyncio.run(run(server.busbar.connection_string))
    for failure in failures:
        print(f"\n{failure}")
    return 1 if failures and compiled else 0


if __name__ == "__main__":
    sys.exit(main())
