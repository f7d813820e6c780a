"""`busbar console`: a web console for a running Busbar, on this machine. What it shows is in busbar.console.

Standard output has the `ready` line alone, with the address that signs one browser in. Everything else goes to standard
error, where that address is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target, say_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.options import command

PORT = 5380


def add_console_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar console",
            "busbar console --port 0 --no-browser",
            "busbar console --connection-string 'Endpoint=sb://...'",
        ),
    )(console)


def console(
    *,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 picks a free one.")] = PORT,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address and open nothing.")
    ] = False,
    where: ConnectionOptions,
) -> None:
    """Open the web console of a running Busbar.

    It shows entities, messages, stores and clients, and mends dead letters, until Ctrl-C.
    It listens on loopback only. The line that starts with "ready " has the address that signs a browser in, once.
    """
    import asyncio
    import signal

    from busbar.cli.console_namespace import RunningNamespace
    from busbar.console.app import serve

    say_target(find_target(where))  # errors of the command are printed here, not in a page

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await serve(
            RunningNamespace(where), port, lambda *said: _announce(*said, opened=not no_browser), stop
        )

    try:
        asyncio.run(run())
    except OSError as error:
        raise CommandFailure(
            f"port {port} cannot be had ({error.strerror or error}); name another with --port, or 0 for a free one.",
            ExitCode.USAGE,
        ) from None


def _announce(address: str, another: Callable[[], str], *, opened: bool) -> None:
    print(f"ready {address}", flush=True)
    print(
        "\nOpen this address in a browser; it signs in once. Stop the console with Ctrl-C.", file=sys.stderr
    )
    if opened and _has_a_desktop():
        import threading
        import webbrowser

        # An address of its own: the printed one is still good for a second browser. Some browsers return when they end.
        threading.Thread(target=webbrowser.open, args=(another(),), daemon=True).start()


def _has_a_desktop() -> bool:
    """Whether a browser can open a window. Elsewhere one of the terminal would write over what the console prints."""
    import os

    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
