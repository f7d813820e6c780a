"""The grants that a connection holds: what its tokens allow, and for how long.

1. A new token for the same path replaces the old one. A connection holds MAX_GRANTS at most.
2. A grant is valid until `token_grace` after its end.
3. The entities of the rules behind grants are watched, and the namespace likewise: a change of a rule changes its grants.
"""

from __future__ import annotations

from collections.abc import Iterable

from busbar.gateway.authority import Grant
from busbar.gateway.link_registry import EntityListener
from busbar.gateway.services import GatewayServices
from busbar.model.errors import QuotaExceeded
from busbar.model.names import NAMESPACE_ENTRY, key_of

MAX_GRANTS = 1_000
"""Maximum number of tokens for different paths that a connection may hold."""


class Grants:
    """The grants of one connection. `holder` is notified when an entity changes whose rules it relies on."""

    __slots__ = ("_attached", "_authority", "_grace", "_held", "_holder")

    def __init__(self, service: GatewayServices, holder: EntityListener) -> None:
        self._attached = service.attached
        self._authority = service.authority
        self._grace = service.limits.token_grace
        self._holder: EntityListener | None = holder
        self._held: list[Grant] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def key_names(self) -> list[str]:
        """The names of the rules behind the grants."""
        return sorted({grant.rule for grant in self._held})

    def may(self, right: str, path: str, now: int) -> bool:
        return any(
            right in grant.rights and grant.covers(path) and self._counts(grant, now) for grant in self._held
        )

    def add(self, grant: Grant) -> None:
        """Add a grant in place of the one for the same path. Raises QuotaExceeded."""
        kept = [
            known
            for known in self._held
            if (known.path, known.rights, known.owner) != (grant.path, grant.rights, grant.owner)
        ]
        if len(kept) >= MAX_GRANTS:
            raise QuotaExceeded(f"A connection has at most {MAX_GRANTS} tokens at a time.")
        self._hold((*kept, grant))

    def ends(self) -> list[int]:
        """The times when grants expire, of those that do."""
        return [grant.expires + self._grace for grant in self._held if grant.expires]

    def expire(self, now: int) -> bool:
        """Drop expired grants; whether there were any."""
        before = len(self._held)
        self._hold([grant for grant in self._held if self._counts(grant, now)])
        return len(self._held) < before

    def renew(self, entity: str) -> bool:
        """Replace the grants of a changed entity by what its rules grant now; whether there were any."""
        owner = "" if entity == NAMESPACE_ENTRY else key_of(entity)
        if all(grant.owner != owner for grant in self._held):
            return False
        renewed = [grant if grant.owner != owner else self._authority.renewed(grant) for grant in self._held]
        self._hold([grant for grant in renewed if grant is not None])
        return True

    def close(self) -> None:
        """Drop all grants and the reference to the holder, which is gone."""
        self._hold(())
        self._holder = None

    def _counts(self, grant: Grant, now: int) -> bool:
        """Whether a grant has not expired, with `token_grace` added."""
        return not grant.expires or grant.expires + self._grace > now

    def _hold(self, grants: Iterable[Grant]) -> None:
        """Replace all grants, and watch the entities whose rules they follow from."""
        before = {grant.owner or NAMESPACE_ENTRY for grant in self._held}
        self._held = list(grants)
        after = {grant.owner or NAMESPACE_ENTRY for grant in self._held}
        if self._holder is None:
            return
        for owner in after - before:
            self._attached.add_grant(owner, self._holder)
        for owner in before - after:
            self._attached.remove_grant(owner, self._holder)
