"""A TCP proxy in front of a Busbar that lets each connection send a ration of bytes in each round.

A real connection has such a limit by its bandwidth and its round-trip time. Here the test counts rounds and not seconds.
"""

from __future__ import annotations

import asyncio

from harness.serving import Busbar
from tests.interop.frame_counter import FrameCounter


class _Ration:
    """What one connection may still send in this round; None without a limit."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.more = asyncio.Event()
        self.is_used_up = asyncio.Event()

    async def take(self, most: int) -> int:
        """How many of so many bytes may go now. Waits for the next round if none may."""
        while self.left == 0:
            self.more.clear()
            self.is_used_up.set()
            await self.more.wait()
        if self.left is None:
            return most
        taken = min(most, self.left)
        self.left -= taken
        return taken

    def give(self, left: int | None) -> None:
        self.left = left
        self.is_used_up.clear()
        self.more.set()


class RationedConnections(FrameCounter):
    def __init__(self, server: Busbar) -> None:
        super().__init__(server)
        self._rations: list[_Ration] = []

    async def _to_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ration = _Ration()
        self._rations.append(ration)
        pending = b""
        try:
            while data := await reader.read(65536):
                while data:
                    count = await ration.take(len(data))
                    writer.write(data[:count])
                    pending = self._parse(pending + data[:count])
                    data = data[count:]
        except ConnectionError:
            pass
        writer.close()

    def stop(self) -> None:
        """Let no connection send anything, until the next round."""
        for ration in self._rations:
            ration.give(0)

    async def round(self, count: int) -> None:
        """Let each connection send so many bytes, and wait until all of them have done so."""
        for ration in self._rations:
            ration.give(count)
        for ration in self._rations:
            await ration.is_used_up.wait()

    def lift(self) -> None:
        """End the limits."""
        for ration in self._rations:
            ration.give(None)
