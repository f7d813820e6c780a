"""What the console needs of messages and message sessions, in plain values (see namespace.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from busbar.console.namespace import Address

GROUPED = 20_000
"""So many dead letters are looked at to group them, the oldest first."""


class Lane(StrEnum):
    """Which messages of an entity are shown."""

    ACTIVE = "active"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"
    DEAD_LETTER = "dead-letter"
    TRANSFER_DEAD_LETTER = "transfer-dead-letter"


@dataclass(frozen=True, slots=True)
class MessageSummary:
    """A message as a row of a list."""

    number: int
    enqueued: str
    state: str
    deliveries: int
    message_id: str
    session_id: str
    subject: str
    reason: str
    preview: str
    """The beginning of the body."""


@dataclass(frozen=True, slots=True)
class MessageRange:
    """Some messages of a list, in the order of their numbers."""

    messages: Sequence[MessageSummary]
    next: int | None
    """The number with which the next page begins, if there is one."""


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """A message with everything that it has."""

    number: int
    fields: Mapping[str, str]
    properties: Mapping[str, str]
    annotations: Mapping[str, str]
    size: int
    body: str
    """As text; JSON is indented."""
    body_hex: str
    is_text: bool
    copy: TypedMessage
    """What a copy of it would have."""


@dataclass(frozen=True, slots=True)
class TypedMessage:
    """A message that a person writes. An empty text is not sent."""

    body: str = ""
    content: bytes | None = None
    """The body, if it came from a file."""
    message_id: str = ""
    session_id: str = ""
    partition_key: str = ""
    subject: str = ""
    content_type: str = ""
    correlation_id: str = ""
    to: str = ""
    reply_to: str = ""
    time_to_live: str = ""
    schedule: str = ""
    properties: str = ""
    """Lines of KEY=VALUE."""


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """Dead letters with one reason that came from one entity."""

    reason: str
    source: str
    count: int
    oldest: str
    newest: str
    description: str


@dataclass(frozen=True, slots=True)
class Selected:
    """Which dead letters are meant: by their numbers, or all with one of these reasons."""

    numbers: frozenset[int] = frozenset()
    reasons: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TriageResult:
    found: int
    done: int
    refused: int
    reasons: Sequence[str] = ()
    """Why some were refused."""


@dataclass(frozen=True, slots=True)
class CopyChanges:
    """How the copies of dead letters differ from them."""

    target: str = ""
    """The entity they are sent to; empty: the one they came from."""
    keeps_id: bool = False
    message_id: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """New values of fields of TypedMessage, by their names; an empty one is removed."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A message session."""

    id: str
    messages: str
    deferred: int
    oldest: str
    holder: str
    locked_until: str
    has_state: bool
    state: str = ""
    """As text, if it was asked for."""
    is_held_here: bool = False
    """The console has accepted it."""


@dataclass(frozen=True, slots=True)
class SessionsRange:
    sessions: Sequence[SessionRow]
    total: int


PurgeProgress = Callable[[Lane, int], None]
"""Called with a lane, and how many of its messages are deleted."""


class Messages(Protocol):
    """The messages of entities. Looking changes nothing. Every method raises NamespaceFailure."""

    def range(
        self, address: Address, lane: Lane, start: int, session: str | None, limit: int
    ) -> MessageRange: ...

    def get(self, address: Address, lane: Lane, number: int) -> MessageDetail: ...

    def send(self, address: Address, message: TypedMessage) -> None: ...

    def groups(self, address: Address, lane: Lane) -> Sequence[DeadLetterSummary]: ...

    def resubmit(
        self, address: Address, lane: Lane, selected: Selected, changes: CopyChanges
    ) -> TriageResult: ...

    def delete(self, address: Address, lane: Lane, selected: Selected) -> TriageResult: ...

    def purge(
        self, address: Address, lanes: Sequence[Lane], session: str | None, on_progress: PurgeProgress
    ) -> int:
        """Delete all messages of these lanes. Returns how many could not be deleted."""


class SessionCalls(Protocol):
    """The message sessions of entities. Every method raises NamespaceFailure."""

    def range(self, address: Address, skip: int, limit: int) -> SessionsRange: ...

    def get(self, address: Address, id: str) -> SessionRow:
        """A session with its state."""

    def accept(self, address: Address, id: str) -> None:
        """Hold a session, so that no other client receives from it, until it is released."""

    def release(self, address: Address, id: str) -> None: ...

    def set_state(self, address: Address, id: str, state: str) -> None:
        """Set the state; an empty one is removed."""
