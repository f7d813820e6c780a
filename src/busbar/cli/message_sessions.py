"""`busbar sessions`: the message sessions of a queue or subscription, their holders, backlogs and states."""

from __future__ import annotations

import base64
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.entity_commands import checked
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.groups import GROUPS
from busbar.cli.job_run import seconds_of
from busbar.cli.messaging import messaging
from busbar.cli.options import Output, Skip, command, group
from busbar.cli.output import OutputFormat, print_details, print_json, print_table, printable
from busbar.cli.send import body_source

if TYPE_CHECKING:
    from busbar.operations.sessions import SessionSummary

Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", show_default=False)]
RENEW_SECONDS = 5.0
"""Between renewals of a lock that is held: less than half of the shortest lock duration that is usual."""

session_commands = group("sessions", GROUPS["sessions"])


@command(
    session_commands,
    name="list",
    examples=("busbar sessions orders", "busbar sessions news/subscriptions/eu --top 20 -o json"),
)
def _list(
    *,
    entity: Entity,
    skip: Skip = 0,
    top: Annotated[int, typer.Option("--top", min=1, metavar="N", help="At most N.")] = 100,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """List sessions that have messages or a state, with their holders. The word `list` may be left out."""
    from busbar.operations.sessions import session_ids, sessions

    path = checked(entity, "entity")
    with messaging(where) as factory:
        ids = session_ids(factory, path)
        found = sessions(factory, path, list(islice(ids, skip, skip + top)))
    if output is OutputFormat.JSON:
        print_json([_as_json(each) for each in found])
        return
    rows = [
        (each.session_id, _count(each), str(each.deferred), _time(each.oldest), _holder(each), _state(each))
        for each in found
    ]
    columns = ("Session", "Messages", "Deferred", "Oldest", "Holder", "State")
    print_table(columns, rows, f"there is no session in '{entity}'")
    if len(ids) > skip + len(found):
        print(f"{len(ids):,} sessions in all; --skip and --top show others", file=sys.stderr)


@command(
    session_commands, examples=("busbar sessions show orders 7", "busbar sessions show orders 7 -o json")
)
def show(
    *, entity: Entity, session_id: SessionId, output: Output = OutputFormat.TABLE, where: ConnectionOptions
) -> None:
    """Show a session with its state, also while a client holds it. (`busbar peek --session-id` shows its messages.)"""
    from busbar.operations.sessions import session
    from busbar.operations.views import body_text

    with messaging(where) as factory:
        found = session(factory, checked(entity, "entity"), session_id, with_state=True)
    if output is OutputFormat.JSON:
        print_json(_as_json(found))
        return
    about = {
        "Session": found.session_id,
        "Messages": _count(found),
        "Deferred": str(found.deferred),
        "Oldest": _time(found.oldest),
        "Holder": _holder(found),
        "Locked until": _time(found.locked_until),
        "Locked messages": str(found.locked_messages),
        "State": "none" if found.state is None else f"{len(found.state):,} bytes",
    }
    print_details([{name: value for name, value in about.items() if value}])
    if found.state:
        print(f"\n{printable(body_text(found.state))}")


@command(
    session_commands,
    name="set-state",
    examples=(
        "busbar sessions set-state orders 7 '{\"step\": 2}'",
        "busbar sessions set-state orders 7 --file state.bin",
        "busbar sessions set-state orders 7 --clear",
    ),
)
def set_state(
    *,
    entity: Entity,
    session_id: SessionId,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="The state is in FILE.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove the state.")] = False,
    where: ConnectionOptions,
) -> None:
    """Set the state of a session: accept it, write the state, release it. Refused while a client holds it."""
    from busbar.operations.sessions import set_state as run

    if clear and (text is not None or file is not None):
        raise CommandFailure("--clear and a state: give one of them.", ExitCode.USAGE)
    state: bytes | None = None
    if not clear:
        with body_source(text, file) as source:
            state = source.read()
    with messaging(where, changes=True) as factory:
        run(factory, checked(entity, "entity"), session_id, state)


@command(
    session_commands,
    examples=("busbar sessions hold orders 7", "busbar sessions hold orders 7 --for 5m"),
)
def hold(
    *,
    entity: Entity,
    session_id: SessionId,
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="Release it then.", show_default="at Ctrl-C"),
    ] = None,
    where: ConnectionOptions,
) -> None:
    """Accept a session and keep its lock until Ctrl-C, so that no other client gets its messages. Then release it."""
    seconds = None if duration is None else seconds_of("--for", duration)
    with messaging(where, changes=True) as factory:
        receiver = factory.accept_session(checked(entity, "entity"), session_id, max_wait_time=2.0)
        end = None if seconds is None else time.monotonic() + seconds
        try:
            print(f"holding session '{printable(session_id)}' of '{entity}'", file=sys.stderr, flush=True)
            while (left := RENEW_SECONDS if end is None else end - time.monotonic()) > 0:
                time.sleep(min(left, RENEW_SECONDS))
                receiver.renew_lock()
        except KeyboardInterrupt:
            pass  # the usual end
        finally:
            receiver.close()
    print("released", file=sys.stderr)


def _as_json(found: SessionSummary) -> dict[str, object]:
    return {
        "sessionId": found.session_id,
        "messageCount": found.messages,
        "messageCountIsExact": found.is_counted,
        "deferredMessageCount": found.deferred,
        "oldestUtc": _time(found.oldest) or None,
        "isHeld": bool(found.locked_until),
        "holder": found.holder or None,
        "lockedUntilUtc": _time(found.locked_until) or None,
        "lockedMessageCount": found.locked_messages,
        "hasState": found.has_state,
        "stateBase64": None if found.state is None else base64.b64encode(found.state).decode("ascii"),
    }


def _count(found: SessionSummary) -> str:
    return f"{found.messages:,}" if found.is_counted else f"{found.messages:,}+"


def _holder(found: SessionSummary) -> str:
    if not found.locked_until:
        return ""
    return found.holder or "a client of another broker"


def _state(found: SessionSummary) -> str:
    return "yes" if found.has_state else ""


def _time(ms: int) -> str:
    from busbar.operations.views import time_text

    return time_text(ms)
