"""The controller's end of the channel to one broker process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from busbar.catalogue.local_broker import LocalBroker
from busbar.cluster import protocol
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.channel import Channel
from busbar.cluster.codec import WireError, effects_codec
from busbar.cluster.connection_counter import CountedGateway
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.model.api import EntityView, RuntimeProperties
from busbar.model.errors import ServerBusy
from busbar.store.contract import StoreError

STARTING = "The controller is being started; nothing was changed. Retry."
WITHOUT_CATALOGUE = frozenset(
    ("leaving", "release_stores", "take_connections", "return_connections", "report_connections")
)
"""Calls that a controller answers without the catalogue."""


class BrokerConnection(Channel):
    def __init__(
        self,
        hosts: Mapping[str, RemoteStoreHost],
        ended: Callable[[], None],
        broker: LocalBroker | None = None,
        introduce: Callable[[str], None] = lambda broker: None,
        quota: CountedGateway | None = None,
        leaving: Callable[[], None] = lambda: None,
        release: Callable[[], Awaitable[None]] | None = None,
        *,
        may_have_others: bool = False,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`broker` answers the gateway of the broker process. `introduce` is called with the name of another broker process
        to which this one has no channel. `quota` counts the connections of the gateway. `release` hands its stores over,
        and `leaving` is called before it ends.

        If it `may_have_others`, the broker process can have stores that another controller assigned. Until the controller
        `is_ready`, it has no catalogue to answer from."""
        super().__init__()
        self._hosts = hosts
        self._ended = ended
        self._may_have_others = may_have_others
        self._is_ready = is_ready
        self._services = ControllerServices(self, broker, introduce, quota, leaving, release)

    def handle_frame(self, frame: protocol.StoreFrame) -> None:
        if self._may_have_others and frame.store not in self._hosts:
            return
        host = self.host(frame.store)
        if isinstance(frame, protocol.EffectsFrame):
            host.effects_received(effects_codec.decode(frame.effects))
        elif isinstance(frame, protocol.StoreStatus):
            host.status_changed(frame)
        else:
            raise WireError("The controller has no store to submit to.")

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return protocol.CONTROLLER, self._services if self._is_ready() else StartingController(self._services)

    def closed(self) -> None:
        self._ended()

    def host(self, store: str) -> RemoteStoreHost:
        host = self._hosts.get(store)
        if host is None and self._may_have_others:
            raise StoreError(f"{store} is not assigned to this broker process now")
        if host is None:
            raise WireError(f"A broker process named the store {store}, which it does not have.")
        return host


class ControllerServices:
    """A protocol.ControllerApi for one broker process. The broker API answers every method that is not defined here."""

    def __init__(
        self,
        connection: BrokerConnection,
        broker: LocalBroker | None,
        introduce: Callable[[str], None],
        quota: CountedGateway | None,
        leaving: Callable[[], None],
        release: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.introduce = introduce
        self.leaving = leaving
        self._release = release
        if quota is not None:
            self.take_connections = quota.take_connections
            self.return_connections = quota.return_connections
            self.report_connections = quota.report_connections
        self._connection = connection
        self._known = broker

    @property
    def _broker(self) -> LocalBroker:
        if self._known is None:
            raise WireError("There is no broker API at this end.")
        return self._known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def entity(self, path: str) -> EntityView:
        """The entity of that path. If a change of it is under way, its outcome is awaited."""
        return await self._broker.decided_entity(path)

    async def runtimes(self, paths: Sequence[str]) -> Sequence[RuntimeProperties | None]:
        """What entities hold. The change that is under way is awaited, as by `entity`."""
        await self._broker.changes_decided()
        return await self._broker.runtimes(paths)

    def in_use(self, paths: Sequence[str]) -> None:
        self._broker.in_use(paths, self._connection)

    def out_of_use(self, paths: Sequence[str]) -> None:
        self._broker.out_of_use(paths, self._connection)

    async def release_stores(self) -> None:
        if self._release is not None:
            await self._release()

    async def admit_store(self, store: str, anew: bool) -> None:
        await self._connection.host(store).admitted(anew)

    def store_fenced(self, store: str) -> None:
        self._connection.host(store).fenced()


class StartingController:
    """A protocol.ControllerApi while the catalogue is not loaded: what needs it is refused, and reports are ignored."""

    def __init__(self, services: ControllerServices) -> None:
        self._services = services

    def __getattr__(self, name: str) -> Any:
        if name in WITHOUT_CATALOGUE:
            return getattr(self._services, name)
        has_reply = protocol.CONTROLLER.methods[name].has_reply

        async def refuse() -> None:
            raise ServerBusy(STARTING)

        return lambda *arguments: refuse() if has_reply else None
