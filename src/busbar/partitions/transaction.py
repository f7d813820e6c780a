"""One transaction of a client: what it may contain, and the parts that its commit is made of.

A transaction is kept here until the client discharges it. Nothing changes in a fragment before that. Time comes in.

State        entered by                       operation      discharge to commit      discharge to roll back   timeout
OPEN         declare                          checked        → DISCHARGING            → OVER                   → TIMED_OUT
FAILED       refusal that has no answer       rolled back    → OVER, rolled back      → OVER                   → TIMED_OUT
DISCHARGING  discharge to commit              unknown        unknown                  unknown                  -
TIMED_OUT    2 minutes after an operation     timeout        → OVER, timeout          → OVER                   -
OVER         the answer to the discharge      unknown        unknown                  unknown                  -

"Rolled back", "timeout" and "unknown" are the errors that the client gets.

Rules of its operations:
1. All operations have one home: the via entity that the coordinator's AMQP session has named, else the top-level entity of
   the first operation. A topic and its subscriptions are one top-level entity; sub-queues belong to it.
2. A message to another entity goes through the outbox of the home if the session has named a via entity, or if the link has
   a destination. All other operations elsewhere are refused.
3. If the home is partitioned, all operations have one fragment index. Each message has a key (SessionId, PartitionKey, or
   MessageId where duplicates are detected), and all keys are the same text. In the outbox the ViaPartitionKey comes first.
4. A message to an entity with sessions has a SessionId, and no other PartitionKey.
5. A lock is settled once in a transaction, and a scheduled message is cancelled once.
6. Messages, settlements and bytes are limited.
7. Rule changes are those of one subscription of a regular topic, and come alone.
8. A refused operation is no part of the transaction. This holds as well if its fragment refuses it (`withdraw`). If the
   client gets no answer to the refused operation, or has discharged the transaction meanwhile, the transaction fails.
9. Settlements that came together are one operation. If the fragment refuses it, each of them is one of its own (`split`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Protocol

from busbar.model.api import EntityView, RuleChange
from busbar.model.commands import CancelScheduled, Send, SetSessionState, Settle, TransactionPart
from busbar.model.errors import (
    BusbarError,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionUnknown,
)
from busbar.model.limits import Limits
from busbar.model.message import Draft, Overlay, overlay_size
from busbar.model.names import above, key_of
from busbar.model.partitioning import index_of_key
from busbar.model.sas import SEND
from busbar.partitions.resolver import LOCK_LOST, Locks
from busbar.partitions.routing import Router
from busbar.partitions.via import VIA_KEYS, check_session, direct_key, set_targets, via_key

OPERATION_COST = 512
ITEM_COST = 256
"""Bytes that an operation takes beside its contents, and each message, lock, number or rule in it."""

ONE_ENTITY = "Local transactions cannot span multiple top-level entities such as queue or topic."
NO_KEY = (
    "A message that is sent in a transaction to an entity with partitioning enabled needs a SessionId, a PartitionKey or, "
    "where duplicates are detected, a MessageId."
)
DISTINCT_KEYS = (
    "All messages that are sent in one transaction to an entity with partitioning enabled need the same SessionId or "
    "PartitionKey."
)
ONE_FRAGMENT = (
    "All operations of one transaction on an entity with partitioning enabled need the same partition: this one concerns "
    "partition {}, the ones before it partition {}."
)
UNKNOWN = "Transaction hasn't been declared yet, or has already been discharged."
TIMEOUT = "The transaction was rolled back {} s after its first operation."
RULES_ALONE = "In a transaction, rule changes cannot be mixed with other operations or with another subscription's rules."
RULES_PARTITIONED = (
    "Rules of a topic with partitioning enabled cannot be added or removed inside a transaction."
)


class OtherFragment(InvalidOperation):
    """An operation on a partitioned entity concerns another fragment than those before it."""


class TransactionState(Enum):
    OPEN = "open"
    FAILED = "failed"
    DISCHARGING = "discharging"
    TIMED_OUT = "timed out"
    OVER = "over"


class BufferedBytes(Protocol):
    """Bounds what transactions keep until they are discharged."""

    def take(self, size: int) -> None:
        """Reserve bytes for a message of a transaction. Raises QuotaExceeded or ServerBusy."""

    def give_back(self, size: int) -> None: ...


class TransactionScope:
    """What the AMQP session of a coordinator means for its transactions."""

    __slots__ = ("via",)

    def __init__(self) -> None:
        self.via: EntityView | None = None
        """The top-level entity that the first link of the session named, if the coordinator came before that link."""


class TransactionalSender:
    """Where the messages of a link go."""

    __slots__ = ("entity", "resources", "router", "via")

    def __init__(
        self, entity: EntityView, router: Router, resources: list[str], via: EntityView | None = None
    ) -> None:
        self.entity = entity
        self.router = router  # of `entity`
        self.resources = resources  # on which the client needs Send
        self.via = via  # the entity of the link, if its messages are for another one


RightOn = tuple[str, str]
"""A right that an operation needs, and the resource."""


class Operation:
    """An operation of a transaction: what it concerns, and its parts of the commit."""

    __slots__ = ("home", "index", "key", "messages", "parts", "rights", "rules", "size")

    def __init__(self, home: str, index: int, rights: list[RightOn]) -> None:
        self.home = home
        self.index = index  # of the fragments in their entities; -1: it concerns none
        self.rights = rights
        self.size = OPERATION_COST
        self.key: str | None = None
        self.messages = 0
        self.parts: list[TransactionPart] = []
        self.rules: list[RuleChange] = []

    def add_size(self, size: int, items: int) -> None:
        self.size += size + items * ITEM_COST


class Transaction:
    """`limits` are the namespace's, `buffered` bounds the bytes of all transactions of the connection."""

    def __init__(
        self, id: bytes, origin: int, scope: TransactionScope, limits: Limits, buffered: BufferedBytes
    ) -> None:
        self.id = id
        self.state = TransactionState.OPEN
        self.deadline = 0
        """When it times out, in ms; 0 before its first operation."""
        self.failure: BusbarError | None = None
        self.home: EntityView | None = None
        """The view of the home, if an operation has brought it."""
        self._origin = origin
        self._scope = scope
        self._limits = limits
        self._buffered = buffered
        self._operations: list[Operation] = []
        self._pending: set[Operation] = set()
        self._requests = 0
        self._locks: dict[int, set[int]] = {}  # numbers of messages, by fragment
        self._cancelled: set[tuple[int, int]] = set()
        self._messages = 0
        self._rules = 0

    # ---- operations ------------------------------------------------------------------------------

    def send(self, sender: TransactionalSender, drafts: list[Draft], now: int) -> Operation:
        """Enlist messages. Drafts that go to another entity get their targets."""
        self._check_open()
        self._check_no_rules()
        own = sender.via or sender.entity
        path, via = self._home_path(), self._scope.via
        if path is None or key_of(path) == key_of(own.path):
            return self._send(own, sender.via is not None, sender, drafts, now)
        if via is None or sender.via is not None:
            raise InvalidOperation(ONE_ENTITY)
        return self._send(via, True, sender, drafts, now)

    def schedule(self, sender: TransactionalSender, drafts: list[Draft], now: int) -> Operation:
        """Enlist messages whose numbers the fragment has still to reserve."""
        self._check_open()
        self._check_no_rules()
        path = self._home_path()
        if path is not None and key_of(path) != key_of(sender.entity.path):
            raise InvalidOperation(ONE_ENTITY)
        return self._send(sender.entity, False, sender, drafts, now, is_pending=True)

    def _send(
        self,
        home: EntityView,
        via: bool,
        sender: TransactionalSender,
        drafts: list[Draft],
        now: int,
        is_pending: bool = False,
    ) -> Operation:
        """Enlist messages of the home or, if `via`, of its outbox."""
        check_session(sender.entity, drafts)
        key: str | None = None
        index = 0
        if len(home.fragments) > 1:
            key = self._one_key(
                [via_key(draft, home) if via else direct_key(draft, home) for draft in drafts]
            )
            index = index_of_key(key, len(home.fragments))
        self._check_index(index)
        if via:
            set_targets(drafts, sender.entity, sender.router)
        operation = Operation(home.path, index, [(SEND, resource) for resource in sender.resources])
        operation.key = key
        operation.messages = len(drafts)
        operation.add_size(sum([len(draft.content) for draft in drafts]), len(drafts))
        operation.parts.append(Send(home.fragments[index], self._origin, 0, drafts, True))
        self._enlist(operation, now, is_pending)
        self.home = home
        return operation

    def settle(
        self,
        entity: EntityView,
        locks: Sequence[Locks],
        outcome: int,
        overlay: Overlay | None,
        right: RightOn,
        now: int,
    ) -> Operation:
        """Enlist settlements, if the fragment finds that they can be done (`confirm`, `withdraw`)."""
        self._check_open()
        index = self._one_index(entity, [fragment for fragment, *_rest in locks])
        operation = self._operation(entity, index, right)
        ((fragment, _indexes, numbers, nonces),) = locks  # of one index, so of one fragment
        operation.parts.append(Settle(fragment, self._origin, 0, outcome, numbers, nonces, overlay, True))
        distinct, settled = set(numbers), self._locks.get(fragment)
        if len(distinct) < len(numbers) or (settled is not None and not settled.isdisjoint(distinct)):
            raise MessageLockLost(LOCK_LOST)
        self._check_settlements(len(numbers))
        operation.add_size(overlay_size(overlay), len(numbers))
        self._enlist(operation, now, is_pending=True)
        if settled is None:
            self._locks[fragment] = distinct
        else:
            settled |= distinct
        return operation

    def cancel(
        self, entity: EntityView, index: int, numbers: list[int], right: RightOn, now: int
    ) -> Operation:
        """Enlist the cancellation of scheduled messages, to which the fragment has still to agree."""
        self._check_open()
        operation = self._operation(entity, index, right)
        fragment = entity.fragments[index]
        found = [(fragment, number) for number in numbers]
        if len(set(found)) < len(found) or not self._cancelled.isdisjoint(found):
            raise MessageNotFound("A scheduled message can be cancelled once in a transaction.")
        self._check_settlements(len(found))
        operation.parts.append(CancelScheduled(fragment, self._origin, 0, numbers))
        operation.add_size(0, len(numbers))
        self._enlist(operation, now, is_pending=True)
        self._cancelled.update(found)
        return operation

    def set_state(
        self,
        entity: EntityView,
        index: int,
        consumer: int,
        state: bytes | None,
        right: RightOn,
        now: int,
    ) -> Operation:
        """Enlist the state of a message session, to which the fragment has still to agree."""
        self._check_open()
        operation = self._operation(entity, index, right)
        operation.parts.append(SetSessionState(entity.fragments[index], self._origin, 0, consumer, state))
        operation.add_size(0 if state is None else len(state), 1)
        self._enlist(operation, now, is_pending=True)
        return operation

    def change_rule(
        self, subscription: EntityView, change: RuleChange, right: RightOn, now: int
    ) -> Operation:
        """Enlist a rule that is added to a subscription or removed from it. The catalogue has still to check it."""
        self._check_open()
        if len(subscription.fragments) > 1:
            raise InvalidOperation(RULES_PARTITIONED)
        if any(not done.rules or done.home != subscription.path for done in self._operations):
            raise InvalidOperation(RULES_ALONE)
        self._check_settlements(1)
        operation = Operation(subscription.path, -1, [right])
        operation.rules.append(change)
        operation.add_size(0, 1)
        self._enlist(operation, now, is_pending=True)
        return operation

    def changes_of_rule(self, path: str) -> list[RuleChange]:
        """What the enlisted changes come to for one rule: at most that an old one goes, and that a new one comes."""
        found = [
            change
            for operation in self._operations
            for change in operation.rules
            if key_of(change[0]) == key_of(path)
        ]
        if not found:
            return []
        net: list[RuleChange] = [] if found[0][1] is not None else [(path, None)]
        return net if found[-1][1] is None else [*net, found[-1]]

    def confirm(self, operation: Operation) -> None:
        """The fragment, or for a rule the catalogue, can do what the operation asks for."""
        self._pending.discard(operation)

    def withdraw(self, operation: Operation, error: BusbarError, is_answered: bool) -> None:
        """The fragment or the catalogue cannot do it: the operation is no part of the transaction."""
        if operation not in self._pending:
            return  # the transaction is over
        self._pending.discard(operation)
        self._operations.remove(operation)
        self._messages -= operation.messages
        self._rules -= len(operation.rules)
        self._buffered.give_back(operation.size)
        for part in operation.parts:
            if isinstance(part, Settle):
                self._locks[part.fragment].difference_update(part.numbers)
            elif isinstance(part, CancelScheduled):
                self._cancelled.difference_update([(part.fragment, number) for number in part.numbers])
        if not is_answered or self.state is TransactionState.DISCHARGING:
            self.fail(error)

    def split(self, operation: Operation) -> list[Operation]:
        """Make each lock of a settlement, to which the fragment has still to agree, an operation of its own."""
        if operation not in self._pending:
            return []  # the transaction is over
        (part,) = operation.parts
        assert isinstance(part, Settle), "it is a settlement"
        single: list[Operation] = []
        for number, nonce in zip(part.numbers, part.nonces, strict=True):
            one = Operation(operation.home, operation.index, operation.rights)
            one.size = operation.size // len(part.numbers)
            settle = Settle(
                part.fragment, part.origin, 0, part.outcome, [number], [nonce], part.overlay, True
            )
            one.parts.append(settle)
            single.append(one)
        single[0].size += operation.size % len(single)
        at = self._operations.index(operation)
        self._operations[at : at + 1] = single
        self._pending.discard(operation)
        self._pending.update(single)
        return single

    def request_begun(self) -> None:
        """A management request names the transaction. A discharge waits until the request is finished."""
        self._requests += 1

    def request_finished(self, error: BusbarError | None) -> None:
        """The request was answered. If it was refused after the discharge, its client does not expect that."""
        self._requests -= 1
        if error is not None and self.state is TransactionState.DISCHARGING:
            self.fail(error)

    def fail(self, error: BusbarError) -> None:
        """Part of the transaction was refused and its client does not know: it can only be rolled back."""
        if self.state is TransactionState.OPEN:
            self.state = TransactionState.FAILED
        if self.failure is None:
            self.failure = error

    # ---- its end ---------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the transaction can still time out."""
        return self.state in (TransactionState.OPEN, TransactionState.FAILED)

    @property
    def is_ready(self) -> bool:
        """No operation waits for the answer of its fragment, and no request of the transaction is under way."""
        return not self._pending and not self._requests

    def is_ready_with(self, operations: list[Operation]) -> bool:
        """Whether it waits at most for the answers to these operations."""
        return not self._requests and self._pending.issubset(operations)

    def discharge(self, fail: bool) -> None:
        """The client ends the transaction: with `fail` it is rolled back, and over. Raises what keeps it from a commit."""
        if self.state in (TransactionState.DISCHARGING, TransactionState.OVER):
            raise TransactionUnknown(UNKNOWN)
        failed, timed_out = self.state is TransactionState.FAILED, self.state is TransactionState.TIMED_OUT
        if not fail and not failed and not timed_out:
            self.state = TransactionState.DISCHARGING
            return
        self.end()
        if not fail and timed_out:
            raise self._timed_out()
        if not fail:
            raise self.rolled_back()

    def expire(self, now: int) -> bool:
        """Roll the transaction back if its time is over; whether this has happened now."""
        if not self.deadline or now < self.deadline:
            return False
        if not self.is_running:
            return False
        self._drop()
        self.state = TransactionState.TIMED_OUT
        return True

    def end(self) -> None:
        """The transaction is over: committed, rolled back, or in doubt."""
        self._drop()
        self.state = TransactionState.OVER

    def rolled_back(self) -> TransactionRolledBack:
        """The error of a commit that could not be."""
        cause = "" if self.failure is None else f" {self.failure.text} ({self.failure.condition})"
        return TransactionRolledBack(f"The transaction was rolled back.{cause}")

    def operations(self) -> Sequence[Operation]:
        return self._operations

    # ---- rules -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.state is TransactionState.FAILED:
            raise self.rolled_back()
        if self.state is TransactionState.TIMED_OUT:
            raise self._timed_out()
        if self.state is not TransactionState.OPEN:
            raise TransactionUnknown(UNKNOWN)

    def _timed_out(self) -> TransactionTimeout:
        return TransactionTimeout(TIMEOUT.format(f"{self._limits.transaction_timeout / 1000:g}"))

    def _home_path(self) -> str | None:
        """The path of the home; None before the first operation."""
        if self._scope.via is not None:
            return self._scope.via.path
        return self._operations[0].home if self._operations else None

    def _operation(self, entity: EntityView, index: int, right: RightOn) -> Operation:
        """An operation of the home itself, at the fragment that the others have."""
        self._check_no_rules()
        top = _top_of(entity.path)
        path = self._home_path()
        if path is not None and path != top and key_of(path) != key_of(top):
            raise InvalidOperation(ONE_ENTITY)
        self._check_index(index)
        return Operation(top, index, [right])

    def _check_no_rules(self) -> None:
        if self._operations and self._operations[0].rules:
            raise InvalidOperation(RULES_ALONE)

    def _one_index(self, entity: EntityView, fragments: list[int]) -> int:
        indexes = [entity.fragments.index(fragment) for fragment in fragments]
        if len(indexes) > 1:
            raise OtherFragment(ONE_FRAGMENT.format(indexes[1], indexes[0]))
        return indexes[0]

    def _check_index(self, index: int) -> None:
        if self._operations and self._operations[0].index != index:
            raise OtherFragment(ONE_FRAGMENT.format(index, self._operations[0].index))

    def _one_key(self, keys: list[str | None]) -> str:
        """The key that all messages have, those of before included."""
        distinct = {key for key in keys if key is not None}
        if None in keys:
            raise InvalidOperation(NO_KEY if self._scope.via is None else f"{NO_KEY} {VIA_KEYS}")
        distinct.update([done.key for done in self._operations if done.key is not None])
        if len(distinct) > 1:
            raise InvalidOperation(DISTINCT_KEYS)
        return distinct.pop()

    def _check_settlements(self, count: int) -> None:
        most = self._limits.max_transaction_settlements
        settled = sum([len(numbers) for numbers in self._locks.values()])
        done = settled + len(self._cancelled) + self._rules
        if done + count > most:
            raise QuotaExceeded(
                f"A transaction has at most {most} settlements; these would be {done + count}."
            )

    def _enlist(self, operation: Operation, now: int, is_pending: bool = False) -> None:
        most = self._limits.max_transaction_messages
        messages = self._messages + operation.messages
        if messages > most:
            raise QuotaExceeded(f"A transaction has at most {most} messages; these would be {messages}.")
        self._buffered.take(operation.size)
        self._operations.append(operation)
        self._messages = messages
        self._rules += len(operation.rules)
        if is_pending:
            self._pending.add(operation)
        if not self.deadline:
            self.deadline = now + self._limits.transaction_timeout

    def _drop(self) -> None:
        self._buffered.give_back(sum([operation.size for operation in self._operations]))
        self._operations.clear()
        self._pending.clear()
        self._locks.clear()
        self._cancelled.clear()


@lru_cache(maxsize=1_000)
def _top_of(path: str) -> str:
    """The top-level entity to which the entity at a path belongs."""
    return above(path)[-1]
