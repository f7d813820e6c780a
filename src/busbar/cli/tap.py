"""`busbar tap create|show|list|delete|advance|resume`: the taps of a queue, a subscription, or its dead-letter queue."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli import values
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.entity_commands import checked, confirm
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.groups import GROUPS
from busbar.cli.messaging import messaging
from busbar.cli.options import Output, Yes, command, group
from busbar.cli.output import OutputFormat, print_details, print_json, print_table, size_text
from busbar.model.duration import read_duration
from busbar.model.names import without_dead_letters

if TYPE_CHECKING:
    from busbar.client.blocking import BlockingFactory, BlockingTaps
    from busbar.client.taps import TapView

Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Owner = Annotated[
    str | None, typer.Option("--owner", metavar="TEXT", help="Whose it is.", show_default="its owner")
]

tap_commands = group("tap", GROUPS["tap"])


@command(
    tap_commands,
    examples=(
        "busbar tap create orders archive --from-earliest",
        "busbar tap create orders watch --events --max-age 1d --max-size 512MiB",
        "busbar tap create orders/Subscriptions/audit archive",
        "busbar tap create 'orders/$DeadLetterQueue' failures",
    ),
)
def create(
    *,
    entity: Entity,
    name: Name,
    events: Annotated[bool, typer.Option("--events", help="Record what becomes of messages, too.")] = False,
    consumes: Annotated[
        bool, typer.Option("--consumes", help="Delete what it passes; nobody else receives meanwhile.")
    ] = False,
    from_earliest: Annotated[
        bool, typer.Option("--from-earliest", help="Begin with what is there, not with what comes.")
    ] = False,
    owner: Annotated[str, typer.Option("--owner", metavar="TEXT", help="Whose it is.")] = "",
    max_age: Annotated[
        str | None,
        typer.Option("--max-age", metavar="DURATION", help="Keep nothing longer.", show_default="7d"),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option("--max-size", metavar="SIZE", help="Keep no more in a fragment.", show_default="1GiB"),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease", metavar="DURATION", help="With --consumes: after its last word.", show_default="5m"
        ),
    ] = None,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Create a tap: a named position, behind which messages are kept after they were received.

    ENTITY is a queue, TOPIC/Subscriptions/NAME, or one of these with /$DeadLetterQueue.
    """
    limits = {
        "max_age": _milliseconds("--max-age", max_age),
        "max_size": _bytes("--max-size", max_size),
        "lease": _milliseconds("--lease", lease),
    }
    with messaging(where, changes=True) as factory:
        view = _taps(factory, entity).create(
            name, events=events, consumes=consumes, from_earliest=from_earliest, owner=owner, **limits
        )
    _show(view, output)


@command(tap_commands, examples=("busbar tap show orders archive",))
def show(
    *, entity: Entity, name: Name, output: Output = OutputFormat.TABLE, where: ConnectionOptions
) -> None:
    """Show where a tap stands in each fragment, and what is kept for it."""
    with messaging(where) as factory:
        view = _taps(factory, entity).show(name)
    _show(view, output)


@command(tap_commands, name="list", examples=("busbar tap list orders", "busbar tap list orders -o json"))
def _list(*, entity: Entity, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """List the taps of a queue or subscription."""
    with messaging(where) as factory:
        views = _taps(factory, entity).list()
    if output is OutputFormat.JSON:
        print_json([_as_json(view) for view in views])
        return
    rows = [
        (
            view.name,
            view.reader or view.owner,
            "truncated" if view.truncated else "",
            str(sum(max(0, fragment.end - fragment.position) for fragment in view.fragments)),
            str(sum(fragment.kept for fragment in view.fragments)),
            size_text(sum(fragment.kept_bytes for fragment in view.fragments)),
        )
        for view in views
    ]
    print_table(("Name", "Reader", "State", "Behind", "Kept", "Size"), rows, f"'{entity}' has no taps.")


@command(tap_commands, examples=("busbar tap delete orders archive --yes",))
def delete(*, entity: Entity, name: Name, yes: Yes = False, where: ConnectionOptions) -> None:
    """Delete a tap, and what is kept for it alone."""
    with messaging(where, changes=True) as factory:
        confirm(f"Delete the tap {name} of {entity}, with what is kept for it?", yes)
        _taps(factory, entity).delete(name)


@command(
    tap_commands,
    examples=(
        "busbar tap advance orders archive --to-end --yes",
        "busbar tap advance orders archive --to 0=1500 --to 3=99",
    ),
)
def advance(
    *,
    entity: Entity,
    name: Name,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to", metavar="FRAGMENT=POSITION", help="In this fragment to there; may be given again."
        ),
    ] = None,
    to_end: Annotated[bool, typer.Option("--to-end", help="Pass everything that is there now.")] = False,
    events: Annotated[
        bool, typer.Option("--events", help="Its position among events, not messages.")
    ] = False,
    owner: Owner = None,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Move a tap forward: what it has passed is not kept for it any more.

    --to-end asks first, unless there is nothing to pass; in a script it needs --yes.
    """
    if bool(to) == to_end:
        raise CommandFailure("give either --to-end or --to FRAGMENT=POSITION.", ExitCode.USAGE)
    given = dict(_position(text) for text in to or ())
    with messaging(where, changes=True) as factory:
        taps = _taps(factory, entity)
        view = taps.show(name)
        stream = "events" if events else "messages"
        positions = given or _ends(view, events)
        if to_end:
            _confirm_skipping(view, positions, events, yes)
        taps.advance(name, view.owner if owner is None else owner, positions, stream=stream)
        view = taps.show(name)
    _show(view, output)


@command(tap_commands, examples=("busbar tap resume orders archive",))
def resume(
    *,
    entity: Entity,
    name: Name,
    owner: Owner = None,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Let a truncated tap go on behind what it lost."""
    with messaging(where, changes=True) as factory:
        taps = _taps(factory, entity)
        view = taps.resume(name, taps.show(name).owner if owner is None else owner)
    _show(view, output)


def _taps(factory: BlockingFactory, entity: str) -> BlockingTaps:
    path, dead_letters = without_dead_letters(checked(entity, "entity"))
    return factory.taps(path, sub_queue="deadletter" if dead_letters else "")


def _ends(view: TapView, events: bool) -> dict[int, int]:
    out = [str(fragment.index) for fragment in view.fragments if not fragment.available]
    if out:
        raise CommandFailure(
            f"the stores of fragments {', '.join(out)} are unavailable: where they end is not known."
        )
    return {f.index: f.event_end if events else f.end for f in view.fragments}


def _confirm_skipping(view: TapView, positions: dict[int, int], events: bool, yes: bool) -> None:
    """Ask before messages are skipped. Numbers may have holes: it skips as many messages as positions, or fewer."""
    skipped = sum(
        max(0, positions[f.index] - (f.event_position if events else f.position)) for f in view.fragments
    )
    if skipped:
        what = "events" if events else "messages"
        fate = ", which deletes them" if view.consumes and not events else ""
        question = f"Let the tap {view.name} of {view.entity} skip up to {skipped} {what}{fate}?"
        confirm(question, yes, "nothing was skipped.")


def _show(view: TapView, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(_as_json(view))
        return
    kinds = [word for word, is_one in (("events", view.events), ("consumes", view.consumes)) if is_one]
    about = {
        "Name": view.name,
        "Entity": view.entity + ("/$DeadLetterQueue" if view.dead_letter else ""),
        "Owner": view.owner or "nobody",
        **({"Reader": view.reader} if view.reader else {}),
        "Records": ", ".join(kinds) or "messages",
        "Keeps": f"{_duration(view.max_age)}, {_size(view.max_size)} in each fragment",
        "Created": datetime.fromtimestamp(view.created / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
    }
    if view.consumes:
        about["Lease"] = _duration(view.lease)
    print_details([about])
    print()
    columns = ["#", "Position", "End", "Kept", "Size", "State"]
    if view.events:
        columns[3:3] = ["Event", "Last event"]
    rows = []
    for fragment in view.fragments:
        row = [str(fragment.index), str(fragment.position), str(fragment.end)]
        if view.events:
            row += [str(fragment.event_position), str(fragment.event_end)]
        row += [str(fragment.kept), size_text(fragment.kept_bytes), _state(fragment)]
        rows.append(row if fragment.available else [row[0], *[""] * (len(row) - 2), "unavailable"])
    print_table(columns, rows, "")
    if view.truncated:
        print("Truncated: a limit was reached. `busbar tap resume` goes on behind what was lost.")


def _state(fragment: Any) -> str:
    if fragment.truncated:
        return f"truncated, lost up to {fragment.lost}"
    return ""


def _as_json(view: TapView) -> dict[str, object]:
    found: dict[str, object] = _camel(asdict(view))
    return found


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {_camel_key(key): _camel(item) for key, item in value.items()}
    return [_camel(item) for item in value] if isinstance(value, list | tuple) else value


def _camel_key(key: str) -> str:
    first, *others = key.split("_")
    return first + "".join(word.capitalize() for word in others)


def _position(text: str) -> tuple[int, int]:
    fragment, equals, position = text.partition("=")
    if not equals or not fragment.isdecimal() or not position.isdecimal():
        raise CommandFailure(f"--to '{text}' is not FRAGMENT=POSITION, like 0=1500.", ExitCode.USAGE)
    return int(fragment), int(position)


def _milliseconds(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return read_duration(values.duration(text))
    except ValueError as error:
        raise CommandFailure(f"{option}: {error}.", ExitCode.USAGE) from None


def _bytes(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return values.size(text)
    except ValueError as error:
        raise CommandFailure(f"{option}: {error}.", ExitCode.USAGE) from None


def _duration(milliseconds: int) -> str:
    if not milliseconds:
        return "for ever"
    seconds = milliseconds / 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def _size(count: int) -> str:
    return size_text(count) if count else "any size"
