"""`busbar apply FILE`: makes the entities of a running namespace as a file describes them. The plan is shown first."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.options import Output, Yes, command
from busbar.cli.output import OutputFormat, print_json, printable

if TYPE_CHECKING:
    from busbar.cli.management_client import ManagementClient
    from busbar.cli.namespace_plan import NamespacePlan, PlanStep

_SIGNS = {"create": "+", "change": "~", "delete": "-", "unchanged": " "}


def add_apply_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar apply Config.json --dry-run",
            "busbar apply Config.json --yes",
            "busbar apply template.json --parameters queueName=orders --parameters parameters.json",
            "busbar export | busbar apply - --connection-string ... --prune",
        ),
    )(apply)


def apply(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, or - for standard input.")],
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--parameters", "-p", metavar="NAME=VALUE|FILE", help="Of an ARM template; may be given again."
        ),
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Delete what the file does not have.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; exit code 5 if it changes something.")
    ] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Make the entities of a running namespace as a file describes them.

    The file is the emulator's Config.json, one of busbar export, or an ARM template with Microsoft.ServiceBus resources. The
    plan is shown first, and the command asks before anything is changed. What the file does not have stays, unless --prune
    is given.
    """
    from busbar.cli.entity_commands import confirm
    from busbar.cli.management_client import ManagementClient
    from busbar.cli.namespace_file import described, read_namespace_file, read_parameters
    from busbar.cli.namespace_plan import access_steps, plan
    from busbar.cli.stores import ask

    given, text = read_parameters(parameters), _text(file)
    target = find_target(where)
    with ManagementClient(target) as client:
        served = ask(client, "GET", "definitions", "the namespace")
        wanted = read_namespace_file("standard input" if file == "-" else file, text, served, given)
        for note in wanted.notes:
            print(printable(f"note: {note}"), file=sys.stderr)
        if wanted.has_keys:
            served = ask(client, "GET", "definitions", "the namespace", "&keys=true")
        there = described(served)
        found = plan(wanted.entities, there.entities, prune=prune, taps=wanted.taps, taps_there=there.taps)
        rules = access_steps("", wanted.access, (*there.rules, *there.keyless_rules))
        # The rule that this command itself uses comes last: with another key its requests would be refused.
        found.steps += sorted(rules, key=lambda step: step.access == target.key_name)
        _show(found, output)
        if found.impossible:
            raise CommandFailure("; ".join(found.impossible) + ". Nothing was changed.", ExitCode.REFUSED)
        if not found.changing:
            return
        if dry_run:
            raise typer.Exit(ExitCode.WOULD_CHANGE)
        client.say_target()
        confirm(f"Carry out {_count(found)}?", yes, "nothing was changed.")
        _carry_out(client, where, found)
    print(f"{_count(found)} carried out", file=sys.stderr)


def _text(file: str) -> str:
    if file == "-":
        if sys.stdin is None:
            raise CommandFailure("standard input is closed; name a file.", ExitCode.USAGE)
        return sys.stdin.read()
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CommandFailure(f"{file} cannot be read: {why}.", ExitCode.USAGE) from None


def _count(found: NamespacePlan) -> str:
    number = len(found.changing)
    return f"{number} change{'' if number == 1 else 's'}"


def _name(step: PlanStep) -> str:
    if step.tap is not None:
        queue = "the dead-letter queue of " if step.tap.dead_letter else ""
        return f"tap {step.tap.name} of {queue}{step.path}"
    if not step.access:
        return f"{step.kind} {step.path}"
    return f"{step.kind} {step.access} of {step.path or 'the namespace'}"


def _show(found: NamespacePlan, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json([_json(step) for step in found.steps])
        return
    for step in found.changing:
        print(printable(f"{_SIGNS[step.action]} {step.action} {_name(step)}"))
        for change in step.changes:
            print(printable(f"      {change.property}: {_value(change.old)} -> {_value(change.new)}"))
    same = len(found.steps) - len(found.changing)
    print(f"{len(found.changing)} to change, {same} unchanged")


def _json(step: PlanStep) -> dict[str, Any]:
    changes = [
        {"property": one.property, "old": _value(one.old), "new": _value(one.new)} for one in step.changes
    ]
    return {
        "action": step.action,
        "kind": step.kind,
        "path": step.path,
        "rule": step.access or None,
        "tap": step.tap.name if step.tap is not None else None,
        "changes": changes,
    }


def _value(value: object) -> object:
    """A value for people and for JSON: filters and actions by their fields that are set."""
    if value is None:
        return "none"
    if is_dataclass(value) and not isinstance(value, type):
        fields = {key: item for key, item in asdict(value).items() if item not in (None, ())}
        return fields.get("expression") if [*fields] == ["expression"] else json.dumps(fields)
    return json.dumps(value) if isinstance(value, bool | list) else value


def _carry_out(client: ManagementClient, where: ConnectionOptions, found: NamespacePlan) -> None:
    """Carry out the steps, each with a line for it. If one fails, the steps before it stay: the same command goes on."""
    from busbar.cli.plan_steps import StepRunner

    runner = StepRunner(client, where, found.steps)
    for number, step in enumerate(found.changing):
        try:
            runner.run(step)
        except CommandFailure as failure:
            done = f"{number} of {_count(found)} were carried out; run the command again to go on"
            raise CommandFailure(f"{failure.text} ({done})", failure.code) from None
        print(printable(f"{step.action}d {_name(step)}"), file=sys.stderr)
