"""The HTTP port: `GET /health` answers 200 once the namespace accepts connections, as the vendor's emulator does."""

from __future__ import annotations

from aiohttp import web


async def _health(_request: web.Request) -> web.Response:
    return web.json_response({"status": "healthy", "message": "Busbar is ready."})


class HealthListener:
    def __init__(self) -> None:
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (0 asks for a free one)."""
        app = web.Application(client_max_size=64 * 1024)
        app.router.add_get("/health", _health)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self._runner = runner
        await web.TCPSite(runner, host, port).start()
        address = runner.addresses[0]
        return int(address[1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
