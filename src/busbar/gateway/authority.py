"""Verifies tokens and passwords against shared access rules, and creates the grants that follow from them.

The parts of a token (`model/sas.py` describes them) come in any order. Clients encode the resource in different ways, so
nothing is normalised before the signature is compared.

1. A rule is found by its name on the entity that the resource names, or on an entity above it, or on the namespace. A topic
   is above its subscriptions. An entity is above its sub-queues, its messages as HTTP names them, and its management. Either
   key of a rule is valid.
2. A grant is for the resource and everything below it. A grant from the rule of an entity covers only that entity: `a` and
   `a/b` may both be queues, and the rules of one do not apply to the other.
3. A resource without a scheme begins with a host only if that part cannot be an entity name: it has a port, is an IP
   address, `localhost` or the cloud's. `sr=orders` is the queue and never the whole namespace, whatever the client calls the
   host.
4. If a rule is deleted or changed, its grants end: `renewed` returns what is left of a grant. That holds for the rules of
   the namespace, too. Until the catalogue is known, they are those that this process was started with.
5. Keys and tokens never reach a log or an error text, and are compared in constant time.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote_plus

from busbar.gateway.address import plain_path
from busbar.gateway.refused_tokens import RefusedTokens
from busbar.model.entities import AuthorizationRule
from busbar.model.errors import Unauthorized
from busbar.model.names import is_host
from busbar.model.sas import TOKEN_PREFIX, SasRule, is_signed_with

_MAX_TOKEN = 4096
_MAX_PATH = 600
"""Longer than the path of any rule of any subscription."""

EntityRules = Callable[[str], Sequence[AuthorizationRule]]
"""The authorization rules of the entity with a path (any case), or of the namespace (''); none if there are none."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on a path and everything below it ('' is the whole namespace), until a time in ms (0: no end)."""

    path: str
    rights: frozenset[str]
    expires: int
    owner: str = ""
    """The entity with the rule of this grant ('': the namespace)."""
    rule: str = field(default="", compare=False)
    key: str = field(default="", compare=False, repr=False)
    """The key that proved it."""

    def covers(self, path: str) -> bool:
        if not self.path and not self.owner:
            return True
        lowered = path.lower()
        if self.path and lowered != self.path and not lowered.startswith(self.path + "/"):
            return False
        return not self.owner or is_part_of(lowered, self.owner)


def is_part_of(path: str, entity: str) -> bool:
    """Whether the path (both in lower case) is the entity's or that of something inside it."""
    if not path.startswith(entity):
        return False
    rest = path[len(entity) :]
    return not rest or rest.startswith("/$") or rest.split("/", 2)[1:2] in (["subscriptions"], ["messages"])


def _owners(path: str) -> Iterator[str]:
    """The paths whose rules count for a path: itself, and those above it that it may be a part of, innermost first."""
    end = len(path)
    while end > 0:
        if is_part_of(path, path[:end]):
            yield path[:end]
        end = path.rfind("/", 0, end)


class Authority:
    """Verifies tokens and passwords; `$cbs`, HTTP and SASL PLAIN share it."""

    def __init__(self, rules: list[SasRule], entity_rules: EntityRules = lambda path: ()) -> None:
        self._first_rules = {rule.name: rule for rule in rules}
        self._entity_rules = entity_rules
        self.refused = RefusedTokens()
        """Recent refusals, for the log. Callers add them, because they have the address of the client."""

    def verify_token(self, token: str, audience: str, now: int, grace: int = 0) -> Grant:
        """Return the grant of a token, or raise Unauthorized. `audience` is the address that it is put for ('' if there is
        none). The token is valid until `grace` ms after its end."""
        fields = _fields(token)
        path = _resource(unquote_plus(fields["sr"]))
        found = self._find(path, unquote_plus(fields["skn"]), lambda key: is_signed_with(fields, key))
        if found is None:
            raise Unauthorized("The token has an invalid signature.")
        expires = int(fields["se"]) * 1000
        if expires + grace <= now:
            raise Unauthorized(f"The token expired {(now - expires) // 1000} s ago.")
        grant = replace(found, path=path, expires=expires)
        if audience and not grant.covers(plain_path(audience)):
            raise Unauthorized(
                f"The token is signed for '{path}', which does not include the audience '{audience}'."
            )
        return grant

    def verify_password(self, name: str, key: str) -> Grant:
        """Return the grant of SASL PLAIN: a rule of the namespace, on all of it, for as long as the connection lives."""
        found = self._find("", name, lambda known: hmac.compare_digest(known.encode(), key.encode()))
        if found is None:
            raise Unauthorized("The user name or the password is wrong.")
        return found

    def renewed(self, grant: Grant) -> Grant | None:
        """The rest of a grant after its rule was changed or deleted."""
        for rule in self._find_rules(grant.owner, grant.rule):
            if any(hmac.compare_digest(key.encode(), grant.key.encode()) for key in rule.keys):
                return replace(grant, rights=rule.grants())
        return None

    def _find(self, path: str, name: str, proves: Callable[[str], bool]) -> Grant | None:
        """The innermost rule of that name with a key that proves it, and its rights."""
        found: Grant | None = None
        tried = 0
        for owner in (*_owners(path), ""):
            for rule in self._find_rules(owner, name):
                for key in filter(None, rule.keys):
                    tried += 1
                    if proves(key) and found is None:
                        found = Grant("", rule.grants(), 0, owner, rule.name, key)
        if not tried:
            proves("")  # a missing rule takes as long to detect as a wrong key
        return found

    def _find_rules(self, owner: str, name: str) -> list[SasRule]:
        # The Python SDK encodes a rule's name twice when it has special characters.
        names = (name, unquote_plus(name))
        rules = self._entity_rules(owner)
        if not owner and not rules:
            first = self._first_rules
            return [first[each] for each in dict.fromkeys(names) if each in first]
        return [
            SasRule(rule.name, (rule.primary_key, rule.secondary_key), frozenset(rule.rights))
            for rule in rules
            if rule.name in names
        ]


def _fields(token: str) -> dict[str, str]:
    if len(token) > _MAX_TOKEN:
        raise Unauthorized(f"The token has {len(token)} characters; at most {_MAX_TOKEN} are read.")
    if not token.startswith(TOKEN_PREFIX):
        raise Unauthorized(
            "The token is not a shared access signature ('SharedAccessSignature sr=...'); "
            "this namespace has no identity provider for other tokens."
        )
    if not token.isascii():
        raise Unauthorized("The shared access signature has characters that are not ASCII; encode them.")
    pairs = [
        part.partition("=")[::2] for part in token[len(TOKEN_PREFIX) :].strip().split("&") if "=" in part
    ]
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Unauthorized("The shared access signature has a field twice.")
    missing = [name for name in ("sr", "sig", "se", "skn") if not fields.get(name)]
    if missing:
        raise Unauthorized(f"The shared access signature lacks the field '{missing[0]}'.")
    if not (fields["se"].isascii() and fields["se"].isdigit() and len(fields["se"]) <= 12):
        raise Unauthorized("The shared access signature's expiry 'se' is not a number of seconds since 1970.")
    return fields


def _resource(resource: str) -> str:
    """The path that a token is signed for, in lower case. JS and .NET administration clients sign the whole URL of
    a request."""
    resource = resource.partition("?")[0]
    if "://" not in resource and is_host(resource.split("/", 1)[0]):
        resource = f"sb://{resource}"
    path = plain_path(resource).lower()
    if len(path) > _MAX_PATH:
        raise Unauthorized(f"The token is signed for a path of {len(path)} characters, which nothing has.")
    return path
