"""Changes of the authorization rules of an entity or of the namespace."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PRIMARY = "primary"
SECONDARY = "secondary"


class AccessAction(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    RENEW = "renew"


@dataclass(frozen=True, slots=True)
class AccessChange:
    """A change of one rule. Rights and keys that are empty stay; a new rule without keys gets two."""

    action: AccessAction
    rights: tuple[str, ...] = ()
    primary_key: str = ""
    secondary_key: str = ""
    renewed: str = ""
    """The key that is replaced: PRIMARY or SECONDARY."""

    def __repr__(self) -> str:
        return f"AccessChange({self.action.value!r}, {list(self.rights)})"  # no keys
