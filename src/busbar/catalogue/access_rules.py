"""The authorization rules of an entity or of the namespace after a change of one of them.

1. A new rule has a name that no other rule of the entity has. A rule that is changed, renewed or deleted is there.
2. A renewed key is a new random one, unless the change brings one. The other key of the rule stays, so that clients can go
   over to it before.
3. The namespace has at least one rule with Manage. Otherwise no client could manage it any more.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import replace

from busbar.model.access import PRIMARY, SECONDARY, AccessAction, AccessChange
from busbar.model.entities import AuthorizationRule, Right
from busbar.model.errors import (
    ArgumentError,
    AuthorizationRuleNotFound,
    EntityAlreadyExists,
    InvalidOperation,
)

Rules = tuple[AuthorizationRule, ...]
_RIGHTS = {right.value.lower(): right for right in Right}


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def changed_rules(what: str, rules: Rules, name: str, change: AccessChange) -> Rules:
    """The rules after a change; `what` names their owner in errors. Raises BusbarError."""
    old = next((rule for rule in rules if rule.name == name), None)
    if change.action is AccessAction.CREATE:
        if old is not None:
            raise EntityAlreadyExists(f"{what} has an authorization rule '{name}' already.")
        rights = read_rights(name, change.rights)
        return (*rules, AuthorizationRule(name, rights, change.primary_key, change.secondary_key))
    if old is None:
        raise AuthorizationRuleNotFound(what, name)
    if change.action is AccessAction.DELETE:
        return tuple(rule for rule in rules if rule is not old)
    new = _renewed(old, change) if change.action is AccessAction.RENEW else _updated(old, change)
    return tuple(new if rule is old else rule for rule in rules)


def _updated(old: AuthorizationRule, change: AccessChange) -> AuthorizationRule:
    rights = read_rights(old.name, change.rights) if change.rights else old.rights
    return replace(
        old,
        rights=rights,
        primary_key=change.primary_key or old.primary_key,
        secondary_key=change.secondary_key or old.secondary_key,
    )


def _renewed(old: AuthorizationRule, change: AccessChange) -> AuthorizationRule:
    if change.renewed == PRIMARY:
        return replace(old, primary_key=change.primary_key or new_key())
    if change.renewed == SECONDARY:
        return replace(old, secondary_key=change.secondary_key or new_key())
    raise ArgumentError(f"The key '{change.renewed}' cannot be renewed; there are {PRIMARY} and {SECONDARY}.")


def read_rights(rule: str, words: Sequence[str]) -> frozenset[Right]:
    """The rights that these words name, in any case. Manage brings the other two. Raises ArgumentError."""
    rights: set[Right] = set()
    for word in words:
        right = _RIGHTS.get(word.lower())
        if right is None:
            raise ArgumentError(
                f"The authorization rule '{rule}' has the right '{word[:40]}'; there are Send, Listen and Manage."
            )
        rights.add(right)
    return frozenset(Right) if Right.MANAGE in rights else frozenset(rights)


def check_manageable(rules: Rules) -> None:
    """Check that the namespace can be managed with one of these rules (rule 3). Raises InvalidOperation."""
    if not any(Right.MANAGE in rule.rights for rule in rules):
        raise InvalidOperation(
            "The namespace would have no authorization rule with Manage; nobody could manage it any more."
        )
