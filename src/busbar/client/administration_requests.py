"""Requests to the management API of a namespace, and the errors that its responses mean.

1. Every request ends within the timeout of the client, its retries included.
2. A read is tried again after every failure that may pass. A change is tried again only if the broker has certainly not
   carried it out: there was no connection, or the broker answered that it is busy.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote
from xml.etree.ElementTree import Element

from busbar.client.administration_xml import (
    AtomContent,
    NotAtomReply,
    read_entry,
    read_error,
    read_feed,
    write_entry,
)
from busbar.client.connection_string import AMQP_SCHEMES, split_connection_string
from busbar.client.errors import (
    AlreadyExists,
    ArgumentError,
    BusbarClientError,
    CannotConnect,
    InvalidOperation,
    NotFound,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    Unauthorized,
)
from busbar.client.http_requests import HttpConnections, HttpReply
from busbar.client.retry import Retry
from busbar.model.sas import sign

API_VERSION = "2024-05"
PAGE = 100
HTTPS_PORT = 443
EMULATOR_HTTP_PORT = 5300
TOKEN_SECONDS = 3600
TOKEN_RENEWED_BEFORE = 600
_CONTENT_TYPE = "application/atom+xml;type=entry;charset=utf-8"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ManagementAddress:
    """The HTTP address of a namespace, and the credentials for it."""

    host: str
    port: int
    tls: bool
    key_name: str = ""
    key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """A ready-made signature, instead of name and key."""
    entity_path: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def management_address(connection_string: str) -> ManagementAddress:
    """The address in a connection string. Raises ValueError.

    It uses TLS, unless there is `UseDevelopmentEmulator=true` or the address starts with `http://`. Without a port it is 443
    with TLS, and 5300 without.
    """
    parts = split_connection_string(connection_string, (*AMQP_SCHEMES, "http", "https"))
    tls = parts.scheme in ("https", "amqps") or not (parts.emulator or parts.scheme in ("http", "amqp"))
    return ManagementAddress(
        parts.host,
        parts.port or (HTTPS_PORT if tls else EMULATOR_HTTP_PORT),
        tls,
        parts.key_name,
        parts.key,
        parts.token,
        parts.entity_path,
    )


class ManagementRequests:
    """The requests of one client."""

    def __init__(
        self, address: ManagementAddress, timeout: float, retry: Retry, context: ssl.SSLContext | None
    ) -> None:
        self.address = address
        self.timeout = timeout
        self.retry = retry
        self.connections = HttpConnections(address.host, address.port, context if address.tls else None)
        self._token = ""
        self._token_until = 0.0

    async def get(self, path: str, description: str, what: str) -> AtomContent:
        content = read_entry((await self.request("GET", path, what)).body)
        if content is None or content.kind != description:
            raise NotFound(f"There is no such entity: {what}.")
        return content

    async def put(self, path: str, description: Element, what: str, *, change: bool) -> AtomContent:
        headers = {"Content-Type": _CONTENT_TYPE} | ({"If-Match": "*"} if change else {})
        reply = await self.request("PUT", path, what, headers=headers, body=write_entry(description))
        content = read_entry(reply.body)
        if content is None:
            raise NotAtomReply(f"The response for {what} has no description.")
        return content

    async def list(self, path: str, read: Callable[[AtomContent], T]) -> AsyncIterator[T]:
        skip = 0
        while True:
            reply = await self.request("GET", path, f"'{path}'", query=f"&$skip={skip}&$top={PAGE}")
            entries = read_feed(reply.body)
            for entry in entries:
                yield read(entry)
            if len(entries) < PAGE:
                return
            skip += len(entries)

    async def request(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: str = "",
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> HttpReply:
        """Make a request until it succeeds or fails for good."""
        target = f"/{quote(path, safe='/$~')}?api-version={API_VERSION}{query}"
        attempts = self.retry.start()
        try:
            async with asyncio.timeout(self.timeout):
                while True:
                    try:
                        sent = {"Authorization": self._authorization(), **(headers or {})}
                        reply = await self.connections.request(method, target, sent, body)
                        if reply.status < 300:
                            return reply
                        raise _refusal(reply, what)
                    except BusbarClientError as error:
                        if not _is_repeatable(method, error) or not await attempts.again():
                            raise
        except TimeoutError:
            raise OperationTimeout(
                f"{self.address.url} did not answer about {what} within {self.timeout:g} s."
            ) from None

    def _authorization(self) -> str:
        """A token for the namespace, or for the entity that the key is limited to."""
        address = self.address
        if address.token:
            return address.token
        now = time.time()
        if now >= self._token_until:
            resource = f"{address.url}/{address.entity_path}"
            self._token = sign(resource, address.key_name, address.key, int(now) + TOKEN_SECONDS)
            self._token_until = now + TOKEN_SECONDS - TOKEN_RENEWED_BEFORE
        return self._token


def _is_repeatable(method: str, error: BusbarClientError) -> bool:
    if method == "GET":
        return error.retryable
    return isinstance(error, CannotConnect | ServerBusy)


def _refusal(reply: HttpReply, what: str) -> BusbarClientError:
    """The error for a response that is not a success."""
    code, detail = read_error(reply.body)
    text = f"{what[0].upper()}{what[1:]}: {detail or f'the broker answered {reply.status}'}"
    match reply.status, code:
        case 400, _:
            return ArgumentError(text)
        case 401, _:
            return Unauthorized(text)
        case (403, 40301) | (412, _):
            return InvalidOperation(text)
        case 403, _:
            return QuotaExceeded(text)
        case ((404 | 410), _):
            return NotFound(text)
        case 408, _:
            return OperationTimeout(text)
        case (409, 40901) | (429 | 503, _):
            return ServerBusy(text)
        case 409, _:
            return AlreadyExists(text)
        case 501, _:
            return BusbarClientError(text, "amqp:not-implemented")
        case status, _ if status >= 500:
            return BusbarClientError(text, "amqp:internal-error")
    return BusbarClientError(text)
