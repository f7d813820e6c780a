"""ServiceBusAdministrationClient, unmodified, synchronous and asynchronous behind one face; and bare HTTP beside it.

No retries: what the broker does wrong once must be seen, not repaired by the client.
"""

from __future__ import annotations

import http.client
import inspect
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import azure.servicebus.aio.management
import azure.servicebus.management

from busbar.model.sas import sign
from harness.serving import Busbar
from tests.interop.azure_sdk import in_thread


class Administration:
    """A client of either kind: its methods are awaited, its lists are lists."""

    def __init__(
        self, server: Busbar, *, asynchronous: bool, connection_string: str = "", **options: Any
    ) -> None:
        package = azure.servicebus.aio.management if asynchronous else azure.servicebus.management
        self.raw = package.ServiceBusAdministrationClient.from_connection_string(
            connection_string or server.connection_string,
            connection_verify=str(server.data / "tls" / "ca.pem"),
            retry_total=0,
            **options,
        )
        self._asynchronous = asynchronous

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.raw, name)

        async def call(*args: Any, **options: Any) -> Any:
            if not self._asynchronous:
                return await in_thread(method, *args, **options)
            result = method(*args, **options)
            return await result if inspect.isawaitable(result) else result

        async def collect(*args: Any, **options: Any) -> list[Any]:
            if not self._asynchronous:
                return await in_thread(lambda: list(method(*args, **options)))
            return [item async for item in method(*args, **options)]

        return collect if name.startswith("list_") else call

    async def pages(self, name: str, *args: Any, **options: Any) -> list[list[Any]]:
        """The list of that name as it came, page by page."""
        paged = getattr(self.raw, name)(*args, **options).by_page()
        if not self._asynchronous:
            return await in_thread(lambda: [list(page) for page in paged])
        return [[item async for item in page] async for page in paged]

    async def close(self) -> None:
        await (self.raw.close() if self._asynchronous else in_thread(self.raw.close))


@asynccontextmanager
async def administrations(server: Busbar) -> AsyncIterator[tuple[Administration, Administration]]:
    """Both kinds, for tests that would otherwise do twice what takes long."""
    clients = Administration(server, asynchronous=False), Administration(server, asynchronous=True)
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()


class BareHttp:
    """A client that knows nothing: the request as it is written, without TLS, on the same port."""

    def __init__(self, server: Busbar) -> None:
        self._server = server

    def token(self, path: str = "", *, key: str = "", life: int = 60) -> str:
        resource = f"http://localhost/{path}".lower()
        return sign(resource, "RootManageSharedAccessKey", key or self._server.key, int(time.time()) + life)

    def request(
        self, method: str, target: str, body: str | bytes = "", *, token: str | None = None, **headers: str
    ) -> tuple[int, str, str]:
        """Status, content type and text of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=10)
        try:
            token = self.token() if token is None else token
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            if token:
                names["Authorization"] = token
            connection.request(method, target, body.encode() if isinstance(body, str) else body, names)
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()
        finally:
            connection.close()


def entry(description: str) -> str:
    """An ATOM entry; `description` is the element's name and what is in it: `QueueDescription <LockDuration>..`."""
    name, _, inner = description.partition(" ")
    namespace = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{name} xmlns="{namespace}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{inner}</{name}>'
        "</content></entry>"
    )
