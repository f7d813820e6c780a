"""What both sides of the management API know of its XML: the namespaces, and the characters that XML has."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

UNPRINTABLE = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that XML 1.0 cannot have, not even escaped."""


def local_name(element: Element) -> str:
    """The name without its namespace. SDKs put the same names into namespaces in different ways."""
    return element.tag.rpartition("}")[2]
