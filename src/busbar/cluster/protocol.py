"""The words of the channels between processes of a namespace: what is asked for by name, and the frames that carry it."""

from __future__ import annotations

import msgspec

from busbar.cluster.codec_table import Int
from busbar.cluster.requests import Request

# ---- what is asked of a store in a broker process, and (the last two) of the serving process about it ----


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
    """A store was opened, or made anew: may it serve?"""

    anew: bool


class StoreFenced(msgspec.Struct, array_like=True, tag="taken away"):
    """Another owner has the store."""


class GetLastUsed(msgspec.Struct, array_like=True, tag="use"):
    """When were these fragments last used? Answered with a time for each."""

    fragments: list[Int]


# ---- what the serving process asks of a broker process as a whole (its store is "") ----


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


# ---- what a broker process asks of the serving process, or of another broker process ----


class CatalogueRequest(msgspec.Struct, array_like=True, tag="ask"):
    """Something of the catalogue. Answered with a list of encoded answers."""

    request: Request


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
