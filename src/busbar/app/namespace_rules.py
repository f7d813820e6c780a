"""The authorization rules of the namespace: those of the configuration, and what operators made of them.

1. The catalogue has the rules that are in force. At the start those of the configuration come into it: the rule of the
   command line with its key, and the rules of the file.
2. A rule that operators have changed, renewed or deleted stays so, as long as the configuration has the same for it as
   before. If the configuration has another key or other rights, these are in force, since the operator has set them later.
3. A rule that was in the configuration and is not any more is removed. Rules that were created otherwise stay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from busbar.catalogue.planning import ChangePlanner
from busbar.model.entities import AuthorizationRule, NamespaceDescription, Right
from busbar.model.errors import EntityNotFound
from busbar.model.names import NAMESPACE_ENTRY
from busbar.model.sas import SasRule


def ensure_rules(plan: ChangePlanner, configured: Sequence[SasRule]) -> None:
    """Bring the rules of the configuration into the catalogue."""
    try:
        before = plan.find(NAMESPACE_ENTRY).description
    except EntityNotFound:
        plan.create(NAMESPACE_ENTRY, merged(NamespaceDescription(), configured))
        return
    assert isinstance(before, NamespaceDescription)
    after = merged(before, configured)
    if after != before:
        plan.update(NAMESPACE_ENTRY, after)


def merged(before: NamespaceDescription, configured: Sequence[SasRule]) -> NamespaceDescription:
    """The description of the namespace with this configuration."""
    known = dict(before.configured)
    there = {rule.name: rule for rule in before.authorization_rules}
    rules: list[AuthorizationRule] = []
    for rule in configured:
        if known.get(rule.name) != _fingerprint(rule):
            rules.append(_as_entity_rule(rule))
        elif rule.name in there:
            rules.append(there[rule.name])
    names = {rule.name for rule in configured}
    rules += [
        rule for rule in before.authorization_rules if rule.name not in names and rule.name not in known
    ]
    return NamespaceDescription(tuple(rules), tuple((rule.name, _fingerprint(rule)) for rule in configured))


def managing_rule(rules: Sequence[AuthorizationRule], preferred: str) -> AuthorizationRule | None:
    """The rule with which commands of this machine manage the namespace."""
    managing = [rule for rule in rules if Right.MANAGE in rule.rights]
    return next((rule for rule in managing if rule.name == preferred), managing[0] if managing else None)


def _as_entity_rule(rule: SasRule) -> AuthorizationRule:
    primary, secondary = (*rule.keys, "", "")[:2]
    return AuthorizationRule(rule.name, frozenset(Right(right) for right in rule.rights), primary, secondary)


def _fingerprint(rule: SasRule) -> str:
    text = json.dumps([list(rule.keys), sorted(rule.rights)])
    return hashlib.sha256(text.encode()).hexdigest()
