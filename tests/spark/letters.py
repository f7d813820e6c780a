"""Messages that tests send, dead-letter and take out again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient

from busbar.client import OutgoingMessage, Received, encode
from busbar.message.decoded import DecodedMessage
from tests.spark.conftest import RECEIVE_SECONDS, Namespace


def bury(
    namespace: Namespace,
    queue: str,
    messages: Sequence[OutgoingMessage],
    reasons: Sequence[str] = ("broken",),
) -> None:
    """Send messages and dead-letter them, each for one of the reasons in turn."""
    with namespace.factory.sender(queue) as sender:
        sender.send([encode(message) for message in messages])
    buried = 0
    with namespace.factory.receiver(queue) as receiver:
        while buried < len(messages):
            received = receiver.receive(len(messages), RECEIVE_SECONDS)
            assert received
            for turn, reason in enumerate(reasons):
                those = [message for message in received if message.sequence_number % len(reasons) == turn]
                if those:
                    receiver.dead_letter(those, reason, "because")
            buried += len(received)


def make(namespace: Namespace, queue: str, **options: Any) -> None:
    authority = str(namespace.server.data / "tls" / "ca.pem")
    with ServiceBusAdministrationClient.from_connection_string(
        namespace.server.connection_string, connection_verify=authority
    ) as administration:
        administration.create_queue(queue, **options)


def take(namespace: Namespace, entity: str, count: int, sub_queue: str = "") -> list[Received]:
    """Exactly so many messages, completed."""
    taken: list[Received] = []
    with namespace.factory.receiver(entity, sub_queue=sub_queue) as receiver:
        while len(taken) < count:
            received = receiver.receive(count - len(taken), RECEIVE_SECONDS)
            assert received, f"{len(taken)} of {count}"
            receiver.complete(received)
            taken += received
        assert receiver.receive(1, 0.3) == []
    return taken


def numbered(count: int) -> list[OutgoingMessage]:
    return [
        OutgoingMessage(
            body=f"body {number}".encode() * 3,
            message_id=f"id {number}",
            session_id=f"s{number % 3}",
            subject="a subject",
            time_to_live=3_600_000,
            application_properties={"number": number},
        )
        for number in range(count)
    ]


def decoded(messages: Iterable[Received]) -> list[DecodedMessage]:
    return [message.decode() for message in messages]
