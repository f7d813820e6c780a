"""TLS in front of a PostgreSQL server: the server that comes with the development dependencies is built without it.

It answers a client's request for TLS as a server does, shows a certificate, and passes on what is inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from typing import Self

TLS_REQUEST = bytes.fromhex("0000000804d2162f")
_CHUNK = 1 << 16


class DatabaseTls:
    """Listens on a port of this machine while the context lasts."""

    def __init__(self, port: int, certificate: ssl.SSLContext) -> None:
        self.port = 0
        self.encrypted = 0
        """Connections whose handshake was completed."""
        self._target = port
        self._certificate = certificate
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        self._started.set()
        await self._ended.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if await reader.readexactly(len(TLS_REQUEST)) == TLS_REQUEST:
                writer.write(b"S")
                await writer.start_tls(self._certificate)
                self.encrypted += 1
                there = await asyncio.open_connection("127.0.0.1", self._target)
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pass_on(reader, there[1]))
                    both.create_task(_pass_on(there[0], writer))
        writer.close()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()
    target.close()
