"""`busbar queue|topic|subscription create|show|list|update|delete`: five verbs, the same for every kind.

1. `update` changes what is named and nothing else: it reads, modifies and writes.
2. A queue and a topic share one space of names: before one is deleted, its kind is checked.
3. `delete` asks first. Without a terminal it refuses, unless `--yes` is given.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.auth_rule import add_auth_rule_commands
from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.entity_kinds import KINDS, QUEUE, RUNTIME, SUBSCRIPTION, TOPIC, EntityCommandKind
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.groups import GROUPS
from busbar.cli.options import Output, Skip, Top, Topic, Yes, command, group, named
from busbar.cli.output import OutputFormat, print_details, print_json, print_table

if TYPE_CHECKING:
    from busbar.cli.management_client import ManagementClient
    from busbar.client.administration_xml import AtomContent

Values = dict[str, str]
Name = Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)]
Fragments = Annotated[
    bool, typer.Option("--fragments", help="What each of its fragments holds, and in which store.")
]
DuplicatesOption = Annotated[
    bool, typer.Option("--duplicates", help="What its duplicate detection dropped, and the latest of it.")
]
NameOption = Annotated[str | None, typer.Option("--name", "-n", hidden=True)]


def entity_commands(kind: EntityCommandKind) -> typer.Typer:
    """The commands of one kind of entity."""
    noun = kind.noun
    app = group(noun, GROUPS[noun])
    verbs = EntityVerbs(kind)
    at = "--topic orders " if kind.parent else ""
    example = "audit" if kind.parent else "orders"
    without = () if kind.parent else ("topic",)
    command(
        app,
        properties=kind.properties,
        without=without,
        help=f"Create a {noun}. What is not named gets the service's default.",
        examples=_creations(kind),
    )(verbs.create)
    command(
        app,
        without=without if kind is QUEUE else (*without, "fragments", "duplicates"),
        help=f"Show a {noun}: its properties and what it holds now.",
        examples=(f"busbar {noun} show {at}{example}", f"busbar {noun} show {at}{example} -o json"),
    )(verbs.show)
    command(
        app,
        without=without,
        help=f"List the {noun}s{' of a topic' if kind.parent else ''} by name, with what they hold.",
        examples=(f"busbar {noun} list {at}".strip(), f"busbar {noun} list {at}-o json"),
    )(verbs.list)
    command(
        app,
        properties=kind.properties,
        hide_fixed=True,
        without=without,
        help=f"Change a {noun}: what is named, and nothing else.",
        examples=(f"busbar {noun} update {at}{example} --default-message-time-to-live 14d --status Active",),
    )(verbs.update)
    command(
        app,
        without=without,
        help=f"Delete a {noun} with all its messages. Asks first; in a script it needs --yes.",
        examples=(f"busbar {noun} delete {at}{example} --yes",),
    )(verbs.delete)
    if not kind.parent:
        add_auth_rule_commands(app, noun)
    return app


class EntityVerbs:
    """The five verbs for one kind of entity. `topic` is empty for kinds that are not below one."""

    def __init__(self, kind: EntityCommandKind) -> None:
        self._kind = kind
        self._noun = kind.noun

    def create(
        self,
        *,
        name: Name = None,
        name_option: NameOption = None,
        topic: Topic,
        properties: Values,
        output: Output = OutputFormat.TABLE,
        where: ConnectionOptions,
    ) -> None:
        from busbar.client.administration_xml import new_description

        kind = self._kind
        path, what = locate(kind, named(name, name_option, self._noun), topic)
        description = new_description(kind.description)
        set_properties(kind, description, properties)
        with _client(where) as client:
            _show(kind, client.create(path, description, what), topic, output)
        warn_of_no_effect(kind, properties)

    def show(
        self,
        *,
        name: Name = None,
        name_option: NameOption = None,
        topic: Topic,
        fragments: Fragments = False,
        duplicates: DuplicatesOption = False,
        output: Output = OutputFormat.TABLE,
        where: ConnectionOptions,
    ) -> None:
        wanted = named(name, name_option, self._noun)
        # An impossible name is refused before the command looks for a broker.
        path, what = locate(self._kind, wanted, topic)
        with _client(where) as client:
            entry = fetch(client, self._kind, wanted, topic)
            if fragments or duplicates:
                from busbar.cli.stores import show_duplicates, show_fragments

                (show_fragments if fragments else show_duplicates)(client, path, what, output)
                return
            _say_what_is_out(client, [entry])
            _show(self._kind, entry, topic, output)

    def list(
        self,
        *,
        topic: Topic,
        skip: Skip = 0,
        top: Top = None,
        output: Output = OutputFormat.TABLE,
        where: ConnectionOptions,
    ) -> None:
        from busbar.cli.entity_view import COLUMNS, as_json, row

        kind, noun = self._kind, self._noun
        path = f"{checked(topic, 'topic')}/Subscriptions" if kind.parent else f"$Resources/{kind.plural}"
        what = f"topic '{topic}'" if kind.parent else f"the list of {noun}s"
        with _client(where) as client:
            entries = [*client.list(path, what, skip, top)]
            _say_what_is_out(client, entries)
        if output is OutputFormat.JSON:
            print_json([as_json(kind, entry, topic) for entry in entries])
        else:
            print_table(COLUMNS[noun], [row(kind, entry) for entry in entries], f"There are no {noun}s.")

    def update(
        self,
        *,
        name: Name = None,
        name_option: NameOption = None,
        topic: Topic,
        properties: Values,
        output: Output = OutputFormat.TABLE,
        where: ConnectionOptions,
    ) -> None:
        kind = self._kind
        wanted = named(name, name_option, self._noun)
        if not properties:
            raise CommandFailure("nothing to change; name at least one property.", ExitCode.USAGE)
        with _client(where) as client:
            _show(kind, change_entity(client, kind, wanted, topic, properties), topic, output)
        warn_of_no_effect(kind, properties)

    def delete(
        self,
        *,
        name: Name = None,
        name_option: NameOption = None,
        topic: Topic,
        yes: Yes = False,
        output: Output = OutputFormat.TABLE,
        where: ConnectionOptions,
    ) -> None:
        wanted = named(name, name_option, self._noun)
        path, what = locate(self._kind, wanted, topic)
        with _client(where) as client:
            entry = fetch(client, self._kind, wanted, topic)
            client.say_target()
            confirm(f"Delete {what} with {_held(entry)}?", yes)
            client.delete(path, what)
        if output is OutputFormat.TABLE:
            print(f"{what} deleted", file=sys.stderr)


def locate(kind: EntityCommandKind, name: str, topic: str = "") -> tuple[str, str]:
    """The path of an entity, and how errors name it. Raises CommandFailure for a name that cannot be one."""
    if not kind.parent:
        return checked(name, kind.noun), f"{kind.noun} '{name}'"
    path = f"{checked(topic, 'topic')}/Subscriptions/{single(name, kind.noun)}"
    return path, f"{kind.noun} '{name}' of topic '{topic}'"


def checked(name: str, noun: str) -> str:
    """The name, if it can stand in an address. The broker checks all other rules. Raises CommandFailure."""
    segments = name.split("/")
    if any(segment in ("", ".", "..") for segment in segments) or not name.isprintable():
        raise CommandFailure(f"'{name}' cannot be the name of a {noun}.", ExitCode.USAGE)
    return name


def single(name: str, noun: str) -> str:
    if "/" in name:
        raise CommandFailure(f"'{name}' cannot be the name of a {noun}: it has a '/'.", ExitCode.USAGE)
    return checked(name, noun)


def fetch(client: ManagementClient, kind: EntityCommandKind, name: str, topic: str = "") -> AtomContent:
    """The entity, if it is of this kind. Raises CommandFailure."""
    path, what = locate(kind, name, topic)
    entry = client.get(path, what)
    if entry.kind != kind.description:
        other = KINDS.get(entry.kind)
        hint = f"it is a {other.noun}: `busbar {other.noun} show {name}`" if other else "it is something else"
        raise CommandFailure(f"{what} does not exist; {hint}.", ExitCode.NOT_FOUND)
    return entry


def change_entity(
    client: ManagementClient, kind: EntityCommandKind, name: str, topic: str, properties: Values
) -> AtomContent:
    """Change these properties of an entity, and no others. Raises CommandFailure."""
    from busbar.client.administration_xml import remove

    path, what = locate(kind, name, topic)
    description = fetch(client, kind, name, topic).description
    for element in RUNTIME:
        remove(description, element)
    set_properties(kind, description, properties)
    return client.update(path, description, what)


def confirm(question: str, yes: bool, otherwise: str = "nothing was deleted.") -> None:
    """Ask at the terminal. Raises CommandFailure if the answer is not yes, or if there is no terminal."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandFailure(f"{question} Nobody can answer here: say it with --yes.", ExitCode.USAGE)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailure(otherwise)


def warn_of_no_effect(kind: EntityCommandKind, properties: Values) -> None:
    """Warn of values that the broker accepted and does not act on."""
    for one in kind.properties:
        if one.without_effect is not None and properties.get(one.element) == one.without_effect[0]:
            value, instead = one.without_effect
            print(f"warning: {one.element} {value} has no effect: {instead}.", file=sys.stderr)


def _client(where: ConnectionOptions) -> ManagementClient:
    from busbar.cli.management_client import ManagementClient

    return ManagementClient(find_target(where))


def set_properties(kind: EntityCommandKind, description: object, properties: Values) -> None:
    from xml.etree.ElementTree import Element

    from busbar.client.administration_xml import set_text

    assert isinstance(description, Element)
    for element, text in properties.items():
        set_text(description, element, text, kind.elements)


def _show(kind: EntityCommandKind, entry: AtomContent, topic: str, output: OutputFormat) -> None:
    from busbar.cli.entity_view import as_json, details

    if output is OutputFormat.JSON:
        print_json(as_json(kind, entry, topic))
    else:
        print_details(details(kind, entry, topic))


def _say_what_is_out(client: ManagementClient, entries: Sequence[AtomContent]) -> None:
    """Name the unavailable stores, if one of them has a part of these entities: its messages are not counted."""
    from busbar.cli.entity_view import is_limited

    if any(map(is_limited, entries)):
        from busbar.cli.stores import say_which_are_unavailable

        say_which_are_unavailable(client)


def _held(entry: AtomContent) -> str:
    from busbar.client.administration_xml import text_of

    if entry.kind == TOPIC.description:
        count, noun = text_of(entry.description, "SubscriptionCount") or "0", "subscription"
    else:
        count, noun = text_of(entry.description, "MessageCount") or "0", "message"
    return f"{count} {noun}{'' if count == '1' else 's'}"


def _creations(kind: EntityCommandKind) -> tuple[str, ...]:
    if kind is QUEUE:
        return (
            "busbar queue create orders",
            "busbar queue create orders --lock-duration 1m --max-delivery-count 5",
            "busbar queue create orders --enable-partitioning true --max-size 1024",
        )
    if kind is SUBSCRIPTION:
        return (
            "busbar subscription create --topic orders audit",
            "busbar subscription create --topic orders audit --forward-to archive",
        )
    return ("busbar topic create orders", "busbar topic create orders --default-message-time-to-live 14d")
