"""Entities that forward, for tests: made over HTTP, used with busbar.client, looked at by their counts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from busbar.client import MessagingFactory, OutgoingMessage, Received, encode
from harness.serving import Busbar
from harness.waiting import until
from tests.interop.administration import BareHttp, entry

VERSION = "api-version=2021-05"
PARTITIONED = "<EnablePartitioning>true</EnablePartitioning>"
ORDER = (
    "LockDuration", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession", "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration", "DuplicateDetectionHistoryTimeWindow", "MaxDeliveryCount",
    "FilteringMessagesBeforePublishing", "Status", "ForwardTo", "EnablePartitioning", "ForwardDeadLetteredMessagesTo",
    "MaxMessageSizeInKilobytes",
)  # fmt: skip
_names = itertools.count(1)


class Forwarding:
    """The entities of one test, with names of its own."""

    def __init__(self, server: Busbar, factory: MessagingFactory) -> None:
        self.server = server
        self.factory = factory
        self._http = BareHttp(server)

    # ---- entities ----

    def name(self, word: str) -> str:
        return f"{word}-{next(_names)}"

    def put(self, path: str, kind: str, properties: Mapping[str, object], *, change: bool = False) -> str:
        inner = "".join(
            f"<{name}>{_written(properties[name])}</{name}>" for name in ORDER if name in properties
        )
        assert not set(properties) - set(ORDER), properties
        headers = {"If_Match": "*"} if change else {}
        status, _, text = self._http.request(
            "PUT", f"/{path}?{VERSION}", entry(f"{kind}Description {inner}"), **headers
        )
        assert status == (200 if change else 201), text
        return path

    def queue(self, word: str = "queue", **properties: object) -> str:
        return self.put(self.name(word), "Queue", properties)

    def topic(self, **properties: object) -> str:
        return self.put(self.name("topic"), "Topic", properties)

    def subscription(self, topic: str, word: str = "sub", **properties: object) -> str:
        return self.put(f"{topic}/Subscriptions/{self.name(word)}", "Subscription", properties)

    def update(self, path: str, kind: str = "Queue", **properties: object) -> None:
        self.put(path, kind, properties, change=True)

    def delete(self, path: str) -> None:
        assert self._http.request("DELETE", f"/{path}?{VERSION}")[0] == 200

    def counts(self, path: str) -> dict[str, int]:
        status, _, text = self._http.request("GET", f"/{path}?{VERSION}")
        assert status == 200, text
        found = dict(re.findall(r"<\w+:(\w+)MessageCount>(\d+)<", text))
        (total,) = re.findall(r"<MessageCount>(\d+)<", text) or ["0"]
        return {name: int(count) for name, count in found.items()} | {"All": int(total)}

    async def until(self, path: str, state: str, count: int, seconds: float = 15) -> None:
        """So many messages are in that state."""
        await until(
            lambda: self.counts(path)[state] == count,
            lambda: (path, self.counts(path)),
            seconds=seconds,
            pause=0.05,
        )

    # ---- messages ----

    async def send(self, entity: str, *bodies: str, **fields: Any) -> None:
        sender = await self.factory.sender(entity)
        made = [OutgoingMessage(body.encode(), **({"message_id": body} | fields)) for body in bodies]
        await sender.send([encode(message) for message in made])
        await sender.close()

    async def take(self, entity: str, count: int, sub_queue: str = "") -> list[Received]:
        """So many messages, completed, and no more are there."""
        receiver = await self.factory.receiver(entity, sub_queue=sub_queue)
        got: list[Received] = []
        while len(got) < count:
            more = await receiver.receive(count - len(got) + 1, 15)
            assert more, f"{len(got)} of {count} messages of {entity} came: {bodies(got)}"
            got += more
            await receiver.complete(more)
        assert len(got) == count, bodies(got)
        await receiver.close(release=True)
        return got

    async def take_some(self, entity: str, count: int) -> None:
        """Complete so many messages; more may be there."""
        receiver = await self.factory.receiver(entity, credit=1)
        while count:
            got = await receiver.receive(count, 15)
            assert got, f"{count} messages of {entity} are missing"
            await receiver.complete(got)
            count -= len(got)
        await receiver.close(release=True)

    async def dead_letters(self, entity: str, count: int = 1) -> list[Received]:
        return await self.take(entity, count, "deadletter")

    async def failed_transfers(self, entity: str, count: int = 1) -> list[Received]:
        return await self.take(entity, count, "transferdeadletter")


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def body(message: Received) -> str:
    data = message.decode().data
    assert data is not None
    return data.decode()


def bodies(messages: list[Received]) -> list[str]:
    return [body(message) for message in messages]


def reason(message: Received) -> str:
    return str(message.decode().application_properties.get("DeadLetterReason"))


def description(message: Received) -> str:
    return str(message.decode().application_properties.get("DeadLetterErrorDescription"))
