"""What the console needs from a namespace, in plain values.

The console has no protocol and no key. `busbar console` gives it a `Namespace` that is a client of a running Busbar, the
same client that all commands use. Its methods wait for the network: the console calls them from threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Protocol


class EntityType(StrEnum):
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


class FailureKind(Enum):
    """Why a call failed."""

    NOT_FOUND = auto()
    REFUSED = auto()
    """By the broker: a value, a limit, a name that is taken, the key."""
    AWAY = auto()
    """The broker does not answer, or failed."""


class NamespaceFailure(Exception):
    """A call failed. The text is for the person at the browser: what was wrong and what to do. It contains no key."""

    def __init__(self, text: str, problem: FailureKind) -> None:
        super().__init__(text)
        self.text = text
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Address:
    """Which entity: its name, and for a subscription its topic."""

    kind: EntityType
    name: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Entity:
    address: Address
    status: str
    available: bool
    partitioned: bool
    requires_session: bool
    detects_duplicates: bool
    messages: int
    """Without those that have their own counts: dead letters, scheduled ones, and those on the way to other entities."""
    dead_letters: int
    scheduled: int
    size: str
    subscriptions: int
    settings: Mapping[str, str]
    """By name, in the form that people read."""
    runtime: Mapping[str, str]
    transfers: int = 0
    """On the way to other entities."""
    failed_transfers: int = 0


@dataclass(frozen=True, slots=True)
class FragmentSummary:
    index: int
    store: str
    open: bool
    reason: str
    """Why it is unavailable."""
    messages: int
    dead_letters: int
    scheduled: int
    size: str


@dataclass(frozen=True, slots=True)
class StoreSummary:
    name: str
    state: str
    reason: str
    fragments: int
    size: str

    @property
    def open(self) -> bool:
        return self.state == "open"


@dataclass(frozen=True, slots=True)
class EntityPage:
    """A part of a list, and whether there is more."""

    entities: Sequence[Entity]
    more: bool


@dataclass(frozen=True, slots=True)
class Overview:
    queues: EntityPage
    topics: EntityPage
    stores: Sequence[StoreSummary]
    """Empty if the key does not allow to list them, or if the broker is not a Busbar."""


class Namespace(Protocol):
    """A namespace. Every method raises NamespaceFailure."""

    @property
    def place(self) -> str:
        """The address of the namespace, for people."""

    def overview(self, queues_from: int, topics_from: int, limit: int) -> Overview: ...

    def entity(self, address: Address) -> Entity: ...

    def fragments(self, queue: str) -> Sequence[FragmentSummary]: ...

    def subscriptions(self, topic: str, skip: int, limit: int) -> EntityPage: ...

    def create(self, address: Address, values: Mapping[str, str]) -> None:
        """Create an entity with these properties, by their names in the management API; values as people write them (`1m`,
        `true`)."""

    def delete(self, address: Address) -> None: ...
