"""`busbar serve`: signals, what is printed where, and exit codes.

Standard output has the `ready` line alone, for programs; everything for people goes to standard error.
Exit codes: 0 after a clean stop, 2 for what the user can correct in the command or the configuration, 1 otherwise.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from busbar.app.config import ConfigError
from busbar.app.data_directory import DataDirectoryError
from busbar.app.log_output import start_logging
from busbar.app.node_config import NodeConfig
from busbar.app.server import ServeConfig, ServeError, serve
from busbar.app.service_manager import READY, STOPPING, notify
from busbar.app.store_places import WantedStores, parse_stores
from busbar.app.system import loop_factory
from busbar.app.trace_settings import ENDPOINT, traces_url

__all__ = ["ServeConfig", "node_config", "parse_stores", "run"]

_NEXT = """\
Busbar is ready; stop it with Ctrl-C. To send a message (pip install azure-servicebus{before}):

    from azure.servicebus import ServiceBusClient, ServiceBusMessage
    with ServiceBusClient.from_connection_string("{connection}") as client:
        client.get_queue_sender({queue}).send_messages(ServiceBusMessage("hello"))
"""


def node_config(
    name: str,
    catalogue: str,
    host: str,
    port: int,
    brokers: int,
    stores: Sequence[str],
    address: str,
    files: tuple[Path | None, Path | None, Path | None],
    level: int,
) -> NodeConfig | None:
    """What the options of a node ask for; None without `--node`. Raises ConfigError."""
    if not name:
        if port or address or any(files) or level:
            raise ConfigError(
                "--node-port, --node-address, --node-level, --node-cert, --node-key and --node-ca belong to --node."
            )
        return None
    wanted = parse_stores(stores) if stores else WantedStores(0)
    return NodeConfig(name, catalogue, host, port, brokers, wanted, address, *files, level)


def run(config: Callable[[], ServeConfig], log_format: str = "", otlp: str = "") -> int:
    """Serve until a signal, and return the exit code. A configuration that is refused is a usage error like all others."""
    try:
        start_logging(chosen_format=log_format)
        if otlp:
            os.environ[ENDPOINT] = otlp
        traces_url(os.environ)
        asked = config()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(asked))
    except ConfigError as error:
        return _fail(str(error), 2)
    except (DataDirectoryError, ServeError) as error:
        return _fail(str(error), 1)
    except Exception as error:
        logging.getLogger(__name__).debug("serve failed", exc_info=True)
        return _fail(f"unexpected failure: {type(error).__name__}: {error}", 1)
    _say("stopped; nothing was lost")
    return 0


async def _serve(config: ServeConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stopping() -> None:
        if stop.is_set():
            _say("stopping at once; message locks are not kept")
            os._exit(1)
        stop.set()
        notify(STOPPING)
        _say("\nstopping (again to force it)")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping)
    example = ""

    def suggest(queue: str) -> None:
        nonlocal example
        example = queue

    await serve(config, lambda line: _announce(line, example, config.data), stop, suggest)


def _announce(line: str, queue: str, data: Path) -> None:
    if line.startswith("ready "):
        print(line, flush=True)
        notify(READY)
        # Standard error may be a log, where no key belongs: there the line above has to do.
        connection = line.removeprefix("ready ") if sys.stderr.isatty() else "<the connection string>"
        before = "" if queue else f", and busbar queue create orders --data {shlex.quote(str(data))}"
        hint = _NEXT.format(connection=connection, before=before, queue=json.dumps(queue or "orders"))
        _say("\n" + hint)
    else:
        _say(line)


def _fail(text: str, code: int) -> int:
    _say(f"busbar: {text}")
    return code


def _say(text: str) -> None:
    """Print to standard error. If the program that reads it has ended, this one goes on without it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, sys.stderr.fileno())  # what is buffered goes there when the interpreter ends
        os.close(nowhere)
