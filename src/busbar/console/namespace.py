"""What the console needs from a namespace, in plain values.

The console has no protocol and no key. `busbar console` gives it a `Namespace` that is a client of a running Busbar, the
same client that all commands use. Its methods wait for the network: the console calls them from threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from busbar.console.messages import Messages, SessionCalls


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

    @property
    def path(self) -> str:
        """The path of the entity in the namespace."""
        return f"{self.topic}/Subscriptions/{self.name}" if self.topic else self.name


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
    values: Mapping[str, str] = field(default_factory=dict)
    """The properties that can be set, by their names in the management API, as people write them."""


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
class HeldCounts:
    """What an entity holds at a moment. A counter of messages that is not reported is -1."""

    messages: int
    dead_letters: int
    incoming: int = -1
    outgoing: int = -1


@dataclass(frozen=True, slots=True)
class StoreSummary:
    name: str
    state: str
    reason: str
    fragments: int
    size: str
    broker: str = ""
    """The broker process that owns it, if there are several."""
    usual_commit: str = ""
    """The time of half of the last commits, at most."""
    slow_commit: str = ""
    """The time of 99 of 100."""
    group: int = 0
    """Messages of a commit, on average."""
    note: str = ""
    """What its operator should know of its place."""

    @property
    def open(self) -> bool:
        return self.state == "open"


@dataclass(frozen=True, slots=True)
class EntityPage:
    """A part of a list, and whether there is more."""

    entities: Sequence[Entity]
    more: bool


@dataclass(frozen=True, slots=True)
class ProcessSummary:
    """A process of the namespace. If it is not up, nothing else of it is known."""

    name: str
    state: str
    address: str = ""
    process: int = 0
    version: str = ""
    since: str = ""
    connections: int = 0
    change: int = 0
    """The last change of entities that it has."""
    reaches: int = 0
    """Other processes whose stores it can use."""
    stores: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TapSummary:
    entity: str
    """The path, with `/$DeadLetterQueue` if it is a tap of dead letters."""
    name: str
    reader: str
    """What reads it: a job and its archive, or the text that its owner chose."""
    records: str
    created: str
    lag: int
    """Messages that it has not passed, at most."""
    kept: int
    size: str
    truncated: bool
    limited: bool
    """A store with a part of it is unavailable: the numbers are those of the others."""


@dataclass(frozen=True, slots=True)
class TapsPage:
    taps: Sequence[TapSummary]
    total: int
    by_lag: bool = True
    """Those that are furthest behind come first. With very many taps the order is that of names."""


@dataclass(frozen=True, slots=True)
class RuleValues:
    """A rule of a subscription: a filter of one kind, and an action."""

    name: str
    kind: str = "SqlFilter"
    """SqlFilter, CorrelationFilter, TrueFilter or FalseFilter."""
    sql: str = ""
    system: Mapping[str, str] = field(default_factory=dict)
    """Properties of the system that must be equal, by their names in the management API."""
    properties: str = ""
    """Application properties that must be equal: lines of KEY=VALUE or KEY:TYPE=VALUE."""
    action: str = ""
    text: str = ""
    """The filter for people."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """An authorization rule. Keys are there only if they were asked for."""

    name: str
    rights: Sequence[str]
    updated: str = ""
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Keys and connection strings, by what they are called."""


@dataclass(frozen=True, slots=True)
class LinkSummary:
    """A link of a client: what the client does on it, and with which entity."""

    role: str
    entity: str
    messages: int
    rate: float
    unsettled: int
    credit: int


@dataclass(frozen=True, slots=True)
class ConnectionSummary:
    """A connection of a client, with the sums of its links."""

    id: str
    address: str
    client: str
    keys: Sequence[str]
    """The names of the rules whose keys it has used."""
    since: str
    rate: float
    unsettled: int
    credit: int
    link_count: int
    links: Sequence[LinkSummary]
    broker: str = ""
    tls: bool = False
    websocket: bool = False
    slow: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionsPage:
    connections: Sequence[ConnectionSummary]
    total: int
    silent: int
    """Brokers that did not answer."""


class Connections(Protocol):
    """The AMQP connections of clients. Every method raises NamespaceFailure."""

    def list(self, entity: str, sort: str, skip: int, limit: int) -> ConnectionsPage:
        """Connections with links to an entity, or all, in the order of model/connection_views.py."""

    def get(self, id: str) -> ConnectionSummary: ...

    def close(self, id: str) -> None: ...


class Rules(Protocol):
    """The rules of subscriptions. Every method raises NamespaceFailure."""

    def list(self, subscription: Address) -> Sequence[RuleValues]: ...

    def get(self, subscription: Address, name: str) -> RuleValues: ...

    def create(self, subscription: Address, rule: RuleValues) -> None: ...

    def update(self, subscription: Address, rule: RuleValues) -> None: ...

    def delete(self, subscription: Address, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class DescribedMessage:
    """A message to test rules with: one that is there, by its id, or one with these properties."""

    message_id: str = ""
    subject: str = ""
    properties: str = ""
    """A line for each: KEY[:TYPE]=VALUE."""


@dataclass(frozen=True, slots=True)
class SubscriptionVerdict:
    """Whether a subscription gets a message, and why."""

    name: str
    selected: bool
    reasons: Sequence[tuple[str, str]]
    """Of its rules, by name."""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """A step in the history of a message."""

    time: str
    entity: str
    number: str
    what: str
    reason: str
    client: str


class Diagnosis(Protocol):
    """Why a message did not arrive. Every method raises NamespaceFailure."""

    def test_rules(self, topic: str, message: DescribedMessage) -> Sequence[SubscriptionVerdict]:
        """Which subscriptions of a topic get a message."""

    def history(self, message_id: str) -> Sequence[StepSummary]:
        """What was recorded of messages with an id."""

    def recorded(self) -> Sequence[str]:
        """The entities that record their history; `*` stands for all."""

    def record(self, on: bool) -> None:
        """Let all entities record their history from now on, or none."""


class OperatorView(Protocol):
    """What operators look at. Every method raises NamespaceFailure."""

    def counts(self) -> Mapping[str, HeldCounts]:
        """What each queue and subscription holds now, by its path. A large namespace may leave some out."""

    def stores(self) -> Sequence[StoreSummary]:
        """Empty if the key does not allow to list them, or if the broker is not a Busbar."""

    def processes(self) -> Sequence[ProcessSummary]: ...

    def taps(self, skip: int, limit: int) -> TapsPage:
        """Taps of the namespace."""


class AccessRules(Protocol):
    """The authorization rules of an entity, or of the whole namespace (None). Every method raises NamespaceFailure."""

    def list(self, owner: Address | None) -> Sequence[AccessRule]: ...

    def keys(self, owner: Address | None, name: str) -> AccessRule:
        """The rule with its keys."""

    def create(self, owner: Address | None, name: str, rights: Sequence[str]) -> None: ...

    def renew(self, owner: Address | None, name: str, which: str) -> AccessRule:
        """Replace the `primary` or the `secondary` key. Returns the rule with its keys."""

    def delete(self, owner: Address | None, name: str) -> None: ...


class Namespace(Protocol):
    """A namespace. Every method raises NamespaceFailure."""

    @property
    def place(self) -> str:
        """The address of the namespace, for people."""

    @property
    def rules(self) -> Rules: ...

    @property
    def diagnosis(self) -> Diagnosis: ...

    @property
    def operation(self) -> OperatorView: ...

    @property
    def access_rules(self) -> AccessRules: ...

    @property
    def connections(self) -> Connections: ...

    @property
    def messages(self) -> Messages: ...

    @property
    def sessions(self) -> SessionCalls: ...

    def list(
        self, kind: EntityType, skip: int, limit: int, *, topic: str = "", search: str = ""
    ) -> EntityPage:
        """Queues, topics, or the subscriptions of a topic, in the order of names: those whose names contain `search`."""

    def entity(self, address: Address) -> Entity: ...

    def fragments(self, address: Address) -> Sequence[FragmentSummary]: ...

    def create(self, address: Address, values: Mapping[str, str]) -> None:
        """Create an entity with these properties, by their names in the management API; values as people write them (`1m`,
        `true`)."""

    def update(self, address: Address, values: Mapping[str, str]) -> None:
        """Change these properties, and no others."""

    def delete(self, address: Address) -> None: ...
