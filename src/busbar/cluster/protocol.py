"""Defines what crosses the channels between processes of a namespace: the calls that each process takes, and the frames.

Calls follow from the annotations of these protocols, of StoreHost and of the broker API (calls.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from busbar.broker.host_api import StoreHost
from busbar.broker.inspection import FragmentCounts
from busbar.catalogue.change import EntityChange, StoreChange
from busbar.cluster.calls import RemoteInterface, since
from busbar.cluster.codec_table import Int
from busbar.cluster.failures import Failure
from busbar.cluster.node_settings import NodeSettings
from busbar.cluster.shared_quota import QuotaCounter
from busbar.model.api import BackupApi, CatalogueApi, ConnectionApi, EntityView, StoreApi, TransferReport
from busbar.model.commands import Command
from busbar.model.connection_views import ConnectionQuery, ConnectionReport
from busbar.model.figures import ProcessFigures
from busbar.model.history import ClientName, HistoryRecording, HistoryStep
from busbar.model.node_views import NodeView
from busbar.store.location import OwnerSilence

NODE = ""
"""The target of calls for a process as a whole. Other targets are stores, by their names."""
ALL_STORES = "*"
"""The target of calls for all stores of a broker process."""


class HostedStore(StoreHost, Protocol):
    """A store in its broker process, as the controller calls it."""

    async def restore(self, reason: str, offline: bool, reset: bool) -> None:
        """Open the store when that is possible, in the state that the operator set: its broker process was started again."""

    def set_gateways(self, gateways: Sequence[str]) -> None:
        """Note which gateways live. Session locks of fragments that are loaded are those of their clients; all others have
        ended."""

    async def hand_over(self) -> list[Command]:
        """Release the store, so that another broker process can claim it. Returns the commands of the controller that were
        not applied. Raises ServerBusy if the store stays."""

    @since(2)
    def owner_seen(self, seen: OwnerSilence) -> None:
        """Note what was seen of the owner of the store, for the claim that follows."""

    async def last_uses(self, fragments: Sequence[int]) -> Sequence[int]:
        """When each of these fragments was last used."""


class BrokerStoresApi(Protocol):
    """All stores of a broker process, as the controller calls them."""

    def assign_store(self, store: str) -> None:
        """Make this broker process the owner of that store."""

    async def apply_change(
        self, version: int, stores: Mapping[str, StoreChange], entities: Sequence[EntityChange]
    ) -> dict[str, Exception]:
        """Carry out the change of the catalogue with that number: in these stores, then at the gateway. Returns the stores
        that failed."""

    async def inspect(self, fragments: Sequence[int]) -> dict[int, FragmentCounts]:
        """What these fragments hold. Those that this broker process does not have are left out."""


class NodeApi(Protocol):
    """A broker process as a whole, as the controller calls it."""

    def load_entities(self, version: int, entities: Sequence[EntityView]) -> None:
        """Entities and rules of the namespace, sent to a broker when it joins, with the number of the last change."""

    def reload_entities(self, version: int, entities: Sequence[EntityView]) -> None:
        """All entities and rules of the namespace, sent to a broker that had earlier ones from another controller."""

    async def ping(self) -> None:
        """Completes at once; the completion is the reply to the controller."""

    async def open_gateway(self, settings: NodeSettings) -> None: ...

    async def connect_peers(self, brokers: Sequence[str]) -> None:
        """Wait until these other broker processes can be reached."""

    def broker_joined(self, broker: str, address: str) -> None:
        """Note that another broker process of another node is there, and where its stores can be reached."""

    def broker_lost(self, broker: str) -> None:
        """End the channels to a broker process that is silent: its stores are claimed by others."""

    def broker_ended(self, broker: str, gateway: str) -> None:
        """Note that another broker process has ended, and its gateway and the connections of its clients with it."""

    def stores_moved(self, owners: Mapping[str, str]) -> None:
        """Note that these stores are claimed by other broker processes from now on, each by that one."""

    async def transfers(self) -> TransferReport:
        """What is moved out of fragments of this process, and what is held."""

    async def view(self) -> NodeView:
        """What operators see of this process."""

    @since(2)
    async def history(self, message_id: str) -> Sequence[HistoryStep]:
        """What this process has recorded of messages with an id."""

    @since(2)
    async def client_names(self, clients: Sequence[tuple[int, int]]) -> Sequence[ClientName | None]:
        """Who these clients of its gateway are or were, each by the numbers of its connection and of a consumer."""

    @since(2)
    def set_recording(self, recording: HistoryRecording) -> None:
        """Record the history of these entities from now on."""

    @since(2)
    async def look_at_store(self, store: str) -> OwnerSilence:
        """What this process sees of the owner of a store that another one should have."""

    @since(2)
    async def connection_report(self, query: ConnectionQuery) -> ConnectionReport:
        """The connections of this process, up to the end of the page that is asked for."""

    @since(2)
    async def close_connection(self, id: str) -> bool:
        """Close a connection of this process; whether it has it."""

    @since(2)
    def set_log_level(self, level: str) -> None:
        """Change the level of the log of this process."""

    @since(2)
    async def figures(self) -> ProcessFigures:
        """What this process has done since it began."""

    async def close_gateway(self) -> None: ...


class ControllerApi(CatalogueApi, StoreApi, BackupApi, ConnectionApi, QuotaCounter, Protocol):
    """The controller, as a broker process calls it: the broker API of its gateway, and what concerns its stores."""

    async def changes_decided(self) -> None:
        """Wait for the change that is under way, if there is one: until all brokers have it, or it is taken back."""

    async def release_stores(self) -> None:
        """Hand all stores of this broker process over to others, since it is about to end. Those that cannot be handed over
        stay."""

    def leaving(self) -> None:
        """Note that this broker process ends: its stores are closed, and its clients have left."""

    def introduce(self, broker: str) -> None:
        """Make a channel to the stores of that broker process, if the process is there: there is none."""

    async def admit_store(self, store: str, anew: bool) -> None:
        """A store was opened, or re-created (`anew`). Raises StoreError if it may not serve."""

    def store_fenced(self, store: str) -> None:
        """Another owner has claimed the store."""


class PeerApi(Protocol):
    """A broker process, as the gateway of another one calls it."""

    def sessions_resumed(self, store: str) -> None:
        """Note that all sessions of a store are resumed that clients of the gateway hold. They have left all others."""

    def origin_closed(self, origin: int) -> None:
        """A connection of the gateway has ended."""

    async def ping(self) -> None:
        """Completes at once; the completion is the reply to the gateway."""

    async def leave_store(self, store: str) -> list[Command] | None:
        """Note that no more commands for a store come, which goes to another broker process. Returns those by which the
        gateway's clients go on there, when the gateway has got every effect of this process. None: the store stays."""


# Commands and effects have frames of their own. What has a callback, or is answered from a replica, stays in its process.
STORE = RemoteInterface[HostedStore](
    HostedStore,  # type: ignore[type-abstract]
    without={"submit", "last_used", "refresh_last_used"},
    later={"freeze": 2, "thaw": 2},
)
STORES = RemoteInterface[BrokerStoresApi](BrokerStoresApi)  # type: ignore[type-abstract]
NODES = RemoteInterface[NodeApi](NodeApi)  # type: ignore[type-abstract]
CONTROLLER = RemoteInterface[ControllerApi](
    ControllerApi,  # type: ignore[type-abstract]
    without={"watch", "list", "page"},
    later=dict.fromkeys(
        (
            "begin_backup",
            "change_access",
            "close_connection",
            "connection_report",
            "end_backup",
            "figures",
            "history",
            "log_level",
            "record_history",
            "recording",
        ),
        2,
    ),
)
PEER = RemoteInterface[PeerApi](PeerApi)  # type: ignore[type-abstract]


# ---- frames: four bytes of length, then one of these ----


class Call(msgspec.Struct, array_like=True, tag=1):
    """A call of a method of the target. The number 0 asks for no reply."""

    number: Int
    target: str
    method: str
    arguments: msgspec.Raw


class CallReply(msgspec.Struct, array_like=True, tag=2):
    number: Int
    value: msgspec.Raw


class CallError(msgspec.Struct, array_like=True, tag=3):
    number: Int
    failure: Failure


class CommandsFrame(msgspec.Struct, array_like=True, tag=4):
    store: str
    commands: msgspec.Raw


class EffectsFrame(msgspec.Struct, array_like=True, tag=5):
    store: str
    effects: msgspec.Raw


class StoreStatus(msgspec.Struct, array_like=True, tag=6):
    """The state of a store in another process. `loss` is what StoreLoss has."""

    store: str
    state: str
    reason: str
    loss: tuple[Int, Int, Int] | None


StoreFrame = CommandsFrame | EffectsFrame | StoreStatus
Frame = Call | CallReply | CallError | StoreFrame
