"""Reads and writes the XML of ATOM. It is read without DTDs, entities and anything external.

SDKs put the same names into namespaces in different ways: Python prefixes Atom and has Service Bus as the default,
JavaScript the other way round. They use different orders, and send elements back that only the broker sets. So an element is
found by its local name, in any order, and other elements are ignored. In answers, element names are constants; texts and
attributes may come from clients, and are always escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from xml.etree.ElementTree import Element, ParseError
from xml.sax.saxutils import escape, quoteattr

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from busbar.model.atom import INSTANCE, UNPRINTABLE, local_name
from busbar.model.errors import ArgumentError

_SPACE = " \t\r\n"


def read_entry(body: bytes) -> tuple[str, Element]:
    """The description in an ATOM entry and its name. Raises ArgumentError."""
    if not body.strip():
        raise ArgumentError("The request has no body; it must be an ATOM entry with a description.")
    try:
        root = fromstring(body, forbid_dtd=True, forbid_entities=True, forbid_external=True)
    except DefusedXmlException:
        raise ArgumentError(
            "The XML of the request has a document type or an entity declaration, which are not accepted."
        ) from None
    except (ParseError, ValueError, LookupError, UnicodeError) as error:
        raise ArgumentError(f"The body of the request is not well-formed XML: {error}.") from None
    if local_name(root) != "entry":
        raise ArgumentError(
            f"The body's outermost element is '{local_name(root)[:60]}'; it must be an ATOM 'entry'."
        )
    content = child(root, "content")
    if content is None or len(content) == 0:
        raise ArgumentError("The entry has no description in its 'content' element.")
    if len(content) > 1:
        raise ArgumentError(
            f"The entry's 'content' has {len(content)} elements; it must have one description."
        )
    return local_name(content[0]), content[0]


def child(element: Element, name: str) -> Element | None:
    """The first child of that name, unless it is nil."""
    found = next(children(element, name), None)
    if found is not None and found.get(f"{{{INSTANCE}}}nil", "").strip(_SPACE) in ("true", "1"):
        return None
    return found


def children(element: Element, name: str) -> Iterator[Element]:
    return (found for found in element if local_name(found) == name)


def text_of(element: Element, name: str) -> str | None:
    """The text of a child, without outer white space; None if it is missing or empty."""
    found = child(element, name)
    return None if found is None else (found.text or "").strip(_SPACE) or None


def exact_text_of(element: Element, name: str) -> str | None:
    """The text of a child unchanged, also if it is empty; None if the child is missing."""
    found = child(element, name)
    return None if found is None else found.text or ""


def type_of(element: Element) -> str:
    """The local name in its `xsi:type`, '' if it has none."""
    return element.get(f"{{{INSTANCE}}}type", "").strip(_SPACE).rpartition(":")[2]


class XmlWriter:
    """Elements in the order in which they are written."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    @contextmanager
    def inside(self, name: str, attributes: dict[str, str] | None = None) -> Iterator[None]:
        """Write an element; everything written in the `with` block is inside it."""
        self._parts.append(f"<{name}{_attributes(attributes)}>")
        yield
        self._parts.append(f"</{name}>")

    def element(self, name: str, text: str = "", attributes: dict[str, str] | None = None) -> None:
        start = f"<{name}{_attributes(attributes)}"
        # An unescaped carriage return would be read as a line feed.
        self._parts.append(
            f"{start}>{escape(_printable(text), {chr(13): '&#13;'})}</{name}>" if text else f"{start}/>"
        )

    def document(self) -> bytes:
        return ('<?xml version="1.0" encoding="utf-8"?>' + "".join(self._parts)).encode()


def _attributes(attributes: dict[str, str] | None) -> str:
    return "".join(f" {name}={quoteattr(_printable(value))}" for name, value in (attributes or {}).items())


def _printable(text: str) -> str:
    return UNPRINTABLE.sub("�", text)
