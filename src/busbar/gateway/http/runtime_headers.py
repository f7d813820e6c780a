"""Custom properties of a message as HTTP headers, one each.

    text        "High"      quoted, as a JSON string: any text fits into a header, in ASCII
    number      5, 0.5      bare: an int (a long if necessary) or a double
    boolean     true
    date        "Sun, 06 Nov 1994 08:49:37 GMT"     quoted like a text; to the second

A bare value that is not a number is a text. A header with a meaning in HTTP or for proxies is not a property. It is not read
from a request. It is not written into an answer, where it could pass for the broker's own. If the name of a property is not
an HTTP token, or its value is none of the above (for example a map), it is left out of an answer. Over AMQP it is there.
"""

from __future__ import annotations

import base64
import json
import math
import re
import uuid
from collections.abc import Iterable, Mapping

from busbar.amqp.types import Int, Timestamp
from busbar.gateway.http.runtime_dates import date_text, is_date, read_rfc_1123
from busbar.model.errors import ArgumentError

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_MAX_DIGITS = 400  # a double has at most so many digits before its point

_RESERVED_NAMES = """
    accept accept-charset accept-encoding accept-language accept-patch accept-post accept-ranges age
    allow alt-svc authorization brokerproperties cache-control clear-site-data connection cookie cookie2
    correlation-context date dnt early-data etag expect expires forwarded from host http2-settings
    keep-alive last-modified link location max-forwards mime-version nel origin pragma
    proxy-authenticate proxy-authorization proxy-connection public-key-pins range referer
    referrer-policy refresh report-to request-id retry-after server server-timing
    servicebussupplementaryauthorization servicebusdlqsupplementaryauthorization set-cookie set-cookie2
    strict-transport-security te timing-allow-origin traceparent tracestate trailer transfer-encoding
    upgrade upgrade-insecure-requests user-agent vary via warning www-authenticate
    x-content-type-options x-frame-options x-real-ip x-request-id x-xss-protection
    x-http-method-override
"""
_RESERVED = frozenset(_RESERVED_NAMES.split())
_RESERVED_PREFIXES = ("access-control-", "content-", "cross-origin-", "if-", "sec-", "x-forwarded-", "x-ms-")


def is_property_name(name: str) -> bool:
    lowered = name.lower()
    return (
        _TOKEN.fullmatch(name) is not None
        and lowered not in _RESERVED
        and not lowered.startswith(_RESERVED_PREFIXES)
    )


def properties_of(headers: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The properties in a request's headers. Names keep their case; of a repeated name the last value counts."""
    names: dict[str, str] = {}
    found: dict[str, object] = {}
    for name, value in headers:
        if is_property_name(name):
            known = names.setdefault(name.lower(), name)
            found[known] = read_property(value)
    return found


def read_property(value: str) -> object:
    """The AMQP value of a header's text."""
    value = _decoded(value.strip())
    if len(value) >= 2 and value[0] == value[-1] == '"':
        text = _unquoted(value)
        time = read_rfc_1123(text)
        return text if time is None else Timestamp(time)
    lowered = value.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    number = _NUMBER.fullmatch(value) if len(value) <= _MAX_DIGITS else None
    if number is None:
        return value
    if number[1] is None and number[2] is None:
        return integer(int(value))
    real = float(value)
    return real if math.isfinite(real) else value


def integer(value: int) -> object:
    """An int where it fits, as .NET reads JSON; beyond 64 bits a double. Raises ArgumentError beyond that."""
    if -(1 << 31) <= value < 1 << 31:
        return Int(value)
    if -(1 << 63) <= value < 1 << 63:
        return value
    try:
        return float(value)
    except OverflowError:
        raise ArgumentError("A number has more digits than a double can have.") from None


def refuse_undecodable(headers: Iterable[tuple[str, str]]) -> None:
    """Raise ArgumentError if a header that is not a property is not UTF-8. (In other properties each byte is a
    character.)"""
    for name, value in headers:
        if not (value.isascii() or is_property_name(name) or name.lower().endswith("authorization")):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise ArgumentError(f"The header {name!r:.80} is not UTF-8.") from None


def headers_of(properties: Mapping[str, object]) -> dict[str, str]:
    """The headers for these properties."""
    headers: dict[str, str] = {}
    for name, value in properties.items():
        if is_property_name(name):
            text = property_text(value)
            if text is not None:
                headers[name] = text
    return headers


def property_text(value: object) -> str | None:
    """A property as a header's text; None if it cannot be one."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        return f'"{date_text(value)}"' if is_date(value) else str(int(value))
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else f'"{float(value)}"'
    if isinstance(value, str):
        return json.dumps(str(value))
    if isinstance(value, uuid.UUID):
        return f'"{value}"'
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    return None


def _unquoted(value: str) -> str:
    """The value inside the quotes: a JSON string, or the unchanged text if that is broken."""
    try:
        text = json.loads(value)
    except ValueError:
        return value[1:-1]
    return _decoded(text) if isinstance(text, str) else value[1:-1]


def _decoded(text: str) -> str:
    """The decoded header. If it is not UTF-8, it is read byte by byte."""
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        pass
    try:
        return text.encode("utf-8", "surrogateescape").decode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
