"""A description as a command shows it: the keys and types of JSON, and what of it goes into a table."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from busbar.cli.entity_kinds import BOOLEANS, COUNTS, INTEGERS, RUNTIME, EntityCommandKind, json_key
from busbar.cli.output import label, size_text
from busbar.cli.values import is_unlimited
from busbar.client.administration_xml import AtomContent, children, text_of
from busbar.model.atom import local_name

Json = dict[str, object]

COLUMNS = {
    "queue": ("Name", "Status", "Messages", "Dead letters", "Size"),
    "topic": ("Name", "Status", "Subscriptions", "Scheduled", "Size"),
    "subscription": ("Name", "Status", "Messages", "Dead letters"),
}


def as_json(kind: EntityCommandKind, entry: AtomContent, topic: str = "") -> Json:
    """Every property of the kind, null where there is none: scripts can rely on the keys. No keys of access rules."""
    found: Json = {"name": entry.name}
    if topic:
        found["topic"] = topic
    for element in kind.elements:
        if element == "CountDetails":
            found["countDetails"] = _counts(entry.description)
        elif element == "AuthorizationRules":
            found["authorizationRules"] = [
                {"keyName": text_of(rule, "KeyName"), "rights": _rights(rule)}
                for rule in children(entry.description, element)
            ]
        elif element != "DefaultRuleDescription":
            found[json_key(element)] = _value(element, text_of(entry.description, element))
    return found


def is_limited(entry: AtomContent) -> bool:
    """Whether a store with a part of the entity is unavailable, so that what it holds is not counted."""
    return text_of(entry.description, "EntityAvailabilityStatus") == "Limited"


def row(kind: EntityCommandKind, entry: AtomContent) -> tuple[str, ...]:
    """The row of an entity in a list. If it is limited, the numbers are the least that it holds: "2+"."""
    described = entry.description
    counts = _counts(described)
    limited = is_limited(entry)
    least = "+" if limited else ""
    size = size_text(_number(described, "SizeInBytes")) + least
    dead = counts["deadLetterMessageCount"]
    status = text_of(described, "Status") or ""
    if limited:
        status = "Limited" if status == "Active" else f"{status}, Limited"
    if kind.noun == "topic":
        subscriptions = _number(described, "SubscriptionCount")
        return entry.name, status, str(subscriptions), f"{counts['scheduledMessageCount']}{least}", size
    # Dead letters have their own column.
    messages = _number(described, "MessageCount") - dead - counts["transferDeadLetterMessageCount"]
    shown = (entry.name, status, f"{max(0, messages)}{least}", f"{dead}{least}")
    return (*shown, size) if kind.noun == "queue" else shown


def details(kind: EntityCommandKind, entry: AtomContent, topic: str = "") -> list[dict[str, str]]:
    """The sections that `show` prints: the settings, then the values that the service alone sets."""
    settings, runtime = {"Name": entry.name}, {}
    if topic:
        settings["Topic"] = topic
    for element in kind.elements:
        text = text_of(entry.description, element)
        if element == "CountDetails":
            for name, number in _counts(entry.description).items():
                runtime[label(name)] = str(number)
        elif element == "AuthorizationRules":
            names = [text_of(rule, "KeyName") or "" for rule in children(entry.description, element)]
            if names:
                settings["Authorization rules"] = ", ".join(names)
        elif text is not None:
            section = runtime if element in RUNTIME else settings
            section[label(json_key(element))] = _shown(element, text)
    return [settings, runtime]


def _counts(description: Element) -> dict[str, int]:
    given = {local_name(item): item.text or "" for item in children(description, "CountDetails")}
    return {json_key(name): _integer(given.get(name)) for name in COUNTS}


def _rights(rule: Element) -> list[str]:
    return [item.text or "" for item in children(rule, "Rights")]


def _value(element: str, text: str | None) -> object:
    if text is None:
        return None
    if element in INTEGERS:
        return _integer(text)
    if element in BOOLEANS:
        return text.lower() == "true"
    return text


def _shown(element: str, text: str) -> str:
    if element == "SizeInBytes":
        return size_text(_integer(text))
    if text.startswith("0001-01-01"):
        return "never"
    if text.startswith("P") and is_unlimited(text):
        return "unlimited"
    return text


def _number(description: Element, element: str) -> int:
    return _integer(text_of(description, element))


def _integer(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
