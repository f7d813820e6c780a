"""Runs a workload against a running Busbar, with given settings, and measures it.

1. The entities of a run are created for it and deleted after it, whatever happens. Their names begin with `busbar-bench-`.
2. Senders and receivers run in this process. Without asynchronous operations, each of them has one operation at a time. With
   them, a sender has `OVERLAPPING` sends under way, and a receiver settles what it got together.
3. Senders without a rate pause while too many messages wait, so that latency is not that of a growing backlog.
4. The first moments of a run are not measured.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from busbar.client import (
    AdministrationClient,
    BusbarClientError,
    MessageReceiver,
    MessageSender,
    MessagingFactory,
    NotFound,
    OutgoingMessage,
    Retry,
)
from busbar.client.presets import ScenarioPreset
from busbar.jobs.bench_figures import Recorder, RunFigures
from busbar.jobs.bench_workloads import Workload, shown

OVERLAPPING = 64
MOST_AT_ONCE = 100
MOST_WAITING = 2_000
WARM_UP_SECONDS = 0.5
SLOTS = 20
POLL_SECONDS = 0.25
BRIEFLY = Retry(patience=2.0)
PAUSE_SECONDS = 0.002
_STAMP_BYTES = 8

OnProgress = Callable[[float], None]
"""Called with the share of a run that is over, 0 to 1."""


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """The Busbar to measure."""

    connection_string: str
    trust: Path | None = None

    def __repr__(self) -> str:
        return "BenchTarget()"  # the connection string has the key


@dataclass(frozen=True, slots=True)
class Places:
    """The entities of a run: where messages are sent to, and received from."""

    targets: tuple[str, ...]
    sources: tuple[str, ...]


async def run_workload(
    target: BenchTarget,
    workload: Workload,
    chosen: ScenarioPreset,
    seconds: float,
    name: str,
    on_progress: OnProgress = lambda share: None,
) -> RunFigures:
    """Run a workload for so many seconds. Raises BusbarClientError if the entities cannot be created or used."""
    async with entities(target, workload, chosen) as places:
        return await _WorkloadRun(target, workload, chosen, seconds, places).measure(name, on_progress)


@asynccontextmanager
async def entities(target: BenchTarget, workload: Workload, chosen: ScenarioPreset) -> AsyncIterator[Places]:
    """The entities of a run, which exist while the block runs."""
    name = f"busbar-bench-{uuid.uuid4().hex[:8]}"
    async with AdministrationClient.from_connection_string(
        target.connection_string, trust=target.trust, retry=BRIEFLY
    ) as admin:
        names = (
            [name] if workload.subscriptions else [f"{name}-{number}" for number in range(workload.queues)]
        )
        try:
            if workload.subscriptions:
                yield await _create_topic(admin, name, workload, chosen)
            else:
                for each in names:
                    await admin.create_queue(each, **chosen.entity.options())
                yield Places(tuple(names), tuple(names))
        finally:
            for each in names:
                try:
                    await (admin.delete_topic if workload.subscriptions else admin.delete_queue)(each)
                except NotFound:
                    pass  # it was not created


async def _create_topic(
    admin: AdministrationClient, name: str, workload: Workload, chosen: ScenarioPreset
) -> Places:
    await admin.create_topic(name, **chosen.entity.options())
    sources = []
    for number in range(workload.subscriptions):
        batched = chosen.entity.enable_batched_operations
        await admin.create_subscription(name, f"s{number}", enable_batched_operations=batched)
        sources.append(f"{name}/Subscriptions/s{number}")
    return Places((name,), tuple(sources))


class _WorkloadRun:
    """One run: its clients, and what they measure."""

    def __init__(
        self,
        target: BenchTarget,
        workload: Workload,
        chosen: ScenarioPreset,
        seconds: float,
        places: Places,
    ) -> None:
        self._target = target
        self._workload = workload
        self._chosen = chosen
        self._seconds = seconds
        self._places = places
        self._recorder = Recorder(seconds, SLOTS)
        self._began = 0.0
        self._stopped = False
        self._unsettled = 0
        copies = max(1, workload.subscriptions)
        self._copies = copies
        self._most_waiting = MOST_WAITING * copies
        self._padding = b"x" * max(0, workload.body_bytes - _STAMP_BYTES)

    async def measure(self, name: str, on_progress: OnProgress) -> RunFigures:
        async with AsyncExitStack() as stack:
            senders = await self._senders(stack)
            receivers = await self._receivers(stack)
            self._began = time.perf_counter() + WARM_UP_SECONDS
            async with asyncio.TaskGroup() as tasks:
                for receiver in receivers:
                    tasks.create_task(self._receive(receiver))
                for number, sender in enumerate(senders):
                    for _ in range(OVERLAPPING if self._overlaps else 1):
                        tasks.create_task(self._send(sender, number))
                whole = WARM_UP_SECONDS + self._seconds
                while (left := self._began + self._seconds - time.perf_counter()) > 0:
                    on_progress(max(0.0, 1 - left / whole))
                    await asyncio.sleep(min(0.1, left))
                self._stopped = True
            on_progress(1.0)
        return self._recorder.figures(self._workload.scenario.value, shown(self._chosen), name)

    @property
    def _overlaps(self) -> bool:
        # A rate is kept by one task of each sender.
        return self._chosen.client.is_asynchronous and not self._workload.rate

    async def _factories(self, stack: AsyncExitStack, count: int) -> list[MessagingFactory]:
        return [
            await stack.enter_async_context(
                await MessagingFactory.connect(
                    self._target.connection_string,
                    trust=self._target.trust,
                    **self._chosen.factory.options(),
                )
            )
            for _ in range(count)
        ]

    async def _senders(self, stack: AsyncExitStack) -> list[MessageSender]:
        targets, count = self._places.targets, self._chosen.factory.senders
        dedicated = len(targets) if self._chosen.factory.is_dedicated else 1
        factories = await self._factories(stack, count * dedicated)
        return [
            factories[_factory(number, len(targets), count, dedicated)].message_sender(
                targets[number % len(targets)]
            )
            for number in range(self._workload.senders)
        ]

    async def _receivers(self, stack: AsyncExitStack) -> list[MessageReceiver]:
        sources, count = self._places.sources, self._chosen.factory.receivers
        dedicated = len(sources) if self._chosen.factory.is_dedicated else 1
        factories = await self._factories(stack, count * dedicated)
        return [
            factories[_factory(number, len(sources), count, dedicated)].message_receiver(
                sources[number % len(sources)], **self._chosen.client.options()
            )
            for number in range(self._workload.receivers)
        ]

    async def _send(self, sender: MessageSender, number: int) -> None:
        rate = self._workload.rate / self._workload.senders
        due = time.perf_counter() + (number / self._workload.rate if rate else 0.0)
        while not self._stopped:
            if rate:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                due += 1 / rate
            elif self._unsettled >= self._most_waiting:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._unsettled += self._copies
            body = time.perf_counter_ns().to_bytes(_STAMP_BYTES, "big") + self._padding
            try:
                await sender.send_messages(OutgoingMessage(body))
                self._recorder.sent(time.perf_counter() - self._began)
            except BusbarClientError as error:
                self._unsettled -= self._copies
                await self._failed(error)

    async def _receive(self, receiver: MessageReceiver) -> None:
        asynchronous = self._chosen.client.is_asynchronous
        most = MOST_AT_ONCE if asynchronous else 1
        while not self._stopped:
            try:
                messages = await receiver.receive_messages(most, max_wait_time=POLL_SECONDS)
                now, at = time.perf_counter_ns(), time.perf_counter() - self._began
                for message in messages:
                    stamp = int.from_bytes(message.body[:_STAMP_BYTES], "big")
                    self._recorder.received(at, (now - stamp) / 1e6)
                if asynchronous:
                    await asyncio.gather(*(receiver.complete_message(message) for message in messages))
                else:
                    for message in messages:
                        await receiver.complete_message(message)
                self._unsettled -= len(messages)
            except BusbarClientError as error:
                await self._failed(error)

    async def _failed(self, error: BusbarClientError) -> None:
        self._recorder.failed(error.condition or type(error).__name__)
        await asyncio.sleep(POLL_SECONDS)  # a broker that refuses everything is not flooded


def _factory(number: int, places: int, count: int, dedicated: int) -> int:
    """The factory of a client: clients take turns, within the factories of their entity if these are dedicated."""
    place = number % places if dedicated > 1 else 0
    turn = number // places if dedicated > 1 else number
    return place * count + turn % count
