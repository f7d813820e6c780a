"""`busbar catalogue rebuild`: the catalogue of a data directory, made from its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.groups import GROUPS
from busbar.cli.options import command, group
from busbar.cli.output import printable
from busbar.cli.stores import files_of

if TYPE_CHECKING:
    from busbar.app.catalogue_rebuild import RebuiltCatalogue

catalogue_commands = group("catalogue", GROUPS["catalogue"])


@command(
    catalogue_commands,
    examples=("busbar catalogue rebuild --data .busbar", "busbar catalogue rebuild --data .busbar --force"),
)
def rebuild(
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if there is a catalogue. It is renamed."),
    ] = False,
    catalogue: Annotated[
        str, typer.Option(metavar="URL", help="The PostgreSQL database that it is made in, if not in DIR.")
    ] = "",
    where: ConnectionOptions,
) -> None:
    """Make the catalogue of --data from the definitions in its stores, while no Busbar serves it."""
    from busbar.app.catalogue_rebuild import rebuild_catalogue

    with files_of(where):
        made = rebuild_catalogue(where.data, force=force, url=catalogue)
    for line in _lines(made):
        print(printable(line))


def _lines(made: RebuiltCatalogue) -> list[str]:
    report = made.report
    lines = []
    if made.replaced:
        lines.append(f"The old catalogue is {made.replaced} now.")
    lines.append(f"{made.name} has {len(report.entities)} entities, from {', '.join(report.stores)}.")
    lines += [f"{name} could not be read: {reason}" for name, reason in made.refused.items()]
    lines += [f"{name} is missing: what it alone had is not in the catalogue." for name in report.missing]
    lines += [f"{name} is not a store of this namespace, and was ignored." for name in report.ignored]
    if report.limited:
        lines.append(f"Entities with a part in a missing store: {', '.join(report.limited)}.")
    for store, fragments in report.unknown_fragments.items():
        names = ", ".join(map(str, fragments))
        lines.append(f"{store} has messages in fragments that no definition names; they stay there: {names}.")
    lines.append("Start Busbar to serve them.")
    return lines
