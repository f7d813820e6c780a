"""A plain AMQP client of the operations on taps."""

from __future__ import annotations

from typing import Any

from proton import Delivery, Message, symbol
from proton.reactor import LinkOption

from busbar.model.effects import MessageEvent
from busbar.pages.rows import TapMessageRow, decode_events, decode_messages
from tests.interop.plain_amqp import PlainAmqp

DEAD_LETTERS = "/$deadletterqueue"


class Refused(Exception):
    def __init__(self, status: int, condition: str, text: str) -> None:
        super().__init__(f"{status} {condition}: {text}")
        self.status = status
        self.condition = condition
        self.text = text


class Taps:
    """Of one queue, or of its dead-letter queue."""

    def __init__(self, client: PlainAmqp, queue: str, dead_letter: bool = False) -> None:
        self.client = client
        self.queue = queue
        self._node = f"{queue}{DEAD_LETTERS if dead_letter else ''}/$management"

    def __call__(self, operation: str, **body: Any) -> Any:
        given = {key.replace("_", "-"): value for key, value in body.items()}
        reply = self.client.request(self._node, f"busbar:{operation}", given)
        status = reply.properties["statusCode"]
        if status != 200:
            raise Refused(
                status, str(reply.properties["errorCondition"]), reply.properties["statusDescription"]
            )
        return reply.body

    def ends(self) -> dict[int, int]:
        return dict(self("ends")["ends"])

    def rows(
        self, name: str | None, after: int, upto: int, fragment: int = 0, **more: Any
    ) -> list[TapMessageRow]:
        """All messages of a span, page by page."""
        found: list[TapMessageRow] = []
        while after < upto:
            page = self("read-tap", name=name, fragment=fragment, after=after, upto=upto, **more)
            rows = decode_messages(page["rows"])
            assert len(rows) == page["count"] and page["upto"] > after
            found += rows
            after = page["upto"]
        return found

    def events(self, name: str, after: int = 0, fragment: int = 0) -> list[MessageEvent]:
        end = self("ends")["event-ends"][fragment]
        if end <= after:
            return []
        page = self("read-tap", name=name, fragment=fragment, stream="events", after=after, upto=end)
        assert page["upto"] == end
        return decode_events(page["rows"])


class AsWriter(LinkOption):
    """Sends on the link are of a writer's batch."""

    def __init__(self, name: object, batch: object) -> None:
        self._properties = {symbol("busbar:writer"): name, symbol("busbar:batch"): batch}

    def apply(self, link: Any) -> None:
        link.properties = self._properties


def write(client: PlainAmqp, queue: str, writer: str, batch: int, ids: list[str]) -> list[str]:
    """Send a message for each id; the conditions of those that were rejected."""
    sender: Any = client.connection.create_sender(
        queue, name=f"writer-{writer}-{batch}-{id(ids)}", options=AsWriter(writer, batch)
    )
    deliveries: list[Any] = [
        sender.link.send(Message(id=one or None, body=one.encode(), inferred=True)) for one in ids
    ]
    client.pump(lambda: all(delivery.settled for delivery in deliveries))
    rejected = [one for one in deliveries if one.remote_state == Delivery.REJECTED]
    conditions = [str(one.remote.condition.name) for one in rejected]
    sender.close()
    return conditions


def body_of(row: TapMessageRow) -> bytes:
    """Of a message whose body is its last section, of data with less than 256 bytes."""
    start = row.content.rindex(b"\x00\x53\x75\xa0")
    return row.content[start + 5 :]
