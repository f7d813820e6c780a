"""Shared access rules (names, keys and rights), and the signatures made with their keys.

A token is `SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<rule>`. The signature is HMAC-SHA256, with
the unchanged text of the key, over the *encoded* resource exactly as it is in the token, a line feed and the expiry.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, quote_plus, unquote

SEND = "Send"
LISTEN = "Listen"
MANAGE = "Manage"

TOKEN_PREFIX = "SharedAccessSignature "


@dataclass(frozen=True, slots=True)
class SasRule:
    """A rule of the namespace: its keys (primary, secondary) and its rights. Manage includes Send and Listen."""

    name: str
    keys: tuple[str, ...]
    rights: frozenset[str]

    def grants(self) -> frozenset[str]:
        return frozenset((SEND, LISTEN, MANAGE)) if MANAGE in self.rights else self.rights

    def __repr__(self) -> str:
        return f"SasRule({self.name!r}, {sorted(self.rights)})"


def sign(resource: str, key_name: str, key: str, expires: int) -> str:
    """The token for `resource` (an address, `sb://host/path`) that expires at `expires`, seconds since 1970."""
    return sign_encoded(quote_plus(resource), key_name, key, expires)


def sign_encoded(encoded: str, key_name: str, key: str, expires: int) -> str:
    """The token for a resource that is percent-encoded already, in any way."""
    signature = quote(_signature(encoded, str(expires), key), safe="")
    return f"{TOKEN_PREFIX}sr={encoded}&sig={signature}&se={expires}&skn={quote(key_name, safe='')}"


def is_signed_with(fields: Mapping[str, str], key: str) -> bool:
    """Whether the fields of a token, as they are in it, have the signature of this key. Compares in constant time."""
    given = unquote(fields["sig"]).encode("utf-8", "replace")
    return hmac.compare_digest(_signature(fields["sr"], fields["se"], key), given)


def _signature(encoded: str, expires: str, key: str) -> bytes:
    digest = hmac.new(key.encode(), f"{encoded}\n{expires}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest)
