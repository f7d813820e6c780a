"""HTTP/1.1 requests on asyncio streams, on connections that stay open between requests.

1. A request uses an idle connection, or opens one. At most `MOST_CONNECTIONS` requests are under way; the others wait.
2. If the server has closed an idle connection, the client discards it before it sends anything on it.
3. CannotConnect means that nothing was sent. ConnectionLost means that the request may have been carried out.
4. The size of a response is limited, whatever its headers announce.
5. The cause of an error (`__cause__`) is the error of the operating system or of TLS, if there is one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from busbar.client.errors import BusbarClientError, CannotConnect, ConnectionLost, reason_of

MOST_CONNECTIONS = 8
HEAD_BYTES = 256 * 1024
"""The properties of a message are headers. They have up to 64 KB, before what JSON adds."""
BODY_BYTES = 128 * 1024 * 1024
"""More than the largest message."""
CLOSING_SECONDS = 1.0
_END_OF_HEAD = b"\r\n\r\n"


class NotHttp(BusbarClientError):
    """The server's response is not the HTTP that this client reads."""


class HttpHeaders(Mapping[str, str]):
    """Headers that are found whatever the case of their names, and listed as they were sent."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = {name.lower(): (name, value) for name, value in pairs}

    def __getitem__(self, name: str) -> str:
        return self._pairs[name.lower()][1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _value in self._pairs.values())

    def __len__(self) -> int:
        return len(self._pairs)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A response that was read to its end."""

    status: int
    headers: HttpHeaders = field(repr=False)
    body: bytes = field(repr=False)


class HttpConnections:
    """The connections to one server."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._context = context
        self._authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._idle: list[_HttpConnection] = []
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)
        self._closed = False
        self.opened = 0
        """The number of connections that were opened so far."""

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> HttpReply:
        """Make a request. Raises CannotConnect, ConnectionLost, NotHttp."""
        if self._closed:
            raise ValueError("the client is closed")
        async with self._room:
            connection = self._take() or await self._open()
            try:
                reply = await connection.exchange(self._head(method, target, headers, body) + body)
            except BaseException:
                connection.close()  # the rest of the response may still come
                raise
            if connection.is_usable and not self._closed:
                self._idle.append(connection)
            else:
                connection.close()
            return reply

    async def close(self) -> None:
        """Close the idle connections. A connection with a request under way is closed after it."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                for connection in idle:
                    await connection.wait_closed()
        except TimeoutError:
            pass  # a peer that has vanished does not take leave of TLS

    def _take(self) -> _HttpConnection | None:
        """The idle connection that was used last, if the server has not closed it."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return None

    async def _open(self) -> _HttpConnection:
        try:
            reader, writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._context, limit=HEAD_BYTES
            )
        except ssl.SSLCertVerificationError as problem:
            raise BusbarClientError(
                f"The certificate of {self._authority} is not trusted: {problem.verify_message}."
            ) from problem
        except OSError as problem:
            raise CannotConnect(f"{self._authority} cannot be reached: {reason_of(problem)}.") from problem
        self.opened += 1
        return _HttpConnection(reader, writer, self._authority)

    def _head(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class _HttpConnection:
    """One connection, with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> None:
        self._reader = reader
        self._writer = writer
        self._authority = authority
        self._stays_open = True

    @property
    def is_usable(self) -> bool:
        return self._stays_open and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def wait_closed(self) -> None:
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # the server was faster

    async def exchange(self, request: bytes) -> HttpReply:
        try:
            self._writer.write(request)
            await self._writer.drain()
            return await self._read()
        except asyncio.IncompleteReadError:
            raise ConnectionLost(
                f"{self._authority} closed the connection before the end of its response."
            ) from None
        except OSError as problem:
            raise ConnectionLost(
                f"The connection to {self._authority} was lost: {reason_of(problem)}."
            ) from problem
        except (asyncio.LimitOverrunError, ValueError) as problem:
            raise NotHttp(f"The response of {self._authority} is not HTTP: {problem}.") from None

    async def _read(self) -> HttpReply:
        status, headers = await self._read_head()
        while 100 <= status < 200:
            status, headers = await self._read_head()
        if status in (204, 304):
            return HttpReply(status, headers, b"")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = await self._read_chunks()
        elif "content-length" in headers:
            body = await self._reader.readexactly(_length(headers["content-length"], 10, 0))
        else:
            self._stays_open = False
            body = await self._read_to_end()
        return HttpReply(status, headers, body)

    async def _read_head(self) -> tuple[int, HttpHeaders]:
        try:
            head = (await self._reader.readuntil(_END_OF_HEAD)).decode("latin-1")
        except asyncio.IncompleteReadError as short:
            if short.partial[:5] != b"HTTP/"[: len(short.partial)]:
                raise ValueError("it does not begin with a status line") from None
            raise
        first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest.partition(" ")[0]
        if version not in ("HTTP/1.1", "HTTP/1.0") or len(code) != 3 or not code.isdigit():
            raise ValueError("it does not begin with a status line")
        pairs = []
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError("a header has no colon")
            pairs.append((name.strip(), value.strip()))
        headers = HttpHeaders(pairs)
        if version == "HTTP/1.0" or "close" in headers.get("connection", "").lower():
            self._stays_open = False
        return int(code), headers

    async def _read_to_end(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := await self._reader.read(HEAD_BYTES):
            size += len(part)
            if size > BODY_BYTES:
                raise ValueError(f"its body has more than {BODY_BYTES:,} bytes")
            parts.append(part)
        return b"".join(parts)

    async def _read_chunks(self) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            line = (await self._reader.readuntil(b"\r\n")).decode("latin-1")
            length = _length(line.partition(";")[0].strip(), 16, size)
            if not length:
                break
            size += length
            chunks.append(await self._reader.readexactly(length))
            if await self._reader.readexactly(2) != b"\r\n":
                raise ValueError("a chunk has another length than its header announces")
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailing headers
        return b"".join(chunks)


def _length(text: str, base: int, before: int) -> int:
    """The length of a body, or of a chunk after `before` bytes. Raises ValueError."""
    length = int(text, base)
    if length < 0 or before + length > BODY_BYTES:
        raise ValueError(f"its body is not between 0 and {BODY_BYTES:,} bytes long")
    return length
