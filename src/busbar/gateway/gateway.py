"""The edge of a namespace: any number of ports, one acceptor and one limiter, AMQP and HTTP behind them."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable, Sequence

from busbar.gateway.amqp.connection import GatewayConnection
from busbar.gateway.authority import Authority
from busbar.gateway.connection_registry import ConnectionRegistry
from busbar.gateway.gateway_quota import GatewayQuota
from busbar.gateway.http.app import build_app
from busbar.gateway.http.connection import HttpServer
from busbar.gateway.http.probes import Probes
from busbar.gateway.link_registry import LinkRegistry
from busbar.gateway.listening.acceptor import Acceptor
from busbar.gateway.listening.connection_limiter import ConnectionLimiter, TrackedConnection
from busbar.gateway.listening.listener import Listener
from busbar.gateway.listening.protocol_detection import WireProtocol
from busbar.gateway.listening.websocket import WebSocketBridge
from busbar.gateway.services import GatewayServices
from busbar.gateway.tracing import Tracer
from busbar.model.api import BrokerApi, ConnectionQuota
from busbar.model.connection_views import ConnectionQuery, ConnectionReport, merged
from busbar.model.figures import GatewayFigures, view_of
from busbar.model.history import ClientName
from busbar.model.limits import Limits


class Gateway:
    """`tls` is the context for TLS clients; None: TLS is refused. `broker` is the name of its process among several,
    and `quota` has the limits of connections that they share; None: this gateway is the only one."""

    def __init__(
        self,
        port: BrokerApi,
        authority: Authority,
        limits: Limits,
        tls: ssl.SSLContext | None,
        broker: str = "",
        quota: ConnectionQuota | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        identity = secrets.token_hex(4)
        quota = quota or GatewayQuota(limits)
        self._attached = LinkRegistry(quota)
        self._connections = ConnectionRegistry(identity)
        self._service = GatewayServices(
            port,
            authority,
            limits,
            self._attached,
            f"busbar-{identity}",
            f"Reference:{identity}",
            broker,
            connections=self._connections,
            tracer=tracer,
        )
        self._port = port
        self._beat = limits.min_auto_delete_on_idle / 3000
        self._beating: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._limiter = ConnectionLimiter(limits, quota)
        self._probes = Probes(port, limits)
        bridge = WebSocketBridge(self._limiter, self._service)
        self._http = HttpServer(build_app(self._service, bridge, self._probes), self._limiter)
        self._acceptor = Acceptor(self._limiter, self._protocol_for, tls)
        self._listener = Listener(
            self._limiter.accept_delay, self._acceptor.accepted, self._limiter.evict_oldest
        )

    async def start(self) -> None:
        """Prepare for connections, which come after `listen` or `adopt`."""
        await self._http.start()
        self._unwatch = self._port.watch(self._attached.changed)
        self._beating = asyncio.get_running_loop().create_task(self._tell_in_use())

    async def listen(self, host: str, port: int) -> int:
        """Open one more port; returns its number (0 requests a free one). Raises OSError."""
        return await self._listener.listen(host, port)

    def adopt(self, accepted: socket.socket) -> None:
        """Take over a connection that another process has accepted."""
        self._acceptor.adopt(accepted)

    def evict_oldest(self) -> None:
        """Close the oldest connection, because there was no descriptor left for one more."""
        self._limiter.evict_oldest()

    @property
    def connection_count(self) -> int:
        """The number of connections."""
        return self._limiter.connection_count

    def client_names(self, clients: Sequence[tuple[int, int]]) -> list[ClientName | None]:
        """Who these clients are or were, each by the number of its connection at the broker and of a consumer."""
        return [self._service.clients.name(origin, consumer) for origin, consumer in clients]

    async def connection_report(self, query: ConnectionQuery) -> ConnectionReport:
        """The AMQP connections of this gateway, up to the end of the page that is asked for."""
        return await self._connections.report(query)

    async def page_of_connections(self, query: ConnectionQuery) -> ConnectionReport:
        """The page alone, for a namespace with this one gateway."""
        return merged([await self._connections.report(query)], query)

    async def close_connection(self, id: str) -> bool:
        """Close an AMQP connection; whether this gateway has it."""
        return self._connections.close(id)

    def figures(self) -> GatewayFigures:
        """What it has done, for operators."""
        service = self._service
        return GatewayFigures(
            self._attached.link_count, dict(service.refusals.by_condition), view_of(service.deliveries)
        )

    def close_clients(self) -> None:
        """Close all AMQP connections, so that no client relies on a session any more. Clients may connect again."""
        self._limiter.shut_down_all()

    async def stop(self) -> None:
        """Stop accepting, close the AMQP connections, and let HTTP requests under way finish."""
        self._probes.is_draining = True
        self._listener.close()
        self._acceptor.close()
        await self._limiter.close()
        await self._http.stop()
        if self._service.tracer is not None:
            await asyncio.to_thread(self._service.tracer.close)
        if self._unwatch is not None:
            self._unwatch()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    async def _tell_in_use(self) -> None:
        """Report entities with links, so that they are not deleted as idle."""
        while True:
            await asyncio.sleep(self._beat)
            entities = self._attached.entities()
            if entities:
                self._port.in_use(entities)

    def _protocol_for(self, speaks: WireProtocol, tracked: TrackedConnection) -> asyncio.Protocol:
        if speaks is WireProtocol.HTTP:
            return self._http.connection(tracked)
        return GatewayConnection(tracked, self._service)
