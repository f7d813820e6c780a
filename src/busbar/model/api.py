"""What a gateway can ask of a broker: batched commands down, batched effects up, and the catalogue of entities.

A gateway knows fragments and entities only by this. Behind it may stand a broker of the same process or of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from busbar.model.commands import Command
from busbar.model.effects import Effect
from busbar.model.entities import Description, EntityKind, RuleDescription, Tier
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
    """The name of the store that each fragment lives in."""
    taps: tuple[TapDescription, ...] = ()


EntityChangeSink = Callable[[str, EntityView | None], None]
"""Gets the path of what was created or updated, with its view, or of what was deleted, with None."""
NamedRule = tuple[str, RuleDescription]
RuleChange = tuple[str, RuleDescription | None]
"""The path of a rule, and its description, or None if it is removed."""


@dataclass(frozen=True, slots=True)
class RuntimeProperties:
    """What an entity holds now, summed over its fragments. Times in ms since 1970."""

    active: int = 0
    """Locked messages included."""
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
    size: int = 0
    oldest: int = 0
    """When its first message came (0: it has none)."""
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
    lost_at: int = 0
    """When it was re-created because the old one had vanished (0: never, since the broker started)."""
    lost_messages: int = 0
    """-1: nobody knows."""
    lost_size: int = 0
    broker: str = ""
    """The broker process that owns it (empty: the controller)."""


class FragmentApi(Protocol):
    """Where a gateway sends commands and from where it gets effects."""

    def connect(self, sink: EffectSink, failed: Callable[[], None] | None = None) -> int:
        """Register a gateway connection; the number is the `origin` of its commands. If its sink raises, the origin is
        forgotten as by `disconnect`, what the sink was given is released, and `failed` is called to end the connection."""

    def disconnect(self, origin: int) -> None:
        """Forget the origin: its consumers leave every fragment; later effects for it are dropped, and messages
        that were on their way to it are released."""

    def submit(self, commands: Commands) -> None:
        """Hand over commands. Every one that has an answer gets it: its effect, or Refused."""

    async def entity(self, path: str) -> EntityView:
        """The entity (or rule) of that path, in any case. Raises EntityNotFound or another BusbarError."""


class CatalogueApi(Protocol):
    """Management of a namespace. Every error is a BusbarError; a change that returned is durable."""

    async def entity(self, path: str) -> EntityView:
        """By path in any case. Raises EntityNotFound."""

    async def create(
        self, path: str, description: Description, default_rule: NamedRule | None = None
    ) -> EntityView:
        """Raises EntityAlreadyExists, ArgumentError, ArgumentOutOfRange, QuotaExceeded, InvalidOperation (tier).
        A subscription gets `default_rule` or `$Default` (TrueFilter)."""

    async def update(self, path: str, description: Description) -> EntityView:
        """Raises EntityNotFound, ArgumentError for what is fixed at creation."""

    async def delete(self, path: str) -> None:
        """A topic goes with its subscriptions and rules. Raises EntityNotFound."""

    async def list(self, kind: EntityKind, parent: str, skip: int, top: int) -> Sequence[EntityView]:
        """In the order of names. `parent` is the topic of subscriptions, the subscription of rules, '' otherwise.
        Raises EntityNotFound for a parent that is not there."""

    async def change_rules(self, changes: Sequence[RuleChange]) -> None:
        """Add and remove rules of subscriptions, in their order and in one change: all of it is done, or nothing. Raises
        EntityNotFound, EntityAlreadyExists, ArgumentError, QuotaExceeded."""

    async def create_tap(self, path: str, tap: TapDescription) -> EntityView:
        """Add a tap to an entity (`tap.id` is given here). Raises EntityNotFound, EntityAlreadyExists, ArgumentError,
        QuotaExceeded, InvalidOperation (a second one that consumes)."""

    async def change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        """Let somebody own a tap, or delete it. Raises EntityNotFound, InvalidOperation if it has another owner."""

    async def page(self, kind: EntityKind, parent: str, skip: int, top: int) -> EntityListing:
        """As `list`, with what each entity holds."""

    async def runtime(self, path: str) -> RuntimeProperties:
        """Raises EntityNotFound."""

    async def runtimes(self, paths: Sequence[str]) -> Sequence[RuntimeProperties | None]:
        """What several entities hold; None for one that is not there."""

    async def namespace(self) -> NamespaceProperties: ...

    def watch(self, changed: EntityChangeSink) -> Callable[[], None]:
        """Hear of every change when it is durable; the answer ends it."""

    def in_use(self, paths: Sequence[str]) -> None:
        """Links of this gateway are attached to these entities, which keeps them from being idle until `out_of_use`. Said
        again from time to time."""

    def out_of_use(self, paths: Sequence[str]) -> None:
        """The last links of this gateway to these entities have ended."""


class StoreApi(Protocol):
    """Where a namespace is kept: for operators. Every error is a BusbarError."""

    async def fragments(self, path: str) -> Sequence[FragmentView]:
        """Those of an entity, in the order of their index. Raises EntityNotFound."""

    async def stores(self) -> Sequence[StoreView]: ...

    async def unavailable_stores(self) -> Sequence[str]:
        """The names of those that are unavailable."""

    async def change_store(self, name: str, to: str) -> StoreView:
        """`offline`, `online`, `reset`, or `forced-reset` for one that an operator took offline; the store as it is then.
        Raises ArgumentError, InvalidOperation."""


class BrokerApi(FragmentApi, CatalogueApi, StoreApi, Protocol):
    """All that a gateway can ask."""
