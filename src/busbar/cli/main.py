"""The command `busbar`. Heavy modules are imported by the command that needs them, so that `--help` is quick."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from busbar import __version__
from busbar.cli.apply import add_apply_command
from busbar.cli.backup import add_backup_commands
from busbar.cli.bench import add_bench_command
from busbar.cli.capture import add_capture_command
from busbar.cli.completion import add_completion_command
from busbar.cli.console import add_console_command
from busbar.cli.doctor import add_doctor_command
from busbar.cli.export import add_export_command
from busbar.cli.failure import CommandFailure, CommandStopped, ExitCode
from busbar.cli.groups import groups_for, in_full
from busbar.cli.history import add_history_command
from busbar.cli.insight import add_insight_command
from busbar.cli.messages import add_receive_command
from busbar.cli.nodes import add_nodes_command
from busbar.cli.peek import add_peek_command
from busbar.cli.purge import add_purge_command
from busbar.cli.redrive import add_redrive_command
from busbar.cli.replay import add_replay_command
from busbar.cli.send import add_send_command
from busbar.cli.tail import add_tail_command
from busbar.cli.top import add_top_command
from busbar.cli.transfers import add_transfers_command

app = typer.Typer(
    name="busbar",
    help="Brokered messaging that Azure Service Bus clients can use, and that anyone can run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # frames cut long flags off in 80 columns, and cost time
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"busbar {__version__}")
        raise typer.Exit()


_FIRST_STEPS = """\b
First steps:
  busbar serve --dev
  busbar queue create invoices --lock-duration 1m
  busbar send invoices 'hello' && busbar receive invoices
  busbar queue list -o json
  busbar console

Commands find a Busbar by --connection-string or --data; else by BUSBAR_CONNECTION_STRING or the directory ./.busbar. Exit
codes: 2 wrong usage, 3 not found, 4 refused, 1 anything else that failed.
"""


@app.callback(epilog=_FIRST_STEPS)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Brokered messaging that Azure Service Bus clients can use, and that anyone can run."""


Data = Annotated[Path, typer.Option(metavar="DIR", help="Where messages are kept.", show_default="./.busbar")]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Entities, in the emulator's Config.json format.")
]
Host = Annotated[str, typer.Option(metavar="H", help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="AMQP, HTTP and TLS; 0 picks a free one.")]
HttpPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="One more, for HTTP by convention.", show_default="5300 if free"),
]
TlsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="One more, for TLS by convention.", show_default="5671 if free"),
]
TlsName = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A name of this host for its certificate; may be given again."),
]
TlsCert = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Your own certificate chain (PEM), with --tls-key.")
]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")]
KeyName = Annotated[str, typer.Option(metavar="N", help="The name of the shared access key.")]
Key = Annotated[
    str | None,
    typer.Option(metavar="K", envvar="BUSBAR_KEY", help="The key; without it, one is made and kept in DIR."),
]
Stores = Annotated[
    list[str] | None,
    typer.Option(
        metavar="N|URL",
        help="Messaging stores: how many in DIR, or addresses of PostgreSQL databases; more may be added later.",
        show_default="4",
    ),
]
CatalogueUrl = Annotated[
    str,
    typer.Option(
        "--catalogue",
        metavar="URL",
        help="The PostgreSQL database with the catalogue of entities, if it is not in DIR.",
        show_default=False,
    ),
]
NodeName = Annotated[
    str,
    typer.Option(
        "--node",
        metavar="NAME",
        help="Serve as the node of that name in a cluster, with the nodes that have the same --catalogue.",
        show_default=False,
    ),
]
NodePortNumber = Annotated[
    int,
    typer.Option(
        "--node-port",
        min=0,
        max=65535,
        metavar="P",
        help="Where other nodes reach this one; its brokers have the ports behind it. 0 picks free ones.",
    ),
]
NodeAddress = Annotated[
    str,
    typer.Option(
        "--node-address",
        metavar="H",
        help="The name by which other nodes reach this one, if it is not that of --host.",
        show_default=False,
    ),
]
NodeCert = Annotated[
    Path | None,
    typer.Option(
        "--node-cert", metavar="FILE", help="Your own certificate of the node (PEM), with --node-key."
    ),
]
NodeKey = Annotated[Path | None, typer.Option("--node-key", metavar="FILE", help="Its key (PEM).")]
NodeCa = Annotated[
    Path | None, typer.Option("--node-ca", metavar="FILE", help="The authority of all nodes (PEM).")
]
NodeLevel = Annotated[
    int,
    typer.Option(
        "--node-level",
        metavar="N",
        help="Offer other nodes no later version of the protocol between nodes; for upgrades.",
        show_default=False,
    ),
]
MoreStores = Annotated[list[str] | None, typer.Argument(metavar="URL", hidden=True)]
Brokers = Annotated[
    int,
    typer.Option(
        min=1, max=64, metavar="N", help="Broker processes that share stores and clients; 1: all in this one."
    ),
]
LogFormat = Annotated[
    str,
    typer.Option(
        "--log-format",
        metavar="text|json",
        help="How the log is written, to standard error.",
        show_default="that of BUSBAR_LOG_FORMAT, else text",
    ),
]
Otlp = Annotated[
    str,
    typer.Option(
        "--otlp",
        metavar="URL",
        help="Export traces to the OpenTelemetry collector there, over HTTP.",
        show_default="that of OTEL_EXPORTER_OTLP_ENDPOINT, else none",
    ),
]
Dev = Annotated[bool, typer.Option("--dev", help="Use the emulator's well-known key (this machine only).")]


@app.command()
def serve(
    data: Data = Path(".busbar"),
    config: Config = None,
    host: Host = "127.0.0.1",
    port: Port = 5672,
    http_port: HttpPort = None,
    tls_port: TlsPort = None,
    tls_name: TlsName = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    key_name: KeyName = "RootManageSharedAccessKey",
    key: Key = None,
    stores: Stores = None,
    more_stores: MoreStores = None,
    brokers: Brokers = 1,
    catalogue: CatalogueUrl = "",
    node: NodeName = "",
    node_port: NodePortNumber = 0,
    node_address: NodeAddress = "",
    node_cert: NodeCert = None,
    node_key: NodeKey = None,
    node_ca: NodeCa = None,
    node_level: NodeLevel = 0,
    log_format: LogFormat = "",
    otlp: Otlp = "",
    dev: Dev = False,
) -> None:
    """Serve a namespace until Ctrl-C. The line that starts with "ready " has the connection string."""
    from busbar.cli.serve import ServeConfig, node_config, parse_stores, run

    names, files = [*(stores or ()), *(more_stores or ())], (node_cert, node_key, node_ca)
    sys.exit(
        run(
            lambda: ServeConfig(
                data=data,
                config=config,
                host=host,
                port=port,
                http_port=http_port,
                key_name=key_name,
                key=key,
                dev=dev,
                tls_port=tls_port,
                tls_names=tuple(tls_name or ()),
                tls_cert=tls_cert,
                tls_key=tls_key,
                stores=parse_stores(names),
                brokers=brokers,
                catalogue=catalogue,
                node=node_config(
                    node, catalogue, host, node_port, brokers, names, node_address, files, node_level
                ),
            ),
            log_format,
            otlp,
        )
    )


@app.command(short_help="Print how clients come to trust the certificate.")
def trust(
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="The data directory.", show_default="./.busbar")
    ] = Path(".busbar"),
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="text|json", help="How it is printed.")
    ] = "text",
) -> None:
    """Print how clients come to trust this instance's certificate; `eval "$(busbar trust)"` sets the variables."""
    from busbar.cli.trust import run

    sys.exit(run(data, output))


add_send_command(app)
add_receive_command(app)
add_peek_command(app)
add_tail_command(app)
add_purge_command(app)
add_capture_command(app)
add_replay_command(app)
add_redrive_command(app)
add_insight_command(app)
add_bench_command(app)
add_console_command(app)
add_top_command(app)
add_doctor_command(app)
add_completion_command(app)
add_backup_commands(app)
add_export_command(app)
add_apply_command(app)
add_transfers_command(app)
add_nodes_command(app)
add_history_command(app)


def main() -> None:
    # Python has None for a stream that is closed. Its output is dropped.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name, and return the exit code. A failure is one line on standard error."""
    arguments = in_full(sys.argv[1:] if arguments is None else arguments)
    app.registered_groups = []
    for commands in groups_for(arguments):
        app.add_typer(commands)
    try:
        # Without `standalone_mode` usage errors come to us instead of being framed over several lines.
        code = app(arguments, prog_name="busbar", standalone_mode=False)
        sys.stdout.flush()
    except CommandFailure as failure:
        return _fail(f"busbar: {failure.text}", failure.code)
    except CommandStopped as stopped:
        return _unread() if stopped.code == ExitCode.UNREAD else stopped.code
    except typer.exceptions.TyperException as error:
        return _fail(*_usage(error))
    except typer.Abort:
        return _fail("busbar: stopped", ExitCode.OTHER)
    except BrokenPipeError:
        return _unread()
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            return _fail(_unexpected(error), ExitCode.OTHER)
        _unread()
        return _fail(f"busbar: standard output cannot be written: {error.strerror}.", ExitCode.OTHER)
    except Exception as error:  # a mistake in Busbar; a traceback would not help the user
        return _fail(_unexpected(error), ExitCode.OTHER)
    return code if isinstance(code, int) else 0


def _unexpected(error: Exception) -> str:
    return f"busbar: unexpected failure: {type(error).__name__}: {error}"


def _unread() -> int:
    """Drop what standard output did not take. Its reader, such as `head`, may have had enough."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.UNREAD


def _usage(error: typer.exceptions.TyperException) -> tuple[str, int]:
    message = error.format_message().replace(" Value error, ", " ")
    if message.startswith("Usage: "):  # no command was named: this is the help
        return message, error.exit_code
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "busbar"
    text = " ".join(message.split()).rstrip(".")
    if command == "busbar" and text in [
        f"No such option: {one}" for one in ("--data", "--connection-string")
    ]:
        text += " here: it comes behind the command"
    more = text if text.endswith("?") else f"{text};"
    return f"busbar: {more} `{command} --help` says more.", error.exit_code


def _fail(text: str, code: int) -> int:
    # An argument that a message quotes must not act on the terminal.
    printable = (char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
    print("".join(printable), file=sys.stderr)
    return code
