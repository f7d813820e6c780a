"""Entities and looks at them for tests of transactions."""

from __future__ import annotations

from typing import Any, cast

from busbar.amqp.codec import encode_value
from busbar.amqp.events import Delivery
from busbar.amqp.types import Described, Symbol
from busbar.client import MessagingFactory, OutgoingMessage, Received, Receiver, encode
from busbar.message.sections import find_sections
from harness.serving import PATIENCE
from tests.interop.partitioned_queues import BRIEF_LOCK

LIMITS = {
    **PATIENCE,
    "min_lock_duration": 100,
    "min_size_in_megabytes": 1,
    "size_increment": 1,
    "transaction_timeout": 6_000,
    "max_transaction_settlements": 120,
    "max_transactions": 20,
}
COUNTS = {"regular": 40, "partitioned": 20}
PROPERTIES: dict[str, dict[str, object]] = {"regular": {}, "partitioned": {"EnablePartitioning": True}}


def queue_table() -> dict[str, dict[str, object]]:
    """Queues of each kind, so that every test has its own."""
    table: dict[str, dict[str, object]] = {}
    for kind, count in COUNTS.items():
        what = PROPERTIES[kind]
        table |= {f"{kind}-{index}": what for index in range(count)}
        for index in range(4):
            table[f"{kind}-sessions-{index}"] = {**what, "RequiresSession": True}
            table[f"{kind}-unique-{index}"] = {**what, "RequiresDuplicateDetection": True}
            table[f"{kind}-brief-{index}"] = {**what, "LockDuration": f"PT{BRIEF_LOCK}S"}
    table["small"] = {"MaxSizeInMegabytes": 1}
    return table


def topic_table() -> list[dict[str, Any]]:
    """Topics of each kind with two subscriptions."""
    return [
        {
            "Name": f"{kind}-topic-{index}",
            "Properties": PROPERTIES[kind],
            "Subscriptions": [{"Name": name, "Properties": {}} for name in ("one", "two")],
        }
        for kind in COUNTS
        for index in range(4)
    ]


def message(text: str, **fields: Any) -> bytes:
    return encode(OutgoingMessage(text.encode(), **fields))


def via_keyed(text: str, via_key: str, **fields: Any) -> bytes:
    """A message with a ViaPartitionKey, and with no other annotation."""
    made = message(text, **fields)
    found = find_sections(made, 0, len(made))
    assert found.annotations == found.properties, "it has annotations already"
    annotations = encode_value(Described(0x72, {Symbol("x-opt-via-partition-key"): via_key}))
    return made[: found.annotations] + annotations + made[found.annotations :]


def text_of(received: Received) -> str:
    data = received.decode().data
    assert data is not None
    return data.decode()


async def received(receiver: Receiver, count: int) -> list[Received]:
    got: list[Received] = []
    while len(got) < count:
        more = await receiver.receive(count - len(got), 10)
        assert more, f"{len(got)} of {count} messages came"
        got += more
    return got


async def peeked(factory: MessagingFactory, entity: str, sub_queue: str = "") -> list[str]:
    """The texts of all messages of an entity in their order, in whatever state."""
    node = await factory.node(entity, f"{entity}{sub_queue}/$management")
    texts: list[str] = []
    start = 1
    while True:
        reply = await node.ask(
            {"from-sequence-number": start, "message-count": 100},
            {"operation": "com.microsoft:peek-message"},
            10,
        )
        if reply.application_properties["statusCode"] == 204:
            return texts
        assert isinstance(reply.value, dict), reply.application_properties
        for entry in reply.value["messages"]:
            shown = Received(cast(Any, None), Delivery(0, b"", 0, entry["message"], True, None, False))
            start = shown.sequence_number + 1
            texts.append(text_of(shown))


async def manage(
    factory: MessagingFactory, entity: str, operation: str, body: dict[str, object], state: bytes = b""
) -> tuple[int, str, dict[str, Any]]:
    """The status, the error condition and the body of the reply to a management request."""
    node = await factory.node(entity, f"{entity}/$management")
    reply = await node.ask(body, {"operation": f"com.microsoft:{operation}"}, 10, state)
    properties = reply.application_properties
    assert isinstance(reply.value, dict)
    return int(str(properties["statusCode"])), str(properties.get("errorCondition", "")), reply.value
