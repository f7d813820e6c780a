"""Which connections have links to which entities, and which hold grants of an entity's own rules.

1. An entity has links of a limited number of AMQP connections. Senders and receivers of a queue share its number. A topic
   and each of its subscriptions have their own. HTTP is not counted. The quota has the limit, for all gateways together.
2. When an entity changes or is deleted, the connections that use it or rely on its rules are notified.
"""

from __future__ import annotations

import logging
from typing import Protocol

from busbar.model.api import ConnectionQuota, EntityView
from busbar.model.errors import QuotaExceeded
from busbar.model.names import key_of

_log = logging.getLogger(__name__)


class EntityListener(Protocol):
    """A connection that is notified of changes."""

    def entity_changed(self, path: str, view: EntityView | None) -> None: ...

    def session_holder(self, path: str, session: str) -> str:
        """The client of the connection, if it holds that message session of an entity; else empty."""


class LinkRegistry:
    def __init__(self, quota: ConnectionQuota) -> None:
        self._quota = quota
        self._links: dict[str, dict[EntityListener, int]] = {}  # by entity: links of each connection
        self._relying: dict[str, set[EntityListener]] = {}

    async def add_link(self, path: str, who: EntityListener) -> bool:
        """Add a link. Whether that had to wait. Raises QuotaExceeded."""
        key = key_of(path)
        waited = False
        if who not in self._links.get(key, ()) and not self._quota.take(key):
            waited = True
            if not await self._quota.request(key):
                raise QuotaExceeded(
                    f"'{path}' has links of as many connections as it may have. Share or close connections."
                )
            if who in self._links.get(key, ()):  # by another link, meanwhile
                self._quota.release(key)
        links = self._links.setdefault(key, {})
        links[who] = links.get(who, 0) + 1
        return waited

    def remove_link(self, path: str, who: EntityListener) -> bool:
        """Remove a link. Whether it was the entity's last one."""
        key = key_of(path)
        links = self._links[key]
        links[who] -= 1
        if not links[who]:
            del links[who]
            self._quota.release(key)
        if links:
            return False
        del self._links[key]
        return True

    def add_grant(self, owner: str, who: EntityListener) -> None:
        """Record that the connection has a grant of a rule of that entity."""
        self._relying.setdefault(key_of(owner), set()).add(who)

    def remove_grant(self, owner: str, who: EntityListener) -> None:
        relying = self._relying.get(key_of(owner))
        if relying is not None:
            relying.discard(who)
            if not relying:
                del self._relying[key_of(owner)]

    @property
    def link_count(self) -> int:
        """The number of links to entities."""
        return sum(sum(links.values()) for links in self._links.values())

    def entities(self) -> list[str]:
        """The entities that have links now."""
        return list(self._links)

    def session_holder(self, path: str, session: str) -> str:
        """The client of this gateway that holds a message session of an entity; empty if none does."""
        for who in self._links.get(key_of(path), ()):
            found = who.session_holder(path, session)
            if found:
                return found
        return ""

    def changed(self, path: str, view: EntityView | None) -> None:
        """Notify the connections that use an entity, or rely on its rules, that it has changed or was deleted."""
        key = key_of(path)
        for who in {*self._links.get(key, ()), *self._relying.get(key, ())}:
            try:
                who.entity_changed(path, view)
            except Exception:
                _log.exception("a connection failed on a change of '%s'", path, extra={"entity": path})
