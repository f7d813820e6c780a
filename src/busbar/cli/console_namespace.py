"""The namespace of the web console: a running Busbar, found and asked as all commands do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from busbar.cli import values
from busbar.cli.console_access import RunningAccessRules
from busbar.cli.console_client import listed, management, readable_time
from busbar.cli.console_connections import RunningConnections
from busbar.cli.console_diagnosis import RunningDiagnosis
from busbar.cli.console_messages import RunningMessages
from busbar.cli.console_operation import RunningOperation
from busbar.cli.console_rules import RunningRules
from busbar.cli.console_sessions import RunningSessions
from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.entity_commands import change_entity, fetch, locate, set_properties
from busbar.cli.entity_kinds import QUEUE, SUBSCRIPTION, TOPIC
from busbar.cli.entity_kinds import EntityCommandKind as Described
from busbar.cli.entity_view import as_json, details
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.management_client import ManagementClient
from busbar.cli.output import label, size_text
from busbar.cli.stores import ask
from busbar.client.administration_xml import AtomContent, new_description, text_of
from busbar.console.namespace import Address, Entity, EntityPage, EntityType, FragmentSummary

_TRUTH = {"true": "yes", "false": "no"}
_TEXTS = frozenset(
    ("User metadata", "Forward to", "Forward dead lettered messages to", "Authorization rules")
)
"""What people have chosen: it is shown as it is, even if it looks like a number."""
_NAMES = {"Size in bytes": "Size"}
"""Labels that do not fit what is shown."""
KINDS = {EntityType.QUEUE: QUEUE, EntityType.TOPIC: TOPIC, EntityType.SUBSCRIPTION: SUBSCRIPTION}


class RunningNamespace:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where
        self.rules = RunningRules(where)
        self.diagnosis = RunningDiagnosis(where)
        self.operation = RunningOperation(where)
        self.access_rules = RunningAccessRules(where)
        self.connections = RunningConnections(where)
        self.messages = RunningMessages(where)
        self.sessions = RunningSessions(where)

    @property
    def place(self) -> str:
        try:
            return find_target(self._where).url
        except CommandFailure:
            return ""

    def list(
        self, kind: EntityType, skip: int, limit: int, *, topic: str = "", search: str = ""
    ) -> EntityPage:
        with management(self._where) as client:
            return _page(client, KINDS[kind], skip, limit, topic, search)

    def entity(self, address: Address) -> Entity:
        kind = KINDS[address.kind]
        with management(self._where) as client:
            return _entity(kind, fetch(client, kind, address.name, address.topic), address.topic)

    def fragments(self, address: Address) -> Sequence[FragmentSummary]:
        path, what = locate(KINDS[address.kind], address.name, address.topic)
        with management(self._where) as client:
            found = listed(lambda: ask(client, "GET", f"fragments/{path}", what))
        return [_fragment(view) for view in found]

    def create(self, address: Address, given: Mapping[str, str]) -> None:
        kind = KINDS[address.kind]
        with management(self._where) as client:
            path, what = locate(kind, address.name, address.topic)
            description = new_description(kind.description)
            set_properties(kind, description, _parsed(kind, given))
            client.create(path, description, what)

    def update(self, address: Address, given: Mapping[str, str]) -> None:
        kind = KINDS[address.kind]
        with management(self._where) as client:
            change_entity(client, kind, address.name, address.topic, _parsed(kind, given))

    def delete(self, address: Address) -> None:
        kind = KINDS[address.kind]
        with management(self._where) as client:
            path, what = locate(kind, address.name, address.topic)
            # A queue and a topic share one space of names: not the other one by mistake.
            fetch(client, kind, address.name, address.topic)
            client.delete(path, what)


def _parsed(kind: Described, given: Mapping[str, str]) -> dict[str, str]:
    """Values as people write them, converted to what the management API takes."""
    known = {each.element: each for each in kind.properties}
    found = {}
    for element, text in given.items():
        try:
            found[element] = known[element].parse(text)
        except ValueError as error:
            raise CommandFailure(f"{label(element)}: {error}.", ExitCode.USAGE) from None
    return found


def _page(
    client: ManagementClient, kind: Described, skip: int, limit: int, topic: str, search: str
) -> EntityPage:
    """A page of entities. One more than is shown is asked for: if it is there, there are more."""
    if topic:
        path, what = f"{locate(TOPIC, topic)[0]}/Subscriptions", f"topic '{topic}'"
    else:
        path, what = f"$Resources/{kind.plural}", f"the list of {kind.noun}s"
    entries = list(islice(client.list(path, what, skip, limit + 1, search), limit + 1))
    return EntityPage([_entity(kind, entry, topic) for entry in entries[:limit]], len(entries) > limit)


def _entity(kind: Described, entry: AtomContent, topic: str = "") -> Entity:
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
        {name: text if name in _TEXTS else readable(text) for name, text in settings.items()},
        {_NAMES.get(name, name): readable(text) for name, text in runtime.items()},
        moving,
        failed,
        {each.element: _typed(text_of(entry.description, each.element) or "") for each in kind.properties},
    )


def readable(text: str) -> str:
    """A value as people read it."""
    if text.isdecimal():
        return f"{int(text):,}"
    return _TRUTH.get(text) or readable_time(_typed(text))


def _typed(text: str) -> str:
    """A value as people would type it: durations are short."""
    if not text.startswith("P"):
        return text
    try:
        return values.short_duration(text)
    except ValueError:
        return text  # not a duration


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
