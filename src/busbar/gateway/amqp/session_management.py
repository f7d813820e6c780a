"""The operations of a management node on message sessions: renewal of the lock, state, and the list of sessions.

Rules:
1. A client has to hold a session to renew it, to read or set its state, and to settle or receive deferred messages in its
   name. It holds one by a link of the same connection. Otherwise the answer is that the session lock is lost.
2. A state is no larger than a message of the namespace may be: 256 KB, or 100 MB in the Premium tier. Messages of an entity
   may have a lower limit there.
3. The list goes from fragment to fragment. Clients page through it by how many sessions they have seen. The node keeps where
   the next page begins, so that a long list is read once.
4. A dead-letter queue has no sessions.
5. An inspection shows, without holding a session, until when it is locked, by which client of this gateway, and its state.
   The clients of other gateways are not named.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from busbar.amqp.types import Array, Int, Timestamp
from busbar.clock import wall_clock
from busbar.gateway.amqp.enlisting import ask_fragment
from busbar.gateway.amqp.link_connection import HeldSession, LinkConnection
from busbar.gateway.amqp.management_request import Reply, RequestBody
from busbar.gateway.amqp.session_link import SESSION_LOCK_LOST
from busbar.gateway.entity_checks import requires_session
from busbar.model.api import EntityView
from busbar.model.commands import (
    GetSessionState,
    InspectSession,
    ListSessions,
    RenewSession,
    SetSessionState,
)
from busbar.model.effects import Renewed, SessionInspected, SessionList, SessionState
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    InvalidOperation,
    QuotaExceeded,
    SessionLockLost,
)
from busbar.model.message import ACTIVE
from busbar.model.partitioning import index_of_key
from busbar.model.sas import LISTEN

STRING = 0xA1
DEFAULT_LISTING = 253_402_300_800_000
"""As `last-updated-time` (the year 10000): sessions that have messages or a state, whenever they changed."""
MAX_LISTED = 10_000
"""Sessions in an answer, and in one question to a fragment."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a page of the list begins: so many sessions before it in all, and the last of them that its fragment has."""

    updated_after: int
    skipped: int
    index: int
    after: str | None


class SessionOperations:
    def __init__(
        self, peer: LinkConnection, entity: EntityView, resource: str, sub: int, max_state_size: int
    ) -> None:
        self._peer = peer
        self._resource = resource
        self._entity = entity
        self._max_state_size = max_state_size
        self.required = requires_session(entity) and sub == ACTIVE
        self._next_page = _Place(0, 0, 0, None)

    @property
    def operations(self) -> dict[str, Callable[[RequestBody], Awaitable[Reply]]]:
        return {
            "com.microsoft:renew-session-lock": self._renew,
            "com.microsoft:set-session-state": self._write_state,
            "com.microsoft:get-session-state": self._read_state,
            "com.microsoft:get-message-sessions": self._list,
            "busbar:inspect-session": self._inspect,
        }

    def named(self, body: RequestBody) -> str | None:
        """The session that a request is limited to, if it is."""
        if body.get("session-id") is None:
            return None
        self._check()
        return body.text("session-id")

    def holder(self, body: RequestBody) -> HeldSession:
        """The session that this connection holds. Raises SessionLockLost if it does not."""
        self._check()
        held = self._peer.held_session(self._entity.path, body.text("session-id"))
        if held is None:
            raise SessionLockLost(SESSION_LOCK_LOST)
        return held

    def _check(self) -> None:
        if not self.required:
            raise InvalidOperation(
                f"'{self._entity.path}' has no message sessions here: it does not require them, or this is its dead-letter "
                "queue."
            )

    async def _renew(self, body: RequestBody) -> Reply:
        held = self.holder(body)
        effect = await self._peer.ask(
            lambda request: RenewSession(held.fragment, self._peer.origin, request, held.consumer)
        )
        assert isinstance(effect, Renewed)
        held.renewed(effect.until)
        return 200, {"expiration": Timestamp(effect.until)}

    async def _read_state(self, body: RequestBody) -> Reply:
        held = self.holder(body)
        effect = await self._peer.ask(
            lambda request: GetSessionState(held.fragment, self._peer.origin, request, held.consumer)
        )
        assert isinstance(effect, SessionState)
        return 200, {"session-state": effect.state}

    async def _write_state(self, body: RequestBody) -> Reply:
        held = self.holder(body)
        if not body.has("session-state"):
            raise ArgumentError(
                "'session-state' is missing; it is a binary value, or null to clear the state."
            )
        state = None if body.get("session-state") is None else body.binary("session-state")
        if state is not None and len(state) > self._max_state_size:
            raise QuotaExceeded(
                f"The session state has {len(state)} bytes; at most {self._max_state_size} are allowed, which is the size "
                "of a message in this namespace."
            )
        if body.transaction is not None:
            right = (LISTEN, self._resource)
            operation = body.transaction.set_state(
                self._entity, held.index, held.consumer, state, right, wall_clock()
            )
            await ask_fragment(self._peer, body.transaction, operation)
            return 200, {}
        await self._peer.ask(
            lambda request: SetSessionState(held.fragment, self._peer.origin, request, held.consumer, state)
        )
        return 200, {}

    # Rule 5

    async def _inspect(self, body: RequestBody) -> Reply:
        self._check()
        session, with_state = body.text("session-id"), body.flag("with-state")
        fragments = self._entity.fragments
        fragment = fragments[index_of_key(session, len(fragments))]
        effect = await self._peer.ask(
            lambda request: InspectSession(fragment, self._peer.origin, request, session, with_state)
        )
        assert isinstance(effect, SessionInspected)
        reply: dict[str, object] = {
            "locked-messages": int(effect.locked),
            "state-size": int(effect.size),
            "session-state": effect.state,
        }
        if effect.until:
            reply["locked-until"] = Timestamp(effect.until)
            reply["holder"] = self._peer.service.attached.session_holder(self._entity.path, session)
        return 200, reply

    # Rule 3

    async def _list(self, body: RequestBody) -> Reply:
        self._check()
        skip, top = body.integer("skip"), body.integer("top")
        if skip < 0 or top < 1:
            raise ArgumentOutOfRange(f"skip is {skip} and top {top}; at least 0 and 1 are needed.")
        updated = body.integer("last-updated-time")
        updated_after = 0 if updated >= DEFAULT_LISTING else max(1, updated)
        ids = await self._page(updated_after, skip, min(top, MAX_LISTED))
        if not ids:
            return 204, {}
        return 200, {"skip": Int(skip), "sessions-ids": Array(STRING, list(ids))}

    async def _page(self, updated_after: int, skip: int, top: int) -> list[str]:
        place = self._next_page
        if not skip or (place.updated_after, place.skipped) != (updated_after, skip):
            place = await self._find(updated_after, skip)
        index, after = place.index, place.after
        ids: list[str] = []
        while index < len(self._entity.fragments) and len(ids) < top:
            found = await self._ask(index, updated_after, after, top - len(ids))
            ids += found
            if found:
                after = found[-1]
            else:  # only an empty answer ends a fragment: it may return fewer than asked for at a time
                index, after = index + 1, None
        self._next_page = _Place(updated_after, skip + len(ids), index, after)
        return ids

    async def _find(self, updated_after: int, skip: int) -> _Place:
        """The place behind the first `skip` sessions."""
        index = skipped = 0
        after: str | None = None
        while index < len(self._entity.fragments) and skipped < skip:
            found = await self._ask(index, updated_after, after, min(skip - skipped, MAX_LISTED))
            skipped += len(found)
            if found:
                after = found[-1]
            else:
                index, after = index + 1, None
        return _Place(updated_after, skipped, index, after)

    async def _ask(self, index: int, updated_after: int, after: str | None, top: int) -> list[str]:
        effect = await self._peer.ask(
            lambda request: ListSessions(
                self._entity.fragments[index], self._peer.origin, request, updated_after, after, top
            )
        )
        assert isinstance(effect, SessionList)
        return effect.ids
