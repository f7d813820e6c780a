"""Session-aware entities for tests: queues, regular and partitioned, and subscriptions, and what a test does with them.

A subscription is received from by its path, and what is sent there goes to its topic: no test has to know the difference.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Coroutine
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage

from harness.serving import PATIENCE, Busbar
from tests.interop.administration import BareHttp, entry
from tests.interop.azure_sdk import SUBSCRIPTION, Azure, Handler, in_thread

LIMITS = {
    **PATIENCE,
    "min_lock_duration": 100,
    "min_time_to_live": 100,
    "min_size_in_megabytes": 1,
    "size_increment": 1,
    "max_partitioned_entities": 1000,
    "min_duplicate_window": 100,
    "min_auto_delete_on_idle": 300,
}

BRIEF_LOCK = 1.5
"""Seconds that a session of a `brief` queue is locked."""
MODEST_LOCK = 3
"""Of a `modest` queue: the SDK's automatic renewer looks only every half second."""

KINDS: dict[str, tuple[str, str]] = {
    "workflow": ("", ""),
    "brief": (f"<LockDuration>PT{BRIEF_LOCK}S</LockDuration>", ""),
    "modest": (f"<LockDuration>PT{MODEST_LOCK}S</LockDuration>", ""),
    "tiny": ("<MaxSizeInMegabytes>1</MaxSizeInMegabytes>", ""),
    "buried": ("", "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"),
    "twice": ("", "<MaxDeliveryCount>2</MaxDeliveryCount>"),
}
"""What a queue of each kind has before and after RequiresSession, in the order of the schema."""

QUEUES = ("regular", "partitioned")
SUBSCRIPTIONS = ("subscription", "partitioned-subscription")
DEEP = bool(os.environ.get("BUSBAR_DEEP"))
WAYS = (
    [(client, place) for client in ("sync", "async") for place in QUEUES + SUBSCRIPTIONS]
    if DEEP
    else [("sync", "regular"), ("async", "partitioned"), ("async", "subscription")]
)
"""With which client on which kind of entity a test runs: both clients, both kinds of queue and a subscription; all pairs in
the long campaign."""

Test = Callable[..., Coroutine[Any, Any, None]]


def every_way(test: Test) -> Test:
    """Runs a test of a `world` in all WAYS, at the same time: most of it is the clients' own pauses."""
    return in_ways(test, QUEUES + SUBSCRIPTIONS)


def on_queues(test: Test) -> Test:
    """The same for what is otherwise with topics."""
    return in_ways(test, QUEUES)


def on_subscriptions(test: Test) -> Test:
    return in_ways(test, SUBSCRIPTIONS)


def on_partitioned_queues(test: Test) -> Test:
    return in_ways(test, ("partitioned",))


def on_regular_entities(test: Test) -> Test:
    return in_ways(test, ("regular", "subscription"))


def in_ways(test: Test, places: tuple[str, ...]) -> Test:
    async def run(worlds: list[World], **fixtures: Any) -> None:
        async def in_one(world: World) -> None:
            try:
                await test(world=world, **fixtures)
            except Exception as error:
                error.add_note(f"with the {world.client} client on a {world.place} entity")
                raise

        chosen = [world for world in worlds if world.place in places]
        assert chosen, f"none of WAYS leads to {' or '.join(places)}: the test would pass without running"
        done = await asyncio.gather(*[in_one(world) for world in chosen], return_exceptions=True)
        failures = [each for each in done if each is not None]
        if failures:
            for other in failures[1:]:
                failures[0].add_note(f"and {other!r}: {' '.join(getattr(other, '__notes__', []))}")
            raise failures[0]

    signature = inspect.signature(test)
    worlds = inspect.Parameter("worlds", inspect.Parameter.KEYWORD_ONLY)
    others = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in signature.parameters.items()
        if name != "world"
    ]
    functools.update_wrapper(run, test)
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature([worlds, *others])  # type: ignore[attr-defined]
    return run


class SessionQueues:
    """Creates a queue for each test that wants one: sixteen fragments each would make a long start."""

    def __init__(self, server: Busbar) -> None:
        self.http = BareHttp(server)
        self._created = 0

    def name(self, start: str) -> str:
        """One that nobody else has."""
        self._created += 1
        return f"{start}-{self._created}"

    def take(self, place: str, kind: str = "workflow") -> str:
        name = self.name(f"{place}-{kind}")
        before, after = KINDS[kind]
        partitioned = "<EnablePartitioning>true</EnablePartitioning>" if "partitioned" in place else ""
        if place in QUEUES:
            self._put(
                name, f"QueueDescription {before}<RequiresSession>true</RequiresSession>{after}{partitioned}"
            )
            return name
        size = before if kind == "tiny" else ""
        self._put(name, f"TopicDescription {size}{partitioned}")
        path = f"{name}{SUBSCRIPTION}one"
        before = "" if size else before
        self._put(path, f"SubscriptionDescription {before}<RequiresSession>true</RequiresSession>{after}")
        return path

    def _put(self, path: str, description: str) -> None:
        status, _type, text = self.http.request("PUT", f"/{path}?api-version=2021-05", entry(description))
        assert status == 201, text


class World:
    """One client of the SDK, and queues of one kind."""

    def __init__(self, sdk: Azure, client: str, place: str, queues: SessionQueues) -> None:
        self.sdk = sdk
        self.client = client
        self.place = place
        self._queues = queues
        self.http = queues.http
        self.name = queues.name

    def queue(self, kind: str = "workflow") -> str:
        return self._queues.take(self.place, kind)

    def accept(self, queue: str, session: Any = NEXT_AVAILABLE_SESSION, **options: Any) -> Handler:
        """A session receiver that is being opened."""
        return self.sdk.receiver(queue, session_id=session, **options)

    async def send(self, queue: str, session: str, *texts: str, **options: Any) -> None:
        """One after the other, so that their order is known."""
        sender = self.sdk.sender(queue)
        for text in texts:
            await sender.send_messages(message(session, text, **options))


def message(session: str | None, text: str, **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(text, session_id=session, **options)


def sent_to(queue: str) -> str:
    """Where to send what is received there."""
    return queue.partition(SUBSCRIPTION)[0]


async def on_session(receiver: Handler, method: str, *arguments: Any) -> Any:
    """Call a method of the receiver's session, which waits in either client's way."""
    await receiver.opened()
    call = getattr(receiver.raw.session, method)
    if asyncio.iscoroutinefunction(call):
        return await call(*arguments)
    return await in_thread(call, *arguments)


async def listed_sessions(server: Busbar, queue: str, **options: Any) -> list[str]:
    """The session ids that the SDK finds, sorted."""

    def listed() -> list[str]:
        with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
            topic, below, name = queue.partition(SUBSCRIPTION)
            if below:
                return list(client.list_subscription_sessions(topic, name, **options))
            return list(client.list_queue_sessions(queue, **options))

    return sorted(await in_thread(listed))
