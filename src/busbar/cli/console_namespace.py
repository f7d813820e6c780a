"""The namespace of the web console: a running Busbar, found and asked as all commands do.

Each question gets a client of its own. So threads share nothing, and a Busbar that was restarted on another port is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from busbar.cli.atom_client import ManagementClient
from busbar.cli.atom_xml import AtomEntry, new_description
from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.entity_commands import fetch, locate, set_properties
from busbar.cli.entity_kinds import QUEUE, SUBSCRIPTION, TOPIC
from busbar.cli.entity_kinds import EntityCommandKind as Described
from busbar.cli.entity_view import as_json, details
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.output import label, size_text
from busbar.cli.stores import ask
from busbar.console.namespace import (
    Address,
    Entity,
    EntityPage,
    EntityType,
    FailureKind,
    FragmentSummary,
    NamespaceFailure,
    Overview,
    StoreSummary,
)

KINDS = {EntityType.QUEUE: QUEUE, EntityType.TOPIC: TOPIC, EntityType.SUBSCRIPTION: SUBSCRIPTION}
PROBLEMS = {
    ExitCode.NOT_FOUND: FailureKind.NOT_FOUND,
    ExitCode.REFUSED: FailureKind.REFUSED,
    ExitCode.USAGE: FailureKind.REFUSED,
    ExitCode.OTHER: FailureKind.AWAY,
}


class RunningNamespace:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where

    @property
    def place(self) -> str:
        try:
            return find_target(self._where).address
        except CommandFailure:
            return ""

    def overview(self, queues_from: int, topics_from: int, limit: int) -> Overview:
        with self._client() as client:
            return Overview(
                _page(client, QUEUE, queues_from, limit),
                _page(client, TOPIC, topics_from, limit),
                _stores(client),
            )

    def entity(self, address: Address) -> Entity:
        kind = KINDS[address.kind]
        with self._client() as client:
            return _entity(kind, fetch(client, kind, address.name, address.topic), address.topic)

    def fragments(self, queue: str) -> Sequence[FragmentSummary]:
        path, what = locate(QUEUE, queue)
        with self._client() as client:
            found = _shown(lambda: ask(client, "GET", f"fragments/{path}", what))
        return [_fragment(view) for view in found]

    def subscriptions(self, topic: str, skip: int, limit: int) -> EntityPage:
        with self._client() as client:
            return _page(client, SUBSCRIPTION, skip, limit, topic)

    def create(self, address: Address, values: Mapping[str, str]) -> None:
        kind = KINDS[address.kind]
        with self._client() as client:
            path, what = locate(kind, address.name, address.topic)
            description = new_description(kind.description)
            set_properties(kind, description, _parsed(kind, values))
            client.create(path, description, what)

    def delete(self, address: Address) -> None:
        kind = KINDS[address.kind]
        with self._client() as client:
            path, what = locate(kind, address.name, address.topic)
            # A queue and a topic share one space of names: not the other one by mistake.
            fetch(client, kind, address.name, address.topic)
            client.delete(path, what)

    @contextmanager
    def _client(self) -> Iterator[ManagementClient]:
        try:
            with ManagementClient(find_target(self._where), says_target=False) as client:
                yield client
        except CommandFailure as failure:
            text = failure.text[:1].upper() + failure.text[1:]
            raise NamespaceFailure(text, PROBLEMS[failure.code]) from None


def _parsed(kind: Described, values: Mapping[str, str]) -> dict[str, str]:
    """Values as people write them, converted to what the management API takes."""
    known = {each.element: each for each in kind.properties}
    found = {}
    for element, text in values.items():
        try:
            found[element] = known[element].parse(text)
        except ValueError as error:
            raise CommandFailure(f"{label(element)}: {error}.", ExitCode.USAGE) from None
    return found


def _page(client: ManagementClient, kind: Described, skip: int, limit: int, topic: str = "") -> EntityPage:
    """A page of entities. One more than is shown is asked for: if it is there, there are more."""
    if topic:
        path, what = f"{locate(TOPIC, topic)[0]}/Subscriptions", f"topic '{topic}'"
    else:
        path, what = f"$Resources/{kind.plural}", f"the list of {kind.noun}s"
    entries = list(islice(client.list(path, what, skip, limit + 1), limit + 1))
    return EntityPage([_entity(kind, entry, topic) for entry in entries[:limit]], len(entries) > limit)


def _entity(kind: Described, entry: AtomEntry, topic: str = "") -> Entity:
    found: dict[str, Any] = as_json(kind, entry, topic)
    counts = found["countDetails"]
    dead, scheduled = counts["deadLetterMessageCount"], counts["scheduledMessageCount"]
    moving, failed = counts["transferMessageCount"], counts["transferDeadLetterMessageCount"]
    others = (found.get("messageCount") or 0) - dead - scheduled - moving - failed
    settings, runtime = details(kind, entry, topic)
    settings.pop("Name", None)
    settings.pop("Topic", None)
    return Entity(
        Address(EntityType(kind.noun), entry.name, topic),
        found["status"] or "",
        found["entityAvailabilityStatus"] != "Limited",
        bool(found.get("enablePartitioning")),
        bool(found.get("requiresSession")),
        bool(found.get("requiresDuplicateDetection")),
        max(0, others),
        dead,
        scheduled,
        size_text(found.get("sizeInBytes") or 0),
        found.get("subscriptionCount") or 0,
        settings,
        runtime,
        moving,
        failed,
    )


def _fragment(view: Mapping[str, Any]) -> FragmentSummary:
    return FragmentSummary(
        view["index"],
        view["store"],
        view["state"] == "open",
        view["reason"],
        view["active"] + view["deferred"],
        view["deadLetter"],
        view["scheduled"],
        size_text(view["size"]),
    )


def _stores(client: ManagementClient) -> list[StoreSummary]:
    views = _shown(lambda: ask(client, "GET", "stores", "the list of stores"))
    return [
        StoreSummary(view["name"], view["state"], view["reason"], view["fragments"], size_text(view["size"]))
        for view in views
    ]


def _shown(question: Callable[[], Any]) -> list[Any]:
    """The answer to a question. It is empty if the key does not allow it, or if the other side is no Busbar.

    The rest of the page is still true."""
    try:
        found = question()
    except CommandFailure as failure:
        if failure.code in (ExitCode.NOT_FOUND, ExitCode.REFUSED):
            return []
        raise
    return found if isinstance(found, list) else []
