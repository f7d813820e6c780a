"""ATOM, as the management API has it: an entry has a name, and the description of an entity.

1. Elements are found by their local name. A response with a document type is refused, so that it cannot define entities.
2. A description that was read can be changed and sent back. Elements that this version does not know stay in it.
3. A written description has the default namespace: types like `SqlFilter` in attributes are names of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import Element, ParseError, SubElement, fromstring, tostring

from busbar.client.errors import BusbarClientError
from busbar.model.atom import ATOM, INSTANCE, SERVICE_BUS, UNPRINTABLE, local_name
from busbar.model.duration import UNLIMITED, UNLIMITED_DAYS

TYPE = f"{{{INSTANCE}}}type"
"""The attribute with the type of a filter, an action, a value or an authorization rule."""

_DEFAULT = f"{{{SERVICE_BUS}}}"
_FRACTION = re.compile(r"(\.\d{1,6})\d*")
_SUB_CODE = re.compile(r"SubCode=(\d+)\. ")


class NotAtomReply(BusbarClientError):
    """The response is not that of a management API."""


@dataclass(frozen=True, slots=True)
class AtomContent:
    """An entity in a response."""

    name: str
    description: Element

    @property
    def kind(self) -> str:
        """QueueDescription, TopicDescription, ..."""
        return local_name(self.description)


# Elements


def child(parent: Element, name: str) -> Element | None:
    return next((element for element in parent if local_name(element) == name), None)


def children(parent: Element, name: str) -> list[Element]:
    """The children of a child; none if it is absent."""
    found = child(parent, name)
    return [] if found is None else list(found)


def text_of(parent: Element, name: str) -> str | None:
    """The text of a child; None if it is absent or empty."""
    found = child(parent, name)
    return found.text if found is not None and found.text else None


def add(parent: Element, name: str, text: str | None = None) -> Element:
    """Add a child with this text. Raises ValueError for characters that XML cannot have."""
    _check_text(name, text)
    element = SubElement(parent, f"{_DEFAULT}{name}")
    element.text = text
    return element


def set_text(description: Element, name: str, text: str, order: Sequence[str]) -> None:
    """Give a child this text, in its place by `order`; an empty text removes it. Raises ValueError as `add` does."""
    _check_text(name, text)
    remove(description, name)
    if not text:
        return
    later = set(order[order.index(name) + 1 :])
    place = next((i for i, other in enumerate(description) if local_name(other) in later), len(description))
    element = Element(f"{_DEFAULT}{name}")
    element.text = text
    description.insert(place, element)


def remove(description: Element, name: str) -> None:
    found = child(description, name)
    if found is not None:
        description.remove(found)


def type_of(element: Element) -> str:
    """The type in its attribute, without a prefix; empty if it has none."""
    return element.get(TYPE, "").rpartition(":")[2]


def new_description(kind: str) -> Element:
    return Element(f"{_DEFAULT}{kind}")


def write_entry(description: Element) -> bytes:
    written = _without_prefixes(description)
    written.set("xmlns", SERVICE_BUS)
    written.set("xmlns:i", INSTANCE)
    inner = tostring(written, encoding="unicode")
    return (
        f'<?xml version="1.0" encoding="utf-8"?><entry xmlns="{ATOM}"><content type="application/xml">{inner}'
        "</content></entry>"
    ).encode()


def read_entry(body: bytes) -> AtomContent | None:
    """The entry in a response; None for a feed, by which the cloud answers that there is none. Raises NotAtomReply."""
    root = _root(body)
    return _content(root) if local_name(root) == "entry" else None


def read_feed(body: bytes) -> list[AtomContent]:
    """The entries of a page. Raises NotAtomReply."""
    root = _root(body)
    if local_name(root) != "feed":
        raise NotAtomReply("The response is not a list of entities.")
    return [_content(element) for element in root if local_name(element) == "entry"]


def read_error(body: bytes) -> tuple[int, str]:
    """The sub-code of an error response (0 for none) and its text, without the tracking id."""
    try:
        detail = text_of(_root(body), "Detail") or ""
    except NotAtomReply:
        return 0, ""
    code = _SUB_CODE.match(detail)
    text = detail[code.end() :] if code else detail
    return int(code[1]) if code else 0, " ".join(text.partition("TrackingId:")[0].split())


def _check_text(name: str, text: str | None) -> None:
    if text is not None and (found := UNPRINTABLE.search(text)):
        raise ValueError(f"{name} has the character {found[0]!r}, which XML cannot have")


def _without_prefixes(element: Element) -> Element:
    """A copy with the names as they are written. ElementTree alone would write prefixes of its own, such as ns0."""
    written = Element(
        element.tag.removeprefix(_DEFAULT),
        {name.replace(f"{{{INSTANCE}}}", "i:"): value for name, value in element.attrib.items()},
    )
    written.text = element.text
    written.extend(map(_without_prefixes, element))
    return written


def _root(body: bytes) -> Element:
    try:
        text = body.decode("utf-8-sig")
        if "<!DOCTYPE" in text:
            raise NotAtomReply("The response has a document type, which no management API sends.")
        return fromstring(text)
    except (ParseError, UnicodeDecodeError) as error:
        raise NotAtomReply(f"The response is not that of a management API: {error}.") from None


def _content(entry: Element) -> AtomContent:
    content = child(entry, "content")
    if content is None or len(content) == 0:
        raise NotAtomReply("An entry of the response has no description.")
    return AtomContent(text_of(entry, "title") or "", content[0])


# Values


def read_time(text: str | None) -> datetime | None:
    """A time; None if the event has not happened. Raises NotAtomReply."""
    if text is None or text.startswith("0001-"):
        return None
    try:
        found = datetime.fromisoformat(_FRACTION.sub(r"\1", text).replace("Z", "+00:00"))
    except ValueError:
        raise NotAtomReply(f"The time {text!r} of the response cannot be read.") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def write_span(value: timedelta) -> str:
    """A duration in ISO 8601, exact to the microsecond."""
    if value.days >= UNLIMITED_DAYS:
        return UNLIMITED
    sign, value = ("-", -value) if value < timedelta() else ("", value)
    date = f"{value.days}D" if value.days else ""
    hours, rest = divmod(value.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if seconds or value.microseconds or not (date or time):
        fraction = f".{value.microseconds:06d}".rstrip("0") if value.microseconds else ""
        time += f"{seconds}{fraction}S"
    return f"{sign}P{date}" + (f"T{time}" if time else "")
