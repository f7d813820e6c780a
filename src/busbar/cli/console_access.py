"""The authorization rules of an entity and of the namespace, for the web console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from busbar.cli.auth_rule import AuthRuleVerbs, keys_shown
from busbar.cli.console_client import management, readable_time
from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.console.namespace import AccessRule, Address

LABELS = {
    "primaryKey": "Primary key",
    "secondaryKey": "Secondary key",
    "primaryConnectionString": "Connection string with the primary key",
    "secondaryConnectionString": "Connection string with the secondary key",
}


class RunningAccessRules:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where

    def list(self, owner: Address | None) -> Sequence[AccessRule]:
        return [_rule(view) for view in self._ask(owner, "GET", "")]

    def keys(self, owner: Address | None, name: str) -> AccessRule:
        return self._with_keys(owner, self._ask(owner, "GET", name, keys=True))

    def create(self, owner: Address | None, name: str, rights: Sequence[str]) -> None:
        self._ask(owner, "POST", name, {"rights": [*rights]})

    def renew(self, owner: Address | None, name: str, which: str) -> AccessRule:
        return self._with_keys(owner, self._ask(owner, "POST", name, {}, renew=which))

    def delete(self, owner: Address | None, name: str) -> None:
        self._ask(owner, "DELETE", name)

    def _ask(
        self,
        owner: Address | None,
        method: str,
        name: str,
        body: dict[str, Any] | None = None,
        *,
        keys: bool = False,
        renew: str = "",
    ) -> Any:
        verbs = AuthRuleVerbs(owner.kind if owner is not None else "namespace")
        with management(self._where) as client:
            return verbs.ask(client, method, _path(owner), name, body, keys=keys, renew=renew)

    def _with_keys(self, owner: Address | None, view: dict[str, Any]) -> AccessRule:
        shown = keys_shown(view, find_target(self._where), _path(owner))
        return _rule(view, {label: shown[name] for name, label in LABELS.items()})


def _path(owner: Address | None) -> str:
    return owner.path if owner is not None else ""


def _rule(view: Mapping[str, Any], keys: Mapping[str, str] | None = None) -> AccessRule:
    return AccessRule(view["name"], view["rights"], readable_time(view["updatedAt"]), keys or {})
