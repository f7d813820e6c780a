"""What a gateway can request of a broker: batched commands down, batched effects up, and the catalogue of entities.

A gateway reaches fragments and entities only through this. The broker behind it may be in the same process or in another
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from busbar.model.access import AccessChange
from busbar.model.commands import Command
from busbar.model.connection_views import ConnectionQuery, ConnectionReport
from busbar.model.effects import Effect
from busbar.model.entities import Description, EntityKind, RuleDescription, Tier
from busbar.model.figures import ProcessFigures
from busbar.model.history import HistoryRecording, HistoryStep
from busbar.model.node_views import NodeView
from busbar.model.taps import TapChange, TapDescription

Commands = list[Command]
Effects = list[Effect]
EffectSink = Callable[[Effects], None]


@dataclass(frozen=True, slots=True)
class EntityView:
    """An entity (or a rule) of the catalogue: its description and where its fragments are."""

    path: str
    """The name as created (requests may spell it in another case)."""
    description: Description
    fragments: tuple[int, ...]
    """Fragment ids in the order of their index; one for a regular queue, none for a rule."""
    created: int = 0
    updated: int = 0
    """ms since 1970."""
    stores: tuple[str, ...] = ()
    """The name of the store of each fragment."""
    taps: tuple[TapDescription, ...] = ()


EntityChangeSink = Callable[[str, EntityView | None], None]
"""Gets the path and the view of an entity that was created or updated, or the path of a deleted one with None."""
NamedRule = tuple[str, RuleDescription]
RuleChange = tuple[str, RuleDescription | None]
"""The path of a rule, and its description, or None if it is removed."""


class RuntimeProperties(NamedTuple):
    """What an entity holds now, summed over its fragments. Times in ms since 1970. A scrape makes thousands of them: a
    dataclass would cost thrice."""

    active: int = 0
    """Locked messages included."""
    locked: int = 0
    oldest: int = 0
    """When the first active message was enqueued; 0: there is none, or it is not in memory."""
    dead_letter: int = 0
    scheduled: int = 0
    deferred: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0
    size: int = 0
    accessed: int = 0
    """0: not since the broker started."""
    subscriptions: int = 0
    available: bool = True
    """False: a fragment is unavailable, and the numbers are those of the others (`Limited`)."""
    sql_filters: int = 0
    """Rules of a topic's subscriptions with an expression; True and False are expressions too."""
    correlation_filters: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceProperties:
    name: str
    tier: Tier
    created: int
    modified: int


@dataclass(frozen=True, slots=True)
class EntityListing:
    """Some entities of a list, in the order of names."""

    namespace: str
    entities: Sequence[EntityView]
    runtimes: Sequence[RuntimeProperties]
    """What each of them holds. Rules hold nothing."""
    has_more: bool


@dataclass(frozen=True, slots=True)
class FragmentView:
    """A fragment for its operator. The counts are 0 while it is unavailable. Times in ms since 1970."""

    index: int
    id: int
    store: str
    state: str
    """`open` or `unavailable`."""
    reason: str = ""
    """Why it is unavailable."""
    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    deferred: int = 0
    transfer: int = 0
    """On the way to other entities."""
    transfer_dead_letter: int = 0
    size: int = 0
    oldest: int = 0
    """When its first message was enqueued (0: it has none)."""
    broker: str = ""
    """The broker process that handles it (empty: the controller)."""


@dataclass(frozen=True, slots=True)
class StoreView:
    """A messaging store for its operator. Times in ms since 1970."""

    name: str
    url: str
    state: str
    """`open` or `unavailable`."""
    since: int
    reason: str = ""
    fragments: int = 0
    size: int = 0
    """Bytes on the disk."""
    free: int = -1
    """Bytes that are free on its disk; -1: not known."""
    lost_at: int = 0
    """When it was re-created because its file had disappeared (0: never, since the broker started)."""
    lost_messages: int = 0
    """-1: unknown."""
    lost_size: int = 0
    broker: str = ""
    """The broker process that owns it (empty: the controller)."""
    status: str = ""
    """What its operator should know of its place."""
    epoch: int = 0
    """How often it was claimed."""
    commit_p50: int = 0
    """Of its last commits, in microseconds."""
    commit_p99: int = 0
    group: int = 0
    """Messages that one of them changed, on average."""
    drained: bool = False
    """Whether it gets no fragments of new entities."""


@dataclass(frozen=True, slots=True)
class TransferView:
    """Messages of one fragment on their way to one fragment of another entity, for operators. Times in ms since 1970."""

    fragment: int
    target_fragment: int
    target: str = ""
    """The path of the target's entity; empty while it is not known yet."""
    source: str = ""
    """The path of the entity that they leave."""
    index: int = 0
    """Of the fragment in that entity."""
    target_index: int = 0
    """Of the target fragment in its entity."""
    by: str = ""
    """Why the first of them is moved: `ForwardTo`, `ForwardDeadLetteredMessagesTo` or `via`; empty: not known yet."""
    waiting: int = 0
    """Messages in the outbox of the fragment for this target fragment."""
    oldest: int = 0
    """When the first of them came there (0: not known)."""
    state: str = "moving"
    """`moving` or `held`."""
    since: int = 0
    """When it was held first, and nothing moved since."""
    cause: str = ""
    """Of what is held: `full`, `unavailable`, `missing` or `refused`."""
    reason: str = ""
    """The same, as the broker reported it."""


@dataclass(frozen=True, slots=True)
class TransferReport:
    moved: int
    """Messages that were moved since the brokers started."""
    transfers: Sequence[TransferView]
    """All that are under way or held, each source fragment and target fragment once."""


class ConnectionQuota(Protocol):
    """How many AMQP connections there may be: of the namespace (the subject is empty), and with links to one entity (the
    subject is its key)."""

    def take(self, subject: str) -> bool:
        """Count one more connection, if that can be decided at once. If not, `request` decides."""

    async def request(self, subject: str) -> bool:
        """Count one more connection, or return False: there is no room. If the call is cancelled, nothing is counted."""

    def release(self, subject: str) -> None:
        """Stop counting a connection."""


class FragmentApi(Protocol):
    """Takes the commands of a gateway and returns their effects."""

    def connect(self, sink: EffectSink, failed: Callable[[], None] | None = None) -> int:
        """Register a gateway connection; the number is the `origin` of its commands. If its sink raises, the
        origin is removed as by `disconnect`, the messages of that call are released, and `failed` is called to
        close the connection."""

    def disconnect(self, origin: int) -> None:
        """Remove the origin: its consumers leave every fragment. Later effects for it are dropped, and messages that were on
        their way to it are released."""

    def submit(self, commands: Commands) -> None:
        """Submit commands. Every command with an answer gets it: its effect, or Refused."""

    def is_near(self, store: str) -> bool:
        """Whether this process has the store open, so that commands for it do not cross to another process."""

    async def entity(self, path: str) -> EntityView:
        """The entity (or rule) of that path, in any case. Raises EntityNotFound or another BusbarError."""


class CatalogueApi(Protocol):
    """Management of a namespace. Every error is a BusbarError; a change that returned is durable."""

    async def entity(self, path: str) -> EntityView:
        """The entity (or rule) of that path, in any case. Raises EntityNotFound."""

    async def create(
        self, path: str, description: Description, default_rule: NamedRule | None = None
    ) -> EntityView:
        """Create an entity. A subscription gets `default_rule` or `$Default` (TrueFilter). Raises EntityAlreadyExists,
        ArgumentError, ArgumentOutOfRange, QuotaExceeded, InvalidOperation (tier)."""

    async def update(self, path: str, description: Description) -> EntityView:
        """Update an entity. Raises EntityNotFound, ArgumentError for what is fixed at creation."""

    async def delete(self, path: str) -> None:
        """Delete an entity; a topic with its subscriptions and rules. Raises EntityNotFound."""

    async def list(self, kind: EntityKind, parent: str, skip: int, top: int) -> Sequence[EntityView]:
        """Entities in the order of names. `parent` is the topic of subscriptions, the subscription of rules, '' otherwise.
        Raises EntityNotFound if the parent does not exist."""

    async def change_access(self, path: str, name: str, change: AccessChange) -> EntityView:
        """Change an authorization rule of a queue, a topic or the namespace (''). Raises EntityNotFound,
        EntityAlreadyExists, ArgumentError, ArgumentOutOfRange, InvalidOperation."""

    async def change_rules(self, changes: Sequence[RuleChange]) -> None:
        """Add and remove rules of subscriptions, in their order and in one change: all of it is done, or nothing. Raises
        EntityNotFound, EntityAlreadyExists, ArgumentError, QuotaExceeded."""

    async def check_rules(self, changes: Sequence[RuleChange]) -> None:
        """Raise the error with which `change_rules` would refuse these changes now. Nothing is changed."""

    async def create_tap(self, path: str, tap: TapDescription) -> EntityView:
        """Add a tap to an entity (`tap.id` is assigned here). Raises EntityNotFound, EntityAlreadyExists, ArgumentError,
        QuotaExceeded, InvalidOperation (a second one that consumes)."""

    async def change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        """Change the owner of a tap, or delete it. Raises EntityNotFound, InvalidOperation if it has another owner."""

    async def page(self, kind: EntityKind, parent: str, skip: int, top: int) -> EntityListing:
        """A page of `list`, with what each entity holds."""

    async def runtime(self, path: str) -> RuntimeProperties:
        """What an entity holds now. Raises EntityNotFound."""

    async def runtimes(self, paths: Sequence[str]) -> Sequence[RuntimeProperties | None]:
        """What several entities hold; None for one that does not exist."""

    async def namespace(self) -> NamespaceProperties: ...

    def watch(self, changed: EntityChangeSink) -> Callable[[], None]:
        """Call `changed` for every change when it is durable; the returned function ends this."""

    def in_use(self, paths: Sequence[str]) -> None:
        """Report that links of this gateway are attached to these entities, which are not idle until `out_of_use`. The
        gateway repeats this from time to time."""

    def out_of_use(self, paths: Sequence[str]) -> None:
        """Report that the last links of this gateway to these entities have ended."""


ANY_BROKER = "any"
"""In place of a broker's name: the store may be with any of them."""


class StoreApi(Protocol):
    """The stores of a namespace, for operators. Every error is a BusbarError."""

    async def fragments(self, path: str) -> Sequence[FragmentView]:
        """The fragments of an entity, in the order of their index. Raises EntityNotFound."""

    async def stores(self) -> Sequence[StoreView]: ...

    async def unavailable_stores(self) -> Sequence[str]:
        """The names of the unavailable stores."""

    async def nodes(self) -> Sequence[NodeView]:
        """The processes of the namespace."""

    async def log_level(self, level: str) -> str:
        """Change the level of the log of all processes (empty: leave it as it is); returns the level. Raises
        ArgumentError."""

    async def figures(self) -> Sequence[ProcessFigures]:
        """What the processes have done that serve clients. Those that do not answer are left out."""

    async def transfers(self) -> TransferReport:
        """What is moved from entities to others, and what is held. Broker processes that cannot be reached are left out."""

    async def history(self, message_id: str, entity: str = "") -> Sequence[HistoryStep]:
        """What was recorded of messages with an id, in the order of time: in one entity (a topic with its subscriptions) or
        in all. Broker processes that cannot be reached are left out."""

    async def recording(self) -> HistoryRecording:
        """Which entities record their history."""

    async def record_history(self, entity: str, on: bool) -> HistoryRecording:
        """Let an entity record its history from now on, or stop that; all of them if `entity` is empty. Raises
        EntityNotFound."""

    async def change_store(self, name: str, to: str) -> StoreView:
        """Change a store to `offline`, `online`, `reset`, or `forced-reset` (for one that an operator took offline); returns
        its new state. `drain` keeps new entities out of it, `undrain` ends that, and `remove` removes one that is empty.
        Raises ArgumentError, InvalidOperation."""

    async def move_store(self, name: str, broker: str) -> StoreView:
        """Have a broker process hand a store over to another one, and leave it there; returns its new state. With ANY_BROKER
        the store stays, and may be moved again for balance. Raises ArgumentError, InvalidOperation, ServerBusy."""

    async def restart_brokers(self) -> Sequence[str]:
        """Begin to restart all broker processes, one after the other; `nodes` shows how far it is. Returns their names.
        Raises InvalidOperation."""


class BackupApi(Protocol):
    """Backups of stores in files, while the namespace is served."""

    async def begin_backup(self) -> Sequence[str]:
        """Leave the files of all stores and of the catalogue as they are now, until `end_backup`, or for BACKUP_SECONDS.
        Returns the names of the stores. Raises InvalidOperation, ServerBusy."""

    async def end_backup(self) -> bool:
        """Let the files change again; whether all of them stayed as they were."""


BACKUP_SECONDS = 600.0


class ConnectionApi(Protocol):
    """The AMQP connections of the clients of a namespace, for operators."""

    async def connection_report(self, query: ConnectionQuery) -> ConnectionReport:
        """A page of the connections of all gateways. Raises ArgumentError, ArgumentOutOfRange."""

    async def close_connection(self, id: str) -> bool:
        """Close a connection; its client gets the reason. False: there is none with that id."""


class ProcessApi(Protocol):
    """The process that the gateway is in, for the probes of supervisors."""

    def reason_not_to_serve(self) -> str:
        """Why this process cannot serve clients now. Empty: entities are loaded, and it can reach an open store."""

    def hanging_for(self) -> float:
        """For how many seconds no store of this process has had a thread that answers. 0: one answers, or it has no
        stores."""


class BrokerApi(FragmentApi, CatalogueApi, StoreApi, BackupApi, ConnectionApi, ProcessApi, Protocol):
    """Everything that a gateway can request."""
