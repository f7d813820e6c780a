"""Writing XML: names are ours, text and attributes are everybody's and always escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from xml.sax.saxutils import escape, quoteattr

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

# What XML 1.0 cannot hold, not even escaped.
_UNPRINTABLE = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class XmlWriter:
    """Elements in the order in which they are written."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    @contextmanager
    def inside(self, name: str, attributes: dict[str, str] | None = None) -> Iterator[None]:
        """What is written in the `with` block is within the element."""
        self._parts.append(f"<{name}{_attributes(attributes)}>")
        yield
        self._parts.append(f"</{name}>")

    def element(self, name: str, text: str = "", attributes: dict[str, str] | None = None) -> None:
        start = f"<{name}{_attributes(attributes)}"
        # A carriage return as it is would be read as a line feed.
        self._parts.append(
            f"{start}>{escape(_printable(text), {chr(13): '&#13;'})}</{name}>" if text else f"{start}/>"
        )

    def document(self) -> bytes:
        return ('<?xml version="1.0" encoding="utf-8"?>' + "".join(self._parts)).encode()


def _attributes(attributes: dict[str, str] | None) -> str:
    return "".join(f" {name}={quoteattr(_printable(value))}" for name, value in (attributes or {}).items())


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("�", text)
