"""Parses connection strings of Azure Service Bus, and creates tokens with their keys.

1. Messaging uses TLS, unless there is `UseDevelopmentEmulator=true` or the address starts with `amqp://`. The default port
   is 5671 with TLS, and 5672 without.
2. Management uses TLS likewise, or not if the address starts with `http://`. The default port is 443 with TLS, and without
   5300, where the vendor's emulator has it.
3. A key signs a token for each entity, which is put to `$cbs`. A ready-made signature is put as it is.
4. Neither repr nor errors show keys or tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from busbar.model.sas import sign

_ENDPOINT = re.compile(
    r"(?:(?P<scheme>[a-z]+)://)?(?P<host>\[[0-9a-f:.]+\]|[^\[\]:/@?#\s]+)(?::(?P<port>\d{1,5}))?/?",
    re.IGNORECASE | re.ASCII,
)
AMQP_SCHEMES = ("sb", "amqp", "amqps")
HTTPS_PORT = 443
EMULATOR_HTTP_PORT = 5300


@dataclass(frozen=True, slots=True)
class ConnectionStringParts:
    """A connection string as it was written, before a protocol adds its default port and its rule for TLS."""

    scheme: str
    """In lower case; sb where none was written."""
    host: str
    """Without brackets."""
    port: int | None
    emulator: bool
    """Whether it has UseDevelopmentEmulator=true."""
    key_name: str
    key: str = field(repr=False)
    token: str = field(repr=False)
    """A ready-made signature, instead of name and key."""
    entity_path: str
    """The entity that the key is limited to; empty for the whole namespace."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a namespace, and the credentials for it."""

    host: str
    """Without brackets."""
    port: int
    tls: bool
    key_name: str = ""
    key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """A ready-made signature, instead of name and key."""
    entity_path: str = ""
    """The entity that the key is limited to; empty for the whole namespace."""

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def resource(self, path: str) -> str:
        """The address of an entity, as tokens name it."""
        return f"sb://{self.authority}/{path}"

    def token_for(self, path: str, expires: int) -> str:
        """A token for an entity, until a time in seconds since 1970."""
        if self.token:
            return self.token
        return sign(self.resource(path), self.key_name, self.key, expires)


@dataclass(frozen=True, slots=True)
class ManagementAddress(Endpoint):
    """The HTTP address of a namespace, and the credentials for it."""

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    def resource(self, path: str) -> str:
        return f"{self.url}/{path}"


def parse_connection_string(text: str) -> Endpoint:
    """The AMQP endpoint. Raises ValueError, which quotes no value but a port: the others may be keys."""
    parts = split_connection_string(text, AMQP_SCHEMES)
    tls = parts.scheme == "amqps" or not (parts.emulator or parts.scheme == "amqp")
    return Endpoint(
        parts.host,
        parts.port or (5671 if tls else 5672),
        tls,
        parts.key_name,
        parts.key,
        parts.token,
        parts.entity_path,
    )


def management_address(text: str) -> ManagementAddress:
    """The address of the management API. Raises ValueError as above."""
    parts = split_connection_string(text, (*AMQP_SCHEMES, "http", "https"))
    tls = parts.scheme in ("https", "amqps") or not (parts.emulator or parts.scheme in ("http", "amqp"))
    return ManagementAddress(
        parts.host,
        parts.port or (HTTPS_PORT if tls else EMULATOR_HTTP_PORT),
        tls,
        parts.key_name,
        parts.key,
        parts.token,
        parts.entity_path,
    )


def split_connection_string(text: str, schemes: Sequence[str]) -> ConnectionStringParts:
    """Split a connection string, for a protocol whose addresses have one of these schemes. Raises ValueError as above."""
    parts: dict[str, str] = {}
    for part in text.strip().split(";"):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(
                "a part without '='; a connection string looks like "
                "Endpoint=sb://HOST:PORT;SharedAccessKeyName=NAME;SharedAccessKey=KEY"
            )
        parts[name.strip().lower()] = value.strip()
    address = parts.get("endpoint", "")
    if not address:
        raise ValueError("the connection string has no Endpoint=sb://HOST:PORT part")
    key_name, key = parts.get("sharedaccesskeyname", ""), parts.get("sharedaccesskey", "")
    token = parts.get("sharedaccesssignature", "")
    if not (key_name and key) and not token:
        raise ValueError(
            "the connection string needs SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature"
        )
    match = _ENDPOINT.fullmatch(address)
    scheme = (match["scheme"] or "sb").lower() if match else ""
    if match is None or scheme not in schemes:
        raise ValueError("the Endpoint of the connection string is not an address like sb://localhost:5672")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 1 <= port <= 65535:
        raise ValueError(f"{port} is not a port; 1 to 65535 are")
    return ConnectionStringParts(
        scheme,
        match["host"].strip("[]"),
        port,
        parts.get("usedevelopmentemulator", "").lower() == "true",
        key_name,
        key,
        token,
        parts.get("entitypath", "").strip("/"),
    )
