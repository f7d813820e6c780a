"""`busbar stores [list|add|drain|remove|offline|online|move|reset|restore]`, and the fragments of a queue."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.groups import GROUPS
from busbar.cli.options import Output, Yes, command, group
from busbar.cli.output import OutputFormat, print_json, print_table, printable, size_text
from busbar.model.names import without_dead_letters

if TYPE_CHECKING:
    from busbar.cli.atom_client import ManagementClient

View = dict[str, Any]
Stopped = Annotated[
    bool,
    typer.Option("--stopped", help="Work on the files of --data, while no Busbar serves them."),
]
ADDING_SECONDS = 60.0
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]

stores_commands = group("stores", GROUPS["stores"])


@command(stores_commands, name="list", examples=("busbar stores list", "busbar stores list -o json"))
def _list(*, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """List the stores: their state, how many fragments they hold and their size.

    `Epoch` counts the claims of the store. The next two columns are the times of its last commits. `Group` is the number of
    messages that one of them changes on average.
    """
    with _client(where) as client:
        _print(ask(client, "GET", "stores", "the list of stores"), output)


@command(stores_commands, examples=("busbar stores offline store-2",))
def offline(*, name: Name, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """Leave a store alone: its file is closed, and its fragments are unavailable, until it is brought online again."""
    _change(name, "offline", output, where)


@command(stores_commands, examples=("busbar stores online store-2",))
def online(*, name: Name, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """Open a store that is unavailable, now."""
    _change(name, "online", output, where)


@command(stores_commands, examples=("busbar stores move store-2 broker-1", "busbar stores move store-2 any"))
def move(
    *,
    name: Name,
    broker: Annotated[str, typer.Argument(metavar="BROKER", show_default=False)],
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Hand a store over to another broker of `--brokers N`. Clients notice a short pause.

    The store stays with that broker until the next start; `any` ends that.
    """
    _change(name, f"move/{broker}", output, where)


@command(
    stores_commands,
    examples=(
        "busbar stores drain store-2",
        "busbar stores drain store-2 --wait",
        "busbar stores drain store-2 --undo",
    ),
)
def drain(
    *,
    name: Name,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until nothing is left there.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Place new entities there again.")] = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Place no fragments of new entities in a store, and list what it holds. Entities that are there stay, and are served.

    Call it again to see what is left. docs/cluster-operations.md describes how to empty a store while clients work.
    """
    from busbar.cli.store_contents import StoreContents, print_held

    if undo and wait:
        raise CommandFailure("--undo ends a drain; there is nothing to wait for.", ExitCode.USAGE)
    if undo:
        _change(name, "undrain", output, where)
        return
    with _client(where) as client:
        found = _asked(client, name, "drain")
        contents = StoreContents(client, name)
        if wait:
            contents.until_empty()
        held = contents.look()
    if output is OutputFormat.JSON:
        print_json([found | {"holds": [one._asdict() for one in held]}])
        return
    _print([found], output)
    print_held(name, held)


@command(stores_commands, examples=("busbar stores remove store-2",))
def remove(*, name: Name, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
    """Remove a store of a cluster that is drained and holds no fragments any more. Its schema stays in the database."""
    with _client(where) as client:
        _print([_asked(client, name, "remove")], output)


@command(
    stores_commands,
    examples=("busbar stores add postgresql://busbar@db2/busbar --data .busbar-a",),
)
def add(
    *,
    url: Annotated[str, typer.Argument(metavar="URL", show_default=False)],
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Add a store to a cluster, in the PostgreSQL database of that address; --data is that of a node.

    New entities have fragments in it. Those that are there stay where they are. An address named twice is two stores.
    """
    from busbar.app.store_adding import add_store

    with files_of(where):
        name = add_store(where.data, url)
    with _client(where) as client:
        _print([_until_open(client, name)], output)


@command(
    stores_commands,
    examples=("busbar stores reset store-2 --yes", "busbar stores reset store-2 --stopped --yes"),
)
def reset(
    *,
    name: Name,
    yes: Yes = False,
    stopped: Stopped = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also one that was taken offline, and so may be intact.")
    ] = False,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Replace an unavailable store with a new, empty one. Its file is renamed; `restore` can put it back.

    A store that can be opened is opened, and not reset. Asks first; in a script it needs --yes.
    """
    from busbar.cli.entity_commands import confirm

    question = f"Give up all messages of the store {name}?"
    if stopped:
        confirm(question, yes)
        _reset_stopped(name, where)
        return
    with _client(where) as client:
        client.say_target()
        confirm(question, yes)
        found = _asked(client, name, "forced-reset" if force else "reset")
    _print([found], output)
    _must_be_open(found)
    if not found["lostAt"] and output is OutputFormat.TABLE:
        print(f"{name} could be opened, and was not reset.", file=sys.stderr)


@command(stores_commands, examples=("busbar stores restore store-2 --data .busbar",))
def restore(
    *,
    name: Name,
    file: Annotated[
        str,
        typer.Option("--file", metavar="FILE", help="Which one.", show_default="the newest replaced one"),
    ] = "",
    where: ConnectionOptions,
) -> None:
    """Put back what a reset replaced of a store of --data, while no Busbar serves it.

    The store in its place must hold no messages; it is renamed in turn.
    """
    from busbar.app.store_restore import restore_store

    with files_of(where):
        aside, messages = restore_store(where.data, name, file)
    print(f"{aside.name} is {name} again, with {messages} messages; start Busbar to serve them.")


def _until_open(client: ManagementClient, name: str) -> View:
    """Wait until a store that was added is open."""
    import time

    deadline = time.monotonic() + ADDING_SECONDS
    while True:
        try:
            found = [one for one in ask(client, "GET", "stores", "the list of stores") if one["name"] == name]
        except CommandFailure:  # the controller starts again
            found = []
        if found and found[0]["state"] == "open":
            return dict(found[0])
        if time.monotonic() > deadline:
            reason = found[0]["reason"] if found else "the controller has not made it yet"
            raise CommandFailure(f"the store '{name}' was added and is not open: {reason}.")
        time.sleep(0.2)


def _reset_stopped(name: str, where: ConnectionOptions) -> None:
    """Reset a store of a namespace that cannot start, since all of its stores are lost."""
    import asyncio

    from busbar.app.store_reset import reset_store

    with files_of(where):
        view = asyncio.run(reset_store(where.data, name))
    if view.state != "open":
        raise CommandFailure(f"the store '{name}' is still unavailable: {view.reason}.")
    print(f"{name} was re-created empty.")


@contextmanager
def files_of(where: ConnectionOptions) -> Iterator[None]:
    """Turns errors with the files of a data directory, which no process serves, into a CommandFailure."""
    from busbar.app.config import ConfigError
    from busbar.app.data_directory import DataDirectoryError
    from busbar.model.errors import BusbarError
    from busbar.store.contract import StoreError

    if not where.data.is_dir():
        raise CommandFailure(f"there is no data directory {where.data}; name it with --data.", ExitCode.USAGE)
    try:
        yield
    except BusbarError as error:
        raise CommandFailure(error.text, ExitCode.REFUSED) from None
    except (ConfigError, DataDirectoryError, StoreError, OSError) as error:
        raise CommandFailure(str(error)) from None


def show_fragments(client: ManagementClient, path: str, what: str, output: OutputFormat) -> None:
    found = ask(client, "GET", f"fragments/{path}", what)
    if output is OutputFormat.JSON:
        print_json(found)
        return
    columns = ("#", "Store", "State", "Messages", "Dead", "Scheduled", "Transfer", "Size", "Oldest")
    rows = [_fragment_row(view) for view in found]
    print_table(*_with_brokers(columns, rows, found), f"{what} has no fragments.")
    for reason in sorted({view["reason"] for view in found if view["reason"]}):
        print(reason)


def show_duplicates(client: ManagementClient, path: str, what: str, output: OutputFormat) -> None:
    found = ask(client, "GET", f"duplicates/{path}", what)
    if output is OutputFormat.JSON:
        print_json(found)
        return
    print(f"{found['dropped']} dropped; {found['remembered']} ids are remembered.")
    rows = [(_time(drop["time"]), drop["messageId"], str(drop["original"] or "")) for drop in found["latest"]]
    if rows:
        print_table(("Dropped at", "Message id", "Original"), rows, "")


def say_which_are_unavailable(client: ManagementClient) -> None:
    """Print the unavailable stores to standard error, after something limited was shown."""
    out = [view for view in ask(client, "GET", "stores", "the list of stores") if view["state"] != "open"]
    for view in out:
        since = _time(view["since"])
        text = f"Limited: the store {view['name']} is unavailable since {since}, with what it holds: {view['reason']}"
        print(printable(text), file=sys.stderr)


def out_of_reach(client: ManagementClient, entity: str) -> str:
    """Which part of an entity cannot be reached now, for people; empty if all can."""
    path = without_dead_letters(entity)[0]
    try:
        views = ask(client, "GET", f"fragments/{path}", f"'{entity}'")
        out = sorted({view["store"] for view in views if view["state"] != "open"})
        if not out:
            return ""
        count = sum(view["state"] != "open" for view in views)
        return f"{count} of its {len(views)} fragments cannot be reached, because {_are_unavailable(out)}"
    except CommandFailure:  # the key may not manage: what everyone may know has to do
        out = _names(client)
        return f"{_are_unavailable(out)}, and may hold a part of it" if out else ""


def _are_unavailable(names: list[str]) -> str:
    one = len(names) == 1
    return f"the store{'' if one else 's'} {', '.join(names)} {'is' if one else 'are'} unavailable"


def _names(client: ManagementClient) -> list[str]:
    try:
        found = json.loads(client.expect("GET", "health", "the state of the namespace").body)
        return [str(name) for name in found["stores"]]
    except (CommandFailure, ValueError, KeyError, TypeError):
        return []


def _fragment_row(view: View) -> tuple[str, ...]:
    if view["state"] != "open":
        return str(view["index"]), view["store"], view["state"], "", "", "", "", "", ""
    dead = view["deadLetter"] + view["transferDeadLetter"]
    counts = view["active"] + view["deferred"], dead, view["scheduled"], view["transfer"]
    oldest = _time(view["oldest"])[5:] if view["oldest"] else ""
    return (
        str(view["index"]),
        view["store"],
        view["state"],
        *map(str, counts),
        size_text(view["size"]),
        oldest,
    )


def _with_brokers(
    columns: tuple[str, ...], rows: list[tuple[str, ...]], found: list[View]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns and rows with the broker of each store, if there are several brokers."""
    brokers = [view.get("broker", "") for view in found]
    if not any(brokers):
        return columns, rows
    return (*columns, "Broker"), [(*row, broker) for row, broker in zip(rows, brokers, strict=True)]


def _change(name: str, change: str, output: OutputFormat, where: ConnectionOptions) -> None:
    with _client(where) as client:
        found = _asked(client, name, change)
    _print([found], output)
    if change != "offline":
        _must_be_open(found)


def _asked(client: ManagementClient, name: str, change: str) -> View:
    found: View = ask(client, "POST", f"stores/{name}/{change}", f"store '{name}'")
    return found


def _must_be_open(found: View) -> None:
    if found["state"] != "open":
        raise CommandFailure(f"the store '{found['name']}' is still unavailable: {found['reason']}.")


def _print(found: list[View], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(found)
        return
    rows: list[tuple[str, ...]] = [
        (
            view["name"],
            view["state"],
            str(view["fragments"]),
            size_text(view["size"]),
            str(view["epoch"]),
            _commit_time(view["commitP50"]),
            _commit_time(view["commitP99"]),
            str(view["group"] or ""),
            view["url"],
        )
        for view in found
    ]
    columns = ("Name", "State", "Fragments", "Size", "Epoch", "p50", "p99", "Group", "URL")
    print_table(*_with_brokers(columns, rows, found), "There are no stores.")
    for view in found:
        if view["reason"]:
            print(f"{view['name']} is unavailable since {_time(view['since'])}: {view['reason']}")
        if view.get("drained"):
            print(f"{view['name']} is drained: new entities have no fragments there")
        if view.get("status"):
            print(f"{view['name']}: {view['status']}")
        if view["lostAt"]:
            lost = (
                f"{view['lostMessages']} messages ({size_text(view['lostSize'])}) were lost with the old one"
            )
            if view["lostMessages"] < 0:
                lost = "what the old one held is not known"
            print(f"{view['name']} was re-created at {_time(view['lostAt'])}: {lost}")


def _commit_time(microseconds: int) -> str:
    return f"{microseconds / 1000:.1f} ms" if microseconds else ""


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ask(client: ManagementClient, method: str, path: str, what: str, query: str = "") -> Any:
    answer = client.expect(method, f"$busbar/{path}", what, query=query)
    try:
        return json.loads(answer.body)
    except ValueError:
        raise CommandFailure("what answers is not a Busbar.") from None


def _client(where: ConnectionOptions) -> ManagementClient:
    from busbar.cli.atom_client import ManagementClient

    return ManagementClient(find_target(where))
