"""Shared access rules: names, keys and rights."""

from __future__ import annotations

from dataclasses import dataclass

SEND = "Send"
LISTEN = "Listen"
MANAGE = "Manage"


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
