"""`busbar doctor`: checks the machine, the data directory and the running namespace, and states what to do.

Each check is one line: ok, warn or bad. The exit code is 1 if something is bad, else 0. Checks of the machine need no
running Busbar. Nothing is changed, except for a small file in the data directory that measures its disk and is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from busbar import __version__
from busbar.cli.diagnosis import (
    BAD,
    OK,
    WARN,
    DoctorFinding,
    certificate_finding,
    clock_finding,
    compiled_finding,
    descriptor_finding,
    directory_findings,
    port_findings,
    python_finding,
)
from busbar.cli.endpoint import ConnectionOptions, ManagementEndpoint, find_target
from busbar.cli.failure import CommandFailure
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_json, print_table, printable

if TYPE_CHECKING:
    from busbar.cli.management_client import ManagementClient


def add_doctor_command(app: typer.Typer) -> None:
    command(app, examples=("busbar doctor", "busbar doctor --data /var/lib/busbar", "busbar doctor -o json"))(
        doctor
    )


def doctor(*, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """Check versions, compiled parts, limits, disk, ports, clock, certificate, stores and processes. States what to do.

    Exits with 1 if something is bad.
    """
    found = [*_of_this_machine(where), *_of_the_namespace(where)]
    if output is OutputFormat.JSON:
        print_json([one.as_json() for one in found])
    else:
        print_table(("Check", "State", "What"), [(one.check, one.state, one.text) for one in found], "")
        for one in found:
            if one.advice and one.state != OK:
                print(printable(f"{one.check}: {one.advice}"))
    if any(one.state == BAD for one in found):
        raise typer.Exit(1)


def _of_this_machine(where: ConnectionOptions) -> Iterator[DoctorFinding]:
    yield python_finding()
    yield compiled_finding()
    yield descriptor_finding()
    if where.connection_string is None:
        yield from directory_findings(where.data)
        yield certificate_finding(where.data)


def _of_the_namespace(where: ConnectionOptions) -> Iterator[DoctorFinding]:
    from busbar.cli.management_client import ManagementClient

    try:
        target = find_target(where)
    except CommandFailure as failure:
        yield DoctorFinding("namespace", WARN, failure.text, "start it, or name a running one")
        yield from port_findings()
        return
    try:
        with ManagementClient(target) as client:
            yield from _answers(client, target)
    except CommandFailure as failure:
        yield DoctorFinding("namespace", BAD, failure.text, failure.text)


def _answers(client: ManagementClient, target: ManagementEndpoint) -> Iterator[DoctorFinding]:
    began = time.time()
    answer = client.expect("GET", "health", "the state of the namespace")
    took = time.time() - began
    yield DoctorFinding("namespace", OK, f"{target.url} answers in {took * 1000:.0f} ms")
    yield clock_finding(answer.headers.get("Date", ""), began + took / 2)
    checks: tuple[Callable[[ManagementClient], DoctorFinding], ...] = (_processes, _stores)
    for check in checks:
        yield check(client)


def _processes(client: ManagementClient) -> DoctorFinding:
    from busbar.cli.stores import ask

    views: list[dict[str, Any]] = ask(client, "GET", "nodes", "the list of processes")
    silent = [view["name"] for view in views if view["state"] != "up"]
    if silent:
        text = f"{', '.join(silent)} of {len(views)} do not answer"
        return DoctorFinding("processes", BAD, text, "see busbar nodes, and the log of these processes")
    others = sorted({view["version"] for view in views} - {__version__})
    if others:
        text = f"the namespace has version {', '.join(others)}, this command {__version__}"
        return DoctorFinding("processes", WARN, text, "use one version; restart after an upgrade")
    return DoctorFinding("processes", OK, f"{len(views)}, version {__version__}")


def _stores(client: ManagementClient) -> DoctorFinding:
    from busbar.cli.stores import ask

    views: list[dict[str, Any]] = ask(client, "GET", "stores", "the list of stores")
    out = [f"{view['name']} ({view['reason']})" for view in views if view["state"] != "open"]
    if out:
        return DoctorFinding(
            "stores", BAD, f"unavailable: {'; '.join(out)}", "see busbar stores, docs/stores.md"
        )
    slowest = max((view["commitP99"] for view in views), default=0)
    text = f"{len(views)} open, slowest commits {slowest / 1000:.1f} ms (p99)"
    return DoctorFinding("stores", OK, text)
