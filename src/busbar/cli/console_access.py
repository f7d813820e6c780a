"""The authorization rules of an entity, for the web console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from busbar.cli.atom_xml import children, text_of
from busbar.cli.console_client import management
from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.entity_commands import fetch
from busbar.cli.entity_kinds import QUEUE, TOPIC
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.console.namespace import AccessRule, Address, EntityType


class RunningAccessRules:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where

    def list(self, address: Address) -> Sequence[AccessRule]:
        return [_rule(element) for element in self._elements(address)]

    def keys(self, address: Address, name: str) -> AccessRule:
        with management(self._where):
            for element in self._elements(address):
                if text_of(element, "KeyName") == name:
                    return self._with_keys(address, element)
            raise CommandFailure(f"{address.kind} '{address.name}' has no rule '{name}'.", ExitCode.NOT_FOUND)

    def _elements(self, address: Address) -> Iterator[Element]:
        kind = QUEUE if address.kind is EntityType.QUEUE else TOPIC
        with management(self._where) as client:
            description = fetch(client, kind, address.name).description
        yield from children(description, "AuthorizationRules")

    def _with_keys(self, address: Address, element: Element) -> AccessRule:
        rule, target = _rule(element), find_target(self._where)
        key = text_of(element, "PrimaryKey") or ""
        plain = "" if target.tls else ";UseDevelopmentEmulator=true"
        connection = (
            f"Endpoint=sb://{target.authority}/;SharedAccessKeyName={rule.name};SharedAccessKey={key};"
            f"EntityPath={address.path}{plain}"
        )
        return AccessRule(rule.name, rule.rights, key, text_of(element, "SecondaryKey") or "", connection)


def _rule(element: Element) -> AccessRule:
    rights = [item.text or "" for item in children(element, "Rights")]
    return AccessRule(text_of(element, "KeyName") or "", rights)
