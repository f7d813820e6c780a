"""Topics for tests, regular and partitioned, each with the subscriptions that its test wants."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusMessage

from tests.interop.administration import entry
from tests.interop.azure_sdk import SUBSCRIPTION, Handler, take, text_of
from tests.interop.session_queues import World
from tests.interop.session_queues import on_queues as everywhere

__all__ = [
    "Topic",
    "everywhere",
    "keyed",
    "texts",
]  # `everywhere`: the test runs on a regular and on a partitioned topic

VERSION = "api-version=2021-05"
PARTITIONED = "<EnablePartitioning>true</EnablePartitioning>"


class Topic:
    """A topic of its own for a test; descriptions are elements of ATOM, in the order of the schema."""

    def __init__(self, world: World, description: str = "", **subscriptions: str) -> None:
        self._world = world
        self._http = world.http
        self.name = world.name("topic")
        last = PARTITIONED if world.place == "partitioned" else ""
        self._description = description, last
        self.put("", f"TopicDescription {description}{last}")
        for name, about in subscriptions.items():
            self.subscribe(name, about)

    def path(self, subscription: str) -> str:
        return f"{self.name}{SUBSCRIPTION}{subscription}"

    # ---- management ----

    def put(self, below: str, description: str, *, change: bool = False) -> None:
        headers = {"If_Match": "*"} if change else {}
        status, _, text = self._http.request(
            "PUT", f"/{self.name}{below}?{VERSION}", entry(description), **headers
        )
        assert status == (200 if change else 201), text

    def delete(self, below: str = "") -> None:
        assert self._http.request("DELETE", f"/{self.name}{below}?{VERSION}")[0] == 200

    def status(self, below: str = "") -> int:
        return self._http.request("GET", f"/{self.name}{below}?{VERSION}")[0]

    def update(self, description: str) -> None:
        """Of the topic: in place of what it was made with."""
        self.put("", f"TopicDescription {description}{self._description[1]}", change=True)

    def subscribe(self, name: str, description: str = "", *, change: bool = False) -> None:
        self.put(f"{SUBSCRIPTION}{name}", f"SubscriptionDescription {description}", change=change)

    def unsubscribe(self, name: str) -> None:
        self.delete(f"{SUBSCRIPTION}{name}")

    # ---- messages ----

    def sender(self) -> Handler:
        return self._world.sdk.topic(self.name)

    def receiver(self, subscription: str, **options: Any) -> Handler:
        return self._world.sdk.receiver(self.path(subscription), **options)

    def once(self, subscription: str, **options: Any) -> Handler:
        return self._world.sdk.once(self.path(subscription), **options)

    def dead_letters(self, subscription: str, **options: Any) -> Handler:
        return self._world.sdk.dead_letters(self.path(subscription), **options)

    async def send(self, *contents: str | ServiceBusMessage) -> None:
        """One after the other. Texts have one key, so that their order is known on a partitioned topic, too."""
        sender = self.sender()
        for content in contents:
            await sender.send_messages(content if isinstance(content, ServiceBusMessage) else keyed(content))

    async def drained(self, subscription: str, count: int) -> list[str]:
        """The texts of so many messages, taken for good, and that there are no more."""
        found = texts(await take(self.once(subscription), count)) if count else []
        assert await self.left(subscription) == []
        return found

    async def left(self, subscription: str) -> list[str]:
        """What is there, in whatever state: by peeking, which waits for nothing."""
        return texts(await self.receiver(subscription).peek_messages(250))


def keyed(text: str, **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(text, partition_key="k", **options)


def texts(messages: list[Any]) -> list[str]:
    return [text_of(each) for each in messages]
