"""The processes of a running Busbar, read from the kernel, and the places of entities, as Busbar reports them."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from busbar.cli.endpoint import ManagementEndpoint
from busbar.cli.management_client import ManagementClient
from harness.serving import Busbar

BROKER_PROGRAM = "busbar.app.broker_main"


def brokers_of(server: Busbar) -> dict[str, int]:
    """The broker processes by their names, from the list of processes."""
    found = {}
    for child in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        try:
            command = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if BROKER_PROGRAM in command:
            found[command[command.index(BROKER_PROGRAM) + 1]] = int(child)
    return found


def client_connections(server: Busbar) -> dict[int, int]:
    """The process that has the server's end of each connection, by the port of the client."""
    ports = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{server.port:04X}") and fields[3] == "01":  # established
            ports[f"socket:[{fields[9]}]"] = int(fields[2].rpartition(":")[2], 16)
    found = {}
    for process in (server.pid, *brokers_of(server).values()):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                port = ports.get(os.readlink(link))
                if port is not None:
                    found[port] = process
    return found


def processor_seconds(process: int) -> float:
    """The processor time that a process has spent."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def broker_of(server: Busbar, entity: str) -> str:
    """The name of the broker that has a regular entity."""
    endpoint = ManagementEndpoint("127.0.0.1", server.port, False, "RootManageSharedAccessKey", server.key)
    with ManagementClient(endpoint) as client:
        answer = client.expect("GET", f"$busbar/fragments/{entity}", entity)
    (fragment,) = json.loads(answer.body)
    return str(fragment["broker"])
