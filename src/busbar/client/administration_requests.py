"""Requests to the management API of a namespace, and the errors that its responses mean.

1. Every request ends within the timeout of the client, its retries included.
2. A read is tried again after every failure that may pass. A change is tried again only if the broker has certainly not
   carried it out: there was no connection, or the broker answered that it is busy.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
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
from busbar.client.connection_string import ManagementAddress
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

API_VERSION = "2024-05"
PAGE = 100
TOKEN_SECONDS = 3600
TOKEN_RENEWED_BEFORE = 600
_CONTENT_TYPE = "application/atom+xml;type=entry;charset=utf-8"

T = TypeVar("T")


Refusal = Callable[[HttpReply, str], Exception]
"""Makes the error for a response that is not a success; the text names what the request was about."""


class ManagementRequests:
    """The requests of one client. Its responses are entries of ATOM, as they came."""

    def __init__(
        self,
        address: ManagementAddress,
        timeout: float,
        retry: Retry,
        context: ssl.SSLContext | None,
        refusal: Refusal | None = None,
    ) -> None:
        self.address = address
        self.timeout = timeout
        self.retry = retry
        self.connections = HttpConnections(address.host, address.port, context if address.tls else None)
        self._refusal = refusal or error_of_reply
        self._token = ""
        self._token_until = 0.0

    async def read(self, path: str, what: str) -> AtomContent | None:
        """What is at a path, of any kind; None if it is a list, by which the cloud answers that there is nothing."""
        return read_entry((await self.request("GET", path, what)).body)

    async def get(self, path: str, description: str, what: str) -> AtomContent:
        content = await self.read(path, what)
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

    async def pages(
        self, path: str, what: str, skip: int = 0, top: int | None = None, search: str = ""
    ) -> AsyncGenerator[list[AtomContent], None]:
        """The entries of a list from `skip` on, at most `top`, in pages; with `search`, those whose names contain it."""
        named = f"&$search={quote(search, safe='')}" if search else ""
        left = top
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            reply = await self.request("GET", path, what, query=f"&$skip={skip}&$top={size}{named}")
            entries = read_feed(reply.body)
            yield entries[:size]
            if len(entries) < size:
                return
            skip += size
            left = None if left is None else left - size

    async def list(self, path: str, read: Callable[[AtomContent], T]) -> AsyncGenerator[T, None]:
        async for page in self.pages(path, f"'{path}'"):
            for entry in page:
                yield read(entry)

    async def request(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: str | None = "",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> HttpReply:
        """Make a request until it succeeds or fails for good. Without a query (None) it has no api-version, either."""
        target = f"/{quote(path, safe='/$~')}"
        if query is not None:
            target += f"?api-version={API_VERSION}{query}"
        attempts = self.retry.start()
        try:
            async with asyncio.timeout(self.timeout):
                while True:
                    try:
                        sent = {"Authorization": self._authorization(), **(headers or {})}
                        reply = await self.connections.request(method, target, sent, body)
                        if reply.status < 300:
                            return reply
                        raise self._refusal(reply, what)
                    except BusbarClientError as error:
                        if not _is_repeatable(method, error) or not await attempts.again():
                            raise
        except TimeoutError:
            raise OperationTimeout(
                f"{self.address.url} did not answer about {what} within {self.timeout:g} s."
            ) from None

    def _authorization(self) -> str:
        """A token for the namespace, or for the entity that the key is limited to."""
        now = time.time()
        if now >= self._token_until:
            self._token = self.address.token_for(self.address.entity_path, int(now) + TOKEN_SECONDS)
            self._token_until = now + TOKEN_SECONDS - TOKEN_RENEWED_BEFORE
        return self._token


def _is_repeatable(method: str, error: BusbarClientError) -> bool:
    if method == "GET":
        return error.retryable
    return isinstance(error, CannotConnect | ServerBusy)


def error_of_reply(reply: HttpReply, what: str) -> BusbarClientError:
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
