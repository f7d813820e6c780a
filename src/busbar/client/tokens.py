"""The tokens of one connection: one for each entity that is used, put to `$cbs` and renewed before it expires."""

from __future__ import annotations

import asyncio
import logging
import time

from busbar.client.connection import ClientConnection
from busbar.client.errors import BusbarClientError, Unauthorized
from busbar.client.requests import RequestNode

LIFETIME = 3600
RENEW_AFTER = 2700
TRY_AGAIN_AFTER = 30

_log = logging.getLogger(__name__)


class Tokens:
    def __init__(self, connection: ClientConnection, timeout: float, lifetime: int = LIFETIME) -> None:
        self._connection = connection
        self._timeout = timeout
        self._lifetime = lifetime
        self._node: RequestNode | None = None
        self._put: set[str] = set()
        self._lock = asyncio.Lock()

    @property
    def is_empty(self) -> bool:
        """No token was put yet."""
        return not self._put

    async def grant(self, path: str) -> None:
        """Put a token for an entity, unless there is one. Raises Unauthorized."""
        if path in self._put:
            return
        async with self._lock:
            if path in self._put:
                return
            await self._put_token(path)
            self._put.add(path)
        if self._connection.endpoint.key:
            self._connection.spawn(self._renew(path))

    async def _put_token(self, path: str) -> None:
        endpoint = self._connection.endpoint
        if self._node is None or self._node.error is not None:
            self._node = await RequestNode.open(self._connection, "$cbs", self._timeout)
        token = endpoint.token_for(path, int(time.time()) + self._lifetime)
        reply = await self._node.ask(
            token,
            {
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": endpoint.resource(path),
            },
            self._timeout,
        )
        status = reply.application_properties.get("status-code")
        if status not in (200, 202):
            said = reply.application_properties.get("status-description")
            raise Unauthorized(f"The token for '{path}' was refused: {said}")

    async def _renew(self, path: str) -> None:
        delay = self._lifetime * RENEW_AFTER / LIFETIME
        while True:
            await asyncio.sleep(delay)
            try:
                async with self._lock:
                    await self._put_token(path)
                delay = self._lifetime * RENEW_AFTER / LIFETIME
            except BusbarClientError as error:
                # The old token is still valid for a while. When it expires, the broker closes the links with the reason.
                _log.warning("the token for %r was not renewed: %s", path, error)
                delay = min(TRY_AGAIN_AFTER, self._lifetime / 10)
