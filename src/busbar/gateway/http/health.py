"""/health: whether the namespace is served, and all of it.

    {"status": "healthy", "message": ...}
    {"status": "limited", "message": ..., "stores": ["store-2"]}    these stores are unavailable

The status is 200 either way: probes restart a service that does not answer 200, and a restart does not repair a disk. The
request needs no token. So the stores are queried once a second at most, and an answer waits for them for half a second at
most. After that the answer is the last known state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

from busbar.model.api import StoreApi
from busbar.model.errors import BusbarError

FRESH_SECONDS = 1.0
WAIT_SECONDS = 0.5


class Health:
    def __init__(self, port: StoreApi) -> None:
        self._port = port
        self._out: Sequence[str] | None = ()
        """None: the process that has this list does not answer."""
        self._asked_at = -FRESH_SECONDS
        self._asking: asyncio.Task[None] | None = None

    async def answer(self) -> web.Response:
        loop = asyncio.get_running_loop()
        if self._asking is None and loop.time() >= self._asked_at + FRESH_SECONDS:
            self._asking = loop.create_task(self._ask())
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=WAIT_SECONDS)
        if self._out is None:
            text = "Busbar is ready, but the state of its stores is not known."
            return web.json_response({"status": "limited", "message": text, "stores": []})
        if not self._out:
            return web.json_response({"status": "healthy", "message": "Busbar is ready."})
        text = (
            f"Busbar is ready, but these stores are unavailable, with what they hold: {', '.join(self._out)}."
        )
        return web.json_response({"status": "limited", "message": text, "stores": [*self._out]})

    async def _ask(self) -> None:
        try:
            self._out = await self._port.unavailable_stores()
        except BusbarError:
            self._out = None
        finally:
            self._asked_at = asyncio.get_running_loop().time()
            self._asking = None
