"""A TCP proxy in front of a Busbar that counts the frames of clients, and can hold back the broker's answers."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Self

from harness.serving import Busbar

FLOW, TRANSFER, DISPOSITION = 0x13, 0x14, 0x15
HEADER = 8
FULL = 65_000
"""Frames of this size are followed by others of the same delivery: the broker takes no frames of more than 64 KB."""


@dataclass(frozen=True)
class Frame:
    """A frame of a client."""

    time: float
    performative: int
    size: int


class FrameCounter:
    def __init__(self, server: Busbar) -> None:
        self._server = server
        self._listening: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.frames: list[Frame] = []
        self.connections = 0
        self.answers = asyncio.Event()
        """While it is not set, the broker's bytes wait here."""
        self.answers.set()

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._listening is not None
        self._listening.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connection_string(self) -> str:
        assert self._listening is not None
        port = self._listening.sockets[0].getsockname()[1]
        return re.sub(rf":{self._server.port}\b", f":{port}", self._server.connection_string)

    def count(self, performative: int) -> int:
        return sum(frame.performative == performative for frame in self.frames)

    def delivery_sizes(self) -> list[int]:
        """The sizes of the deliveries of clients. Only the last frame of a delivery is not full."""
        sizes, size = [], 0
        for frame in self.frames:
            if frame.performative == TRANSFER:
                size += frame.size
                if frame.size < FULL:
                    sizes.append(size)
                    size = 0
        return sizes

    def clear(self) -> None:
        self.frames.clear()

    def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        upstream, to_server = await asyncio.open_connection("127.0.0.1", self._server.port)
        self._writers += [writer, to_server]
        for work in (self._to_server(reader, to_server), self._to_client(upstream, writer)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _to_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pending = b""
        try:
            while data := await reader.read(65536):
                writer.write(data)
                pending = self._parse(pending + data)
        except ConnectionError:
            pass
        writer.close()

    async def _to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self.answers.wait()
                writer.write(data)
        except ConnectionError:
            pass
        writer.close()

    def _parse(self, data: bytes) -> bytes:
        """Note the frames in what a client sends. Returns the beginning of a frame that is not complete."""
        now = asyncio.get_running_loop().time()
        while len(data) >= HEADER:
            if data.startswith(b"AMQP"):
                data = data[HEADER:]
                continue
            size = int.from_bytes(data[:4], "big")
            if len(data) < size:
                break
            if size > HEADER + 2 and data[5] == 0:
                self.frames.append(Frame(now, data[HEADER + 2], size))
            data = data[size:]
        return data
