"""Entities, messages and senders for tests of transactions."""

from __future__ import annotations

from busbar.message.parsing import parse_message
from busbar.model.api import EntityView
from busbar.model.entities import QueueDescription, SubscriptionDescription, TopicDescription
from busbar.model.errors import QuotaExceeded
from busbar.model.limits import Limits
from busbar.model.message import Draft
from busbar.model.partitioning import index_of_key
from busbar.partitions.routing import Router
from busbar.partitions.transaction import Transaction, TransactionalSender, TransactionScope
from tests.unit.partitions.messages import encoded

QUEUE = EntityView("q", QueueDescription(), (1,))
OTHER = EntityView("other", QueueDescription(), (2,))
SESSIONS = EntityView("sessions", QueueDescription(requires_session=True), (3,))
TOPIC = EntityView("t", TopicDescription(), (4,))
SUBSCRIPTION = EntityView("t/Subscriptions/s", SubscriptionDescription(), (5,))
SECOND = EntityView("t/Subscriptions/s2", SubscriptionDescription(), (6,))
PARTITIONED = EntityView("p", QueueDescription(enable_partitioning=True), tuple(range(100, 116)))
DETECTING = EntityView(
    "d", QueueDescription(enable_partitioning=True, requires_duplicate_detection=True), tuple(range(200, 216))
)
PARTITIONED_SESSIONS = EntityView(
    "ps", QueueDescription(enable_partitioning=True, requires_session=True), tuple(range(300, 316))
)
PARTITIONED_TOPIC = EntityView("pt", TopicDescription(enable_partitioning=True), tuple(range(400, 416)))
PARTITIONED_SUBSCRIPTION = EntityView("pt/Subscriptions/s", SubscriptionDescription(), tuple(range(500, 516)))
LIMITS = Limits(max_transaction_messages=5, max_transaction_settlements=7, transaction_timeout=1_000)


class Bytes:
    """Counts what transactions keep."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.held = 0
        self.most = most

    def take(self, size: int) -> None:
        if self.held + size > self.most:
            raise QuotaExceeded("too much")
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size


def message(
    session: str | None = None, key: str | None = None, via: str | None = None, id: str = "id"
) -> Draft:
    payload = encoded(id, session, key, via)
    return parse_message(payload, 0, len(payload), "fresh", 128, 65_536)


def sender(entity: EntityView, via: EntityView | None = None) -> TransactionalSender:
    return TransactionalSender(entity, Router(entity, 0), [entity.path], via)


def transaction(
    via: EntityView | None = None, limits: Limits = LIMITS, held: Bytes | None = None
) -> Transaction:
    scope = TransactionScope()
    scope.via = via
    return Transaction(b"T", 77, scope, limits, held or Bytes())


def lock(fragment: int, *numbers: int) -> tuple[int, list[int], list[int], list[int]]:
    """Locks of these messages of a fragment."""
    return (fragment, [*range(len(numbers))], [*numbers], [number * 10 for number in numbers])


def index(key: str) -> int:
    return index_of_key(key, 16)


def keys_of(wanted: int, count: int = 2) -> list[str]:
    """Different keys of one fragment."""
    found = [f"k{number}" for number in range(2_000) if index(f"k{number}") == wanted]
    return found[:count]
