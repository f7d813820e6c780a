"""Finds the running Busbar that a command uses, and how to reach it.

1. Options come first: `--connection-string`, else the endpoint file of `--data`. Else `BUSBAR_CONNECTION_STRING`, else the
   endpoint file of `./.busbar`. Before a command changes anything it prints which namespace that is (`say_target`).
2. A connection string means TLS unless it has `UseDevelopmentEmulator=true` or its address starts with `http://`. Without
   a port: 443 with TLS, else 5300, where the vendor's emulator has its management.
3. The endpoint file counts only if the process that holds the lock of that very directory wrote it. A file that a copy of
   the directory or a crash has left is ignored.
4. A Busbar that the data directory names is reached without TLS on loopback, with TLS elsewhere.
5. With TLS the system's certificate authorities are trusted (`SSL_CERT_FILE` changes them), and the file of `--ca`. For a
   Busbar of the data directory or on loopback, the authority of the data directory is trusted as well.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from busbar.app.endpoint_file import RunningEndpoint, read_endpoint
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.client.connection_string import ManagementAddress, management_address

VARIABLE = "BUSBAR_CONNECTION_STRING"
DEFAULT_DATA = Path(".busbar")


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options of the command line that name the target."""

    connection_string: str | None
    data: Path
    ca: Path | None
    data_typed: bool = False
    """Whether the data directory was named, and is not the usual one."""


def where(connection_string: str | None, data: Path | None, ca: Path | None) -> ConnectionOptions:
    """The options as they were typed, None for one that was not."""
    return ConnectionOptions(connection_string, data or DEFAULT_DATA, ca, data is not None)


@dataclass(frozen=True, slots=True)
class ManagementEndpoint(ManagementAddress):
    """A namespace that may be running: its address, the credentials for it, and the words for people."""

    authorities: tuple[Path, ...] = ()
    remedy: str = ""
    """What to do when no process answers."""
    given: str = field(default="", repr=False)
    """The connection string that named it, if one did."""
    named_by: str = field(default="", compare=False)
    """What of the command line or the environment led here, for people."""

    @property
    def connection_string(self) -> str:
        """The connection string for clients of messaging; it has the key. One that was given stays as it is: without a port
        it means the port of AMQP there, and here that of HTTP."""
        if self.given:
            return self.given
        secret = (
            f"SharedAccessSignature={self.token}"
            if self.token
            else f"SharedAccessKeyName={self.key_name};SharedAccessKey={self.key}"
        )
        path = f";EntityPath={self.entity_path}" if self.entity_path else ""
        plain = "" if self.tls else ";UseDevelopmentEmulator=true"
        return f"Endpoint=sb://{self.authority}/;{secret}{path}{plain}"


def find_target(where: ConnectionOptions, environment: Mapping[str, str] | None = None) -> ManagementEndpoint:
    """Find the namespace that is meant. Raises CommandFailure if neither options nor environment name one."""
    environment = os.environ if environment is None else environment
    if where.ca is not None and not where.ca.is_file():
        raise CommandFailure(f"--ca {where.ca}: there is no such file.", ExitCode.USAGE)
    given = where.connection_string or ("" if where.data_typed else environment.get(VARIABLE, ""))
    if given:
        source = "--connection-string" if where.connection_string else VARIABLE
        return _from_connection_string(given, source, where)
    try:
        endpoint = read_endpoint(where.data)
        is_served = endpoint is not None and endpoint.is_of(where.data)
    except (OSError, ValueError) as error:
        raise CommandFailure(f"The data directory {where.data} cannot be read: {error}.") from None
    if endpoint is None or not is_served:
        raise CommandFailure(
            f"no Busbar is serving the data directory {where.data}{_left(endpoint)}; start one with "
            f"`{_serve(where.data)}`, or name a running one with --data, --connection-string or {VARIABLE}."
        )
    return _from_endpoint(endpoint, where)


def say_target(target: ManagementEndpoint) -> None:
    """Print to standard error which namespace is about to be changed."""
    text = f"namespace: sb://{target.authority}/ (by {target.named_by})"
    print("".join(char if char.isprintable() else "?" for char in text), file=sys.stderr, flush=True)


def _from_connection_string(text: str, source: str, where: ConnectionOptions) -> ManagementEndpoint:
    try:
        address = management_address(text)
    except ValueError as error:
        raise CommandFailure(f"{source}: {error}.", ExitCode.USAGE) from None
    local = [where.data / "tls" / "ca.pem"] if _is_loopback(address.host) else []
    return ManagementEndpoint(
        **asdict(address),
        authorities=_authorities(where, local),
        remedy="start one with `busbar serve`, or correct the connection string",
        given=text.strip(),
        named_by=source,
    )


def _from_endpoint(endpoint: RunningEndpoint, where: ConnectionOptions) -> ManagementEndpoint:
    host = endpoint.host.strip("[]")
    tls = not _is_loopback(host)
    own = [Path(endpoint.ca)] if endpoint.ca else []
    return ManagementEndpoint(
        host,
        endpoint.tls_port if tls else endpoint.port,
        tls,
        endpoint.key_name,
        endpoint.key,
        authorities=_authorities(where, own),
        remedy=f"start one with `{_serve(where.data)}`",
        named_by=f"the data directory {where.data.absolute()}",
    )


def _left(endpoint: RunningEndpoint | None) -> str:
    """The text about an endpoint file that no running process of this directory wrote."""
    if endpoint is None:
        return ""
    if not endpoint.is_running:
        return f" (process {endpoint.pid} has ended without a clean stop)"
    return (
        f" (its endpoint.json is that of another directory, or of an earlier start: process {endpoint.pid})"
    )


def _authorities(where: ConnectionOptions, own: list[Path]) -> tuple[Path, ...]:
    given = [where.ca] if where.ca else []
    return tuple(given + [file for file in own if file.is_file()])


def _serve(data: Path) -> str:
    return "busbar serve" if data == DEFAULT_DATA else f"busbar serve --data {data}"


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
