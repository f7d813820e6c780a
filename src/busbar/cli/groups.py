"""The commands that have commands. Only the group that is named is built: to build one costs a quarter of the time that a
command takes to start. The others are there for the list that `busbar --help` prints."""

from __future__ import annotations

import typer

from busbar.cli.options import group

GROUPS = {
    "queue": "Create, show, list, update and delete queues.",
    "topic": "Create, show, list, update and delete topics.",
    "subscription": "Create, show, list, update and delete subscriptions.",
    "rule": "Create, show, list, update and delete rules.",
    "tap": "Create, show, list, move and delete taps.",
    "dead-letters": "Group, show, resubmit and delete dead letters.",
    "sessions": "List, show and hold message sessions, and set their states.",
    "namespace": "Show the namespace, its rules, and its keys on demand.",
    "sas": "Make shared access signatures.",
    "connections": "List the connections of clients, close one.",
    "stores": "List the messaging stores, take one offline, bring it back.",
    "brokers": "Restart the broker processes of a namespace.",
    "catalogue": "Make a lost catalogue again, from the stores.",
}

LISTED_ALONE = ("connections", "stores")
"""Groups that list when nothing follows them but options."""
LISTED_BY_ENTITY = {
    "dead-letters": ("list", "show", "resubmit", "delete"),
    "sessions": ("list", "show", "hold", "set-state"),
}
"""Groups that list an entity if they are followed by its name, and their commands."""


def in_full(arguments: list[str]) -> list[str]:
    """The arguments, with the `list` that a group means when no command of it is named."""
    if not arguments or "--help" in arguments:
        return arguments
    name, *rest = arguments
    is_command = bool(rest) and not rest[0].startswith("-")
    if name in LISTED_ALONE and not is_command:
        return [name, "list", *rest]
    if name in LISTED_BY_ENTITY and is_command and rest[0] not in LISTED_BY_ENTITY[name]:
        return [name, "list", *rest]
    return arguments


def groups_for(arguments: list[str]) -> list[typer.Typer]:
    """All groups. Only the group that `arguments` name has its commands."""
    named = next((argument for argument in arguments if not argument.startswith("-")), "")
    return [_built(name) if name == named else group(name, text) for name, text in GROUPS.items()]


def _built(name: str) -> typer.Typer:
    if name == "rule":
        import busbar.cli.rule_test  # noqa: F401  # adds its command to the others
        from busbar.cli.rule import rule_commands

        return rule_commands
    if name == "tap":
        from busbar.cli.tap import tap_commands

        return tap_commands
    if name == "dead-letters":
        from busbar.cli.dead_letters import dead_letter_commands

        return dead_letter_commands
    if name == "sessions":
        from busbar.cli.message_sessions import session_commands

        return session_commands
    if name == "namespace":
        from busbar.cli.namespace import namespace_commands

        return namespace_commands
    if name == "sas":
        from busbar.cli.sas import sas_commands

        return sas_commands
    if name == "stores":
        from busbar.cli.stores import stores_commands

        return stores_commands
    if name == "connections":
        from busbar.cli.connections import connections_commands

        return connections_commands
    if name == "brokers":
        from busbar.cli.brokers import brokers_commands

        return brokers_commands
    if name == "catalogue":
        from busbar.cli.catalogue import catalogue_commands

        return catalogue_commands
    from busbar.cli.entity_commands import entity_commands
    from busbar.cli.entity_kinds import QUEUE, SUBSCRIPTION, TOPIC

    return entity_commands({kind.noun: kind for kind in (QUEUE, TOPIC, SUBSCRIPTION)}[name])
