"""`busbar top`: a live table of the entities: rates, backlog, dead letters, and how old the oldest message is.

Rates are differences of two scrapes of the metrics. On a terminal the table is printed again and again. Elsewhere it is
printed once, unless `-n` asks for more.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.metrics_text import MetricSample, read_metrics
from busbar.cli.options import Output, command
from busbar.cli.output import OutputFormat, print_json, print_table

SORTS = ("rate", "in", "out", "backlog", "dead", "age", "name")
CLEAR = "\x1b[H\x1b[2J"
_COLUMNS = ("Entity", "In/s", "Out/s", "Messages", "Locked", "Dead letters", "Oldest")
_BACKLOG = ("active", "deferred", "scheduled")
_DEAD = ("dead_letter", "transfer_dead_letter")


@dataclass(slots=True)
class EntityActivity:
    """What an entity holds, and the counters of what it has done."""

    entity: str
    backlog: int = 0
    dead: int = 0
    locked: int = 0
    oldest: int = 0
    """Seconds; 0 if it has no messages."""
    taken: int = 0
    given: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0


def add_top_command(app: typer.Typer) -> None:
    command(
        app,
        examples=("busbar top", "busbar top --sort backlog --interval 5", "busbar top -n 1 -o json"),
    )(top)


def top(
    *,
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, max=3600, metavar="SECONDS", help="Between two tables.")
    ] = 2.0,
    iterations: Annotated[
        int | None,
        typer.Option("-n", "--iterations", min=1, metavar="N", help="Tables.", show_default="1 if piped"),
    ] = None,
    sort: Annotated[str, typer.Option("--sort", metavar="|".join(SORTS), help="The largest first.")] = "rate",
    most: Annotated[int, typer.Option("--top", min=1, metavar="N", help="At most N entities.")] = 20,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Show what entities do now: messages in and out each second, backlog, locked messages, dead letters, and the age of the
    oldest message.

    Ctrl-C ends it.
    """
    from busbar.cli.management_client import ManagementClient

    if sort not in SORTS:
        raise CommandFailure(f"--sort is '{sort}'; it is one of {', '.join(SORTS)}.", ExitCode.USAGE)
    is_live = sys.stdout.isatty() and output is OutputFormat.TABLE
    left = iterations or (None if is_live else 1)
    before: dict[str, EntityActivity] = {}
    began = 0.0
    try:
        while left is None or left >= 0:
            with ManagementClient(find_target(where)) as client:
                found = activity_of(read_metrics(client.metrics()))
            now = time.monotonic()
            if before or began:
                set_rates(found, before, now - began)
                _print(ordered(found, sort)[:most], len(found), output, is_live)
            before, began = found, now
            left = None if left is None else left - 1
            if left is None or left >= 0:
                time.sleep(interval if left is None or iterations else min(interval, 1.0))
    except KeyboardInterrupt:
        return


def activity_of(samples: Sequence[MetricSample]) -> dict[str, EntityActivity]:
    """The entities of a scrape. Counters of several processes are added up."""
    found: dict[str, EntityActivity] = {}
    states: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for sample in samples:
        entity = sample.labels.get("entity")
        if entity is None:
            continue
        one = found.setdefault(entity, EntityActivity(entity))
        value = int(sample.value)
        if sample.family == "busbar_messages":
            states[entity][sample.labels["state"]] += value
        elif sample.family == "busbar_messages_locked":
            one.locked += value
        elif sample.family == "busbar_oldest_message_seconds":
            one.oldest = max(one.oldest, value)
        elif sample.family == "busbar_messages_in_total":
            one.taken += value
        elif sample.family == "busbar_messages_out_total":
            one.given += value
    for entity, one in found.items():
        one.backlog = sum(states[entity][state] for state in _BACKLOG)
        one.dead = sum(states[entity][state] for state in _DEAD)
    return found


def set_rates(found: dict[str, EntityActivity], before: dict[str, EntityActivity], seconds: float) -> None:
    """Set the rates since an earlier scrape. A counter that has become smaller began again with its process."""
    for entity, one in found.items():
        old = before.get(entity, EntityActivity(entity))
        one.rate_in = (one.taken - old.taken if one.taken >= old.taken else one.taken) / seconds
        one.rate_out = (one.given - old.given if one.given >= old.given else one.given) / seconds


def ordered(found: dict[str, EntityActivity], sort: str) -> list[EntityActivity]:
    by_name = sorted(found.values(), key=lambda one: one.entity.lower())
    if sort == "name":
        return by_name
    values = {
        "rate": lambda one: (one.rate_in + one.rate_out, one.backlog),
        "in": lambda one: (one.rate_in, one.backlog),
        "out": lambda one: (one.rate_out, one.backlog),
        "backlog": lambda one: (one.backlog, one.dead),
        "dead": lambda one: (one.dead, one.backlog),
        "age": lambda one: (one.oldest, one.backlog),
    }
    return sorted(by_name, key=values[sort], reverse=True)


def _print(shown: list[EntityActivity], total: int, output: OutputFormat, is_live: bool) -> None:
    if output is OutputFormat.JSON:
        print_json([_json(one) for one in shown])
        return
    if is_live:
        print(CLEAR, end="")
    print_table(_COLUMNS, [_row(one) for one in shown], "There are no entities.")
    if len(shown) < total:
        print(f"{len(shown)} of {total} entities; --top shows more.", file=sys.stderr)
    sys.stdout.flush()


def _json(one: EntityActivity) -> dict[str, object]:
    return {
        "entity": one.entity,
        "inPerSecond": round(one.rate_in, 1),
        "outPerSecond": round(one.rate_out, 1),
        "messages": one.backlog,
        "locked": one.locked,
        "deadLetters": one.dead,
        "oldestSeconds": one.oldest,
    }


def _row(one: EntityActivity) -> tuple[str, ...]:
    rates = f"{one.rate_in:.1f}", f"{one.rate_out:.1f}"
    return one.entity, *rates, str(one.backlog), str(one.locked), str(one.dead), age_text(one.oldest)


def age_text(seconds: int) -> str:
    """A time in one unit: 45 s, 12 min, 3 h, 9 d."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s" if seconds else ""
