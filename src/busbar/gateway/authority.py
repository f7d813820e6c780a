"""Who may do what: shared access rules, the tokens signed with their keys, and the grants a connection has collected.

A token is `SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<rule>`, its parts in any order. The
signature is HMAC-SHA256, with the key's text as it stands, over the *encoded* resource exactly as it is in the token,
a line feed and the expiry: clients encode in different ways, so nothing may be normalised before the comparison.
Keys and tokens never reach a log or an error text.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import unquote, unquote_plus

from busbar.gateway.address import plain_path
from busbar.model.errors import Unauthorized

SEND = "Send"
LISTEN = "Listen"
MANAGE = "Manage"

_PREFIX = "SharedAccessSignature "
_MAX_TOKEN = 4096


@dataclass(frozen=True, slots=True)
class SasRule:
    """A named rule: its keys (primary, secondary) and its rights. Manage includes Send and Listen."""

    name: str
    keys: tuple[str, ...]
    rights: frozenset[str]

    def grants(self) -> frozenset[str]:
        return frozenset((SEND, LISTEN, MANAGE)) if MANAGE in self.rights else self.rights

    def __repr__(self) -> str:
        return f"SasRule({self.name!r}, {sorted(self.rights)})"


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on a path and everything below it ('' is the whole namespace), until a time in ms (0: no end)."""

    path: str
    rights: frozenset[str]
    expires: int

    def covers(self, path: str) -> bool:
        lowered = path.lower()
        return not self.path or lowered == self.path or lowered.startswith(self.path + "/")


class Authority:
    """Decides on tokens and on passwords; `$cbs` and SASL PLAIN share the decision."""

    def __init__(self, rules: list[SasRule]) -> None:
        self._rules = {rule.name: rule for rule in rules}

    def verify_token(self, token: str, audience: str, now: int) -> Grant:
        """The grant that a put-token gives, or Unauthorized."""
        if len(token) > _MAX_TOKEN:
            raise Unauthorized(f"The token has {len(token)} characters; at most {_MAX_TOKEN} are read.")
        if not token.startswith(_PREFIX):
            raise Unauthorized(
                "The token is not a shared access signature ('SharedAccessSignature sr=...'); "
                "this namespace has no identity provider for other tokens."
            )
        fields = dict(part.split("=", 1) for part in token[len(_PREFIX) :].strip().split("&") if "=" in part)
        missing = [name for name in ("sr", "sig", "se", "skn") if not fields.get(name)]
        if missing:
            raise Unauthorized(f"The shared access signature lacks the field '{missing[0]}'.")
        if not (fields["se"].isascii() and fields["se"].isdigit() and len(fields["se"]) <= 12):
            raise Unauthorized(
                "The shared access signature's expiry 'se' is not a number of seconds since 1970."
            )
        expires = int(fields["se"]) * 1000
        rule = self._rule(unquote_plus(fields["skn"]))
        signed = f"{fields['sr']}\n{fields['se']}".encode()
        given = unquote(fields["sig"]).encode("utf-8", "replace")
        matches = False
        for key in rule.keys if rule else ("",):
            expected = base64.b64encode(hmac.new(key.encode(), signed, hashlib.sha256).digest())
            matches |= hmac.compare_digest(expected, given)
        if rule is None or not matches:
            raise Unauthorized("The token has an invalid signature.")
        if expires <= now:
            raise Unauthorized(f"The token expired {(now - expires) // 1000} s ago.")
        # The resource may be signed with a bare host, with a scheme, or as the whole URL of a request (JS and .NET
        # administration clients); only its path counts here.
        resource = unquote_plus(fields["sr"]).partition("?")[0]
        path = plain_path(resource if "://" in resource else f"sb://{resource}").lower()
        grant = Grant(path, rule.grants(), expires)
        if audience and not grant.covers(plain_path(audience)):
            raise Unauthorized(
                f"The token is signed for '{path}' and cannot be used for the audience '{audience}'."
            )
        return grant

    def verify_password(self, name: str, key: str) -> Grant:
        """The grant of SASL PLAIN: the rule's rights on the whole namespace for as long as the connection lives."""
        rule = self._rule(name)
        matches = False
        for known in rule.keys if rule else ("",):
            matches |= hmac.compare_digest(known.encode(), key.encode())
        if rule is None or not matches:
            raise Unauthorized("The user name or the password is wrong.")
        return Grant("", rule.grants(), 0)

    def _rule(self, name: str) -> SasRule | None:
        # The Python SDK encodes a rule's name twice when it has special characters.
        return self._rules.get(name) or self._rules.get(unquote_plus(name))
