"""/live and /ready: what supervisors and load balancers ask a process. Neither needs a token.

    /live     503 if Busbar should be restarted: it can reach no open store, and no thread of a store of this process has
              answered for `live_timeout`
    /ready    503 if it should get no clients: it has not loaded the entities, can reach no open store, or is stopping

A request is answered from memory, without a wait. If the event loop itself hangs, there is no answer, and the probe fails by
its own timeout. One store of several that is unavailable is no reason for either: the others are served, and /health names
it. Nor is a catalogue that cannot be changed.
"""

from __future__ import annotations

from aiohttp import web

from busbar.model.api import ProcessApi
from busbar.model.limits import Limits

LIVE = "live"
READY = "ready"
DRAINING = "Busbar is stopping."


class Probes:
    def __init__(self, broker: ProcessApi, limits: Limits) -> None:
        self.is_draining = False
        """Set when the gateway is stopping."""
        self._broker = broker
        self._live_seconds = limits.live_timeout / 1000

    def asked_for(self, request: web.Request, path: str) -> bool:
        """Whether the request is a probe. Queues may have these names, too: their management requests have an api-version,
        or other methods."""
        return (
            path.lower() in (LIVE, READY)
            and request.method in ("GET", "HEAD")
            and "api-version" not in request.query
        )

    def answer(self, path: str) -> web.Response:
        """Answer a probe, by its path."""
        kind = path.lower()
        reason = self._not_live() if kind == LIVE else self._not_ready()
        if not reason:
            return web.json_response({"status": kind})
        return web.json_response({"status": f"not {kind}", "message": reason}, status=503)

    def _not_live(self) -> str:
        seconds = self._broker.hanging_for()
        if seconds < self._live_seconds or not self._broker.reason_not_to_serve():
            return ""
        return f"No messaging store of this process has answered for {seconds:.0f} s."

    def _not_ready(self) -> str:
        return DRAINING if self.is_draining else self._broker.reason_not_to_serve()
