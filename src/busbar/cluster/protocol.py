"""What crosses the channels between processes of a namespace: the operations, and the frames that carry them.

Calls of the broker's API follow from the annotations of `BrokerApi`: its parameters are the arguments, its result the
answer. Descriptions travel as definitions, in the form in which the store keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_type_hints

import msgspec

from busbar.catalogue.definition import decode_definition, encode_definition
from busbar.cluster.codec_table import Int
from busbar.model.api import (
    BrokerApi,
    EntityListing,
    EntityView,
    NamedRule,
    RuleChange,
    RuntimeProperties,
)
from busbar.model.entities import Description, RuleDescription

P = ParamSpec("P")
T = TypeVar("T")

# ---- what is asked of a store in a broker process, and (the last two) of the controller about it ----


class AssignStore(msgspec.Struct, array_like=True, tag="serve"):
    """There is such a store, and it is yours."""


class OpenStore(msgspec.Struct, array_like=True, tag="open"):
    pass


class CreateStore(msgspec.Struct, array_like=True, tag="make"):
    pass


class MarkUnavailable(msgspec.Struct, array_like=True, tag="keep out"):
    reason: str


class StartReopening(msgspec.Struct, array_like=True, tag="keep trying"):
    pass


class RestoreStore(msgspec.Struct, array_like=True, tag="return"):
    """The broker process was started again: open the store when that is possible, and as the operator wants it."""

    reason: str
    offline: bool
    reset: bool


class BarSessions(msgspec.Struct, array_like=True, tag="bar sessions"):
    """Nobody may accept sessions of these fragments before these times: locks of a process that died may be believed in."""

    until: dict[Int, Int]


class AddFragments(msgspec.Struct, array_like=True, tag="add"):
    settings: bytes


class ChangeFragments(msgspec.Struct, array_like=True, tag="change"):
    settings: bytes


class RemoveFragment(msgspec.Struct, array_like=True, tag="remove"):
    fragment: int


class ReadCatalogue(msgspec.Struct, array_like=True, tag="read catalogue"):
    pass


class RepairCatalogue(msgspec.Struct, array_like=True, tag="repair catalogue"):
    rows: dict[str, bytes | None]


class WriteCatalogue(msgspec.Struct, array_like=True, tag="write catalogue"):
    rows: dict[str, bytes | None]


class SetOffline(msgspec.Struct, array_like=True, tag="offline"):
    pass


class SetOnline(msgspec.Struct, array_like=True, tag="online"):
    pass


class ResetStore(msgspec.Struct, array_like=True, tag="reset"):
    pass


class StopTimers(msgspec.Struct, array_like=True, tag="wind down"):
    pass


class DrainStore(msgspec.Struct, array_like=True, tag="drain"):
    timeout: float


class CloseStore(msgspec.Struct, array_like=True, tag="close"):
    pass


class AdmitStore(msgspec.Struct, array_like=True, tag="admit"):
    """A store was opened, or re-created: may it serve?"""

    anew: bool


class StoreFenced(msgspec.Struct, array_like=True, tag="taken away"):
    """Another owner has the store."""


class GetLastUsed(msgspec.Struct, array_like=True, tag="use"):
    """When were these fragments last used? Answered with a time for each."""

    fragments: list[Int]


# ---- what the controller asks of a broker process as a whole (its store is "") ----


class EntitySnapshot(msgspec.Struct, array_like=True, tag="know"):
    """Entities that are there."""

    definitions: list[bytes]


class EntityChanged(msgspec.Struct, array_like=True, tag="changed"):
    """What was created or updated, or (with None) deleted. Answered when nothing here goes by what was before."""

    path: str
    definition: bytes | None


class OpenGateway(msgspec.Struct, array_like=True, tag="open gateway"):
    settings: bytes


class ConnectPeers(msgspec.Struct, array_like=True, tag="meet"):
    """Answered when these other broker processes can be reached."""

    brokers: list[str]


class Ping(msgspec.Struct, array_like=True, tag="ping"):
    """Are you there? Answered at once."""


class Ended(msgspec.Struct, array_like=True, tag="ended"):
    """Another broker process has ended, and the connections of its clients with it."""

    broker: str


class CloseGateway(msgspec.Struct, array_like=True, tag="close gateway"):
    pass


# ---- what a broker process asks of the controller, or of another broker process ----


class CatalogueRequest(msgspec.Struct, array_like=True, tag="ask"):
    """A call of the broker's API, by the name of its method. Answered with its result (ApiCall)."""

    method: str
    arguments: bytes


class Introduce(msgspec.Struct, array_like=True, tag="introduce"):
    """There is no channel to the stores of that broker process (any more): make one, if it is there."""

    broker: str


class ReportInUse(msgspec.Struct, array_like=True, tag="in use"):
    """Entities to which the broker process has links, or has none any more."""

    paths: list[str]
    attached: bool


class Met(msgspec.Struct, array_like=True, tag="met"):
    """Said by a gateway over a new channel: holders of sessions that it reached over an earlier one have lost them."""


class OriginClosed(msgspec.Struct, array_like=True, tag="gone"):
    """A connection of the gateway has ended."""

    origin: Int


StoreOperation = (
    AssignStore
    | OpenStore
    | CreateStore
    | MarkUnavailable
    | StartReopening
    | RestoreStore
    | BarSessions
    | AddFragments
    | ChangeFragments
    | RemoveFragment
    | ReadCatalogue
    | RepairCatalogue
    | WriteCatalogue
    | SetOffline
    | SetOnline
    | ResetStore
    | StopTimers
    | DrainStore
    | CloseStore
    | AdmitStore
    | StoreFenced
    | GetLastUsed
)
NodeOperation = EntitySnapshot | EntityChanged | OpenGateway | ConnectPeers | Ping | Ended | CloseGateway
Operation = StoreOperation | NodeOperation | CatalogueRequest | Introduce | ReportInUse | Met | OriginClosed


# ---- frames: four bytes of length, then one of these ----


class Call(msgspec.Struct, array_like=True, tag=1):
    number: Int
    store: str
    operation: Operation


class CallReply(msgspec.Struct, array_like=True, tag=2):
    number: Int
    value: msgspec.Raw


class CallError(msgspec.Struct, array_like=True, tag=3):
    number: Int
    kind: str
    """The class of a StoreError, or empty: a BusbarError with this condition."""
    condition: str
    text: str
    certain: bool


class CommandsFrame(msgspec.Struct, array_like=True, tag=4):
    store: str
    commands: msgspec.Raw


class EffectsFrame(msgspec.Struct, array_like=True, tag=5):
    store: str
    effects: msgspec.Raw


class StoreStatus(msgspec.Struct, array_like=True, tag=6):
    """Of a store in another process. `loss` is what StoreLoss has."""

    store: str
    state: str
    reason: str
    loss: tuple[Int, Int, Int] | None


Frame = Call | CallReply | CallError | CommandsFrame | EffectsFrame | StoreStatus


# ---- calls of the broker's API ----


def _encode_description(description: Description) -> bytes:
    return encode_definition(EntityView("", description, ()))


def _decode_description(encoded: bytes) -> Description:
    return decode_definition(encoded).description


def _encode_rule(rule: NamedRule | None) -> bytes | None:
    return None if rule is None else encode_definition(EntityView(rule[0], rule[1], ()))


def _decode_rule(encoded: bytes | None) -> NamedRule | None:
    if encoded is None:
        return None
    view = decode_definition(encoded)
    if not isinstance(view.description, RuleDescription):
        raise msgspec.DecodeError("the definition of a default rule is not that of a rule")
    return view.path, view.description


def _encode_rule_changes(changes: Sequence[RuleChange]) -> list[tuple[str, bytes | None]]:
    return [(path, None if rule is None else _encode_description(rule)) for path, rule in changes]


def _decode_rule_changes(encoded: list[tuple[str, bytes | None]]) -> list[RuleChange]:
    changes: list[RuleChange] = []
    for path, definition in encoded:
        rule = None if definition is None else _decode_description(definition)
        if rule is not None and not isinstance(rule, RuleDescription):
            raise msgspec.DecodeError(f"the definition of the rule '{path}' is not that of a rule")
        changes.append((path, rule))
    return changes


def _encode_views(views: Sequence[EntityView]) -> list[bytes]:
    return [encode_definition(view) for view in views]


def _decode_views(encoded: list[bytes]) -> list[EntityView]:
    return [decode_definition(one) for one in encoded]


class _Page(msgspec.Struct, array_like=True):
    namespace: str
    entities: list[bytes]
    runtimes: list[RuntimeProperties]
    has_more: bool


def _encode_page(page: EntityListing) -> _Page:
    return _Page(page.namespace, _encode_views(page.entities), [*page.runtimes], page.has_more)


def _decode_page(page: _Page) -> EntityListing:
    return EntityListing(page.namespace, _decode_views(page.entities), page.runtimes, page.has_more)


def _as_it_is(value: Any) -> Any:
    return value


_Crossing = tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]
_CROSSINGS: dict[Any, _Crossing] = {
    EntityView: (bytes, encode_definition, decode_definition),
    Sequence[EntityView]: (list[bytes], _encode_views, _decode_views),
    EntityListing: (_Page, _encode_page, _decode_page),
    Description: (bytes, _encode_description, _decode_description),
    NamedRule | None: (bytes | None, _encode_rule, _decode_rule),
    Sequence[RuleChange]: (list[tuple[str, bytes | None]], _encode_rule_changes, _decode_rule_changes),
}
"""By type: what it is encoded as, and the way there and back. All other types are encoded as they are."""


class ApiCall(Generic[P, T]):
    """One method of BrokerApi that the controller answers for broker processes."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self.name = method.__name__
        hints = get_type_hints(method)
        result = hints.pop("return")
        self._crossings = [_CROSSINGS.get(hint, (hint, _as_it_is, _as_it_is)) for hint in hints.values()]
        wire, self._encode_result, self._decode_result = _CROSSINGS.get(
            result, (result, _as_it_is, _as_it_is)
        )
        self._results: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(wire)
        self._arguments: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            tuple[tuple(wire for wire, _, _ in self._crossings)]  # type: ignore[misc]  # made by the annotations
        )

    def request(self, *arguments: P.args, **named: P.kwargs) -> CatalogueRequest:
        """The call with these arguments, all of them by position."""
        assert not named, f"{self.name} is called by position"
        pairs = zip(self._crossings, arguments, strict=True)
        return CatalogueRequest(
            self.name, msgspec.msgpack.encode([encode(value) for (_, encode, _), value in pairs])
        )

    def result(self, encoded: msgspec.Raw) -> T:
        """What the method returned in the other process."""
        found: T = self._decode_result(self._results.decode(encoded))
        return found

    async def perform(self, broker: BrokerApi, arguments: bytes) -> object:
        """Call the method; its result, ready to be encoded. Raises what the method raises, or msgspec.DecodeError."""
        values = self._arguments.decode(arguments)
        given = [decode(value) for (_, _, decode), value in zip(self._crossings, values, strict=True)]
        return self._encode_result(await getattr(broker, self.name)(*given))


ENTITY = ApiCall(BrokerApi.entity)
CREATE = ApiCall(BrokerApi.create)
UPDATE = ApiCall(BrokerApi.update)
DELETE = ApiCall(BrokerApi.delete)
CHANGE_RULES = ApiCall(BrokerApi.change_rules)
LIST = ApiCall(BrokerApi.list)
CREATE_TAP = ApiCall(BrokerApi.create_tap)
CHANGE_TAP = ApiCall(BrokerApi.change_tap)
PAGE = ApiCall(BrokerApi.page)
RUNTIME = ApiCall(BrokerApi.runtime)
RUNTIMES = ApiCall(BrokerApi.runtimes)
NAMESPACE = ApiCall(BrokerApi.namespace)
FRAGMENTS = ApiCall(BrokerApi.fragments)
STORES = ApiCall(BrokerApi.stores)
CHANGE_STORE = ApiCall(BrokerApi.change_store)

_CHANGES: tuple[ApiCall[..., Any], ...] = (CREATE, UPDATE, DELETE, CHANGE_RULES, CREATE_TAP, CHANGE_TAP)
_OTHERS: tuple[ApiCall[..., Any], ...] = (
    ENTITY, LIST, PAGE, RUNTIME, RUNTIMES, NAMESPACE, FRAGMENTS, STORES, CHANGE_STORE,
)  # fmt: skip
_CALLS = {call.name: call for call in (*_CHANGES, *_OTHERS)}
CATALOGUE_CHANGES = frozenset(call.name for call in _CHANGES)
"""Methods after which entities are other than before."""


async def perform(broker: BrokerApi, request: CatalogueRequest) -> object:
    """Answer a call. Raises what the broker raises, or msgspec.DecodeError for what is no call of this protocol."""
    call = _CALLS.get(request.method)
    if call is None:
        raise msgspec.DecodeError(f"'{request.method}' is not a call of the broker's API")
    return await call.perform(broker, request.arguments)
