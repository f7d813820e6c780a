"""ATOM as the management API has it, from the client's side: an entry is a name and a description.

A description stays the XML element that came: an update sends back what it did not change, also elements that this version
does not have. Elements are found by their local name. They are written in the order that the service documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, ParseError, SubElement, register_namespace, tostring

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

# The description has the default namespace: types like `SqlFilter` in attributes are names of it.
register_namespace("", SERVICE_BUS)
register_namespace("i", INSTANCE)

TYPE = f"{{{INSTANCE}}}type"


class NotAtom(ValueError):
    """What came is not an answer of the management API."""


@dataclass(frozen=True, slots=True)
class AtomEntry:
    name: str
    description: Element

    @property
    def kind(self) -> str:
        """QueueDescription, TopicDescription, ..."""
        return local_name(self.description)


def local_name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def new_description(kind: str) -> Element:
    return Element(f"{{{SERVICE_BUS}}}{kind}")


def child(parent: Element, name: str) -> Element | None:
    return next((element for element in parent if local_name(element) == name), None)


def children(parent: Element, name: str) -> list[Element]:
    """The children of a child; none if it is not there."""
    found = child(parent, name)
    return [] if found is None else list(found)


def text_of(parent: Element, name: str) -> str | None:
    """The text of a child; None if it is not there or has nothing."""
    found = child(parent, name)
    return found.text if found is not None and found.text else None


def add(parent: Element, name: str, text: str | None = None) -> Element:
    element = SubElement(parent, f"{{{SERVICE_BUS}}}{name}")
    element.text = text
    return element


def set_text(description: Element, name: str, text: str, order: Sequence[str]) -> None:
    """Give a child this text, in its place by `order`; an empty text removes it."""
    remove(description, name)
    if not text:
        return
    later = set(order[order.index(name) + 1 :])
    place = next((i for i, other in enumerate(description) if local_name(other) in later), len(description))
    element = Element(f"{{{SERVICE_BUS}}}{name}")
    element.text = text
    description.insert(place, element)


def remove(description: Element, name: str) -> None:
    found = child(description, name)
    if found is not None:
        description.remove(found)


def write_entry(description: Element) -> bytes:
    inner = tostring(description, encoding="unicode")
    return (
        f'<?xml version="1.0" encoding="utf-8"?><entry xmlns="{ATOM}"><content type="application/xml">{inner}'
        "</content></entry>"
    ).encode()


def read_entry(body: bytes) -> AtomEntry | None:
    """The entry; None for a feed, by which the cloud answers that there is none."""
    root = _root(body)
    return _entry(root) if local_name(root) == "entry" else None


def read_feed(body: bytes) -> list[AtomEntry]:
    root = _root(body)
    if local_name(root) != "feed":
        raise NotAtom("it is not a list")
    return [_entry(element) for element in root if local_name(element) == "entry"]


def read_error(body: bytes) -> str:
    """The text of an error response, without its codes; empty if it has none."""
    try:
        detail = text_of(_root(body), "Detail") or ""
    except NotAtom:
        return ""
    if detail.startswith("SubCode="):
        detail = detail.partition(". ")[2]
    return " ".join(detail.partition("TrackingId:")[0].split())


def _entry(element: Element) -> AtomEntry:
    content = child(element, "content")
    if content is None or len(content) == 0:
        raise NotAtom("an entry has no content")
    return AtomEntry(text_of(element, "title") or "", content[0])


def _root(body: bytes) -> Element:
    try:
        root: Element = fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise NotAtom(f"it is not XML: {error}") from None
    return root
