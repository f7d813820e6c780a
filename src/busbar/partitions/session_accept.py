"""Accepts the next available message session of an entity for a client.

1. If a fragment is known to have sessions, it gets a request for the lock of one (AcceptSession). Where many sessions wait,
   that is all. If it has none left, or no fragment is known to have sessions, all fragments get a request to report when
   they have one (AwaitSession), which locks nothing. A fragment that has offered a session gets a request for its lock. If
   another client was faster there, its next session is awaited.
2. Only one fragment at a time gets a request for a lock, and the next only when it has answered, however long that takes. So
   an accept never holds two sessions, not even for a moment. A fragment that has given or offered a session lately answers
   at once. If its store fails in between, the store host refuses for it. Other accepts do not begin with a slow fragment
   (SLOW_MS).
3. Fragments have an order (session_rotation.py). Of several that have offered, the first in this order is claimed. Stores do
   not answer at the same moment, so an offer waits briefly for the fragments before it: FIRST_WAIT_MS for the first
   fragment, ORDER_WAIT_MS for others. Otherwise the fastest store would always win.
4. If the store of a fragment is unavailable, its request is repeated from time to time, and the other fragments continue.
5. However an accept ends (accepted, refused, timed out, client gone), its awaits are cancelled, also those that were
   answered and not used. So the fragment may offer the session to others at once. If a claim is not used, a Leave follows,
   which the fragment applies after the claim. So no lock remains.

Each call brings the time, in ms. The result goes to `AcceptResult`, once; `end` follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from busbar.model.commands import AcceptSession, AwaitSession, CancelAwait, Leave
from busbar.model.effects import Effect, Refused, SessionAccepted, SessionOffered
from busbar.model.errors import BusbarError, InternalError, OperationTimeout, ServerBusy, error_of
from busbar.partitions.origin import CancellingOrigin
from busbar.partitions.session_rotation import FragmentRotation

LEAST_WAIT_MS = 100
"""The time that fragments have for their answers, however short the client's time is."""
RETRY_MS = 500
"""Time until the request to an unavailable fragment is repeated."""
FIRST_WAIT_MS = 20
"""The time that the first fragment has to report whether it has a session now."""
ORDER_WAIT_MS = 5
"""The time that all others have to report whether they have a session now."""
AT_ONCE_MS = 100
"""An offer within this time means that sessions wait. A later one means that receivers wait: a new accept must not take the
session from them, which a claim without an offer could do."""
SLOW_MS = 1_000
"""Time after which a fragment that has not answered a request for a lock counts as slow."""

NONE_AVAILABLE = "No message session became available in time; accept again to go on waiting."

_Act = Callable[[], None]


class AcceptResult(Protocol):
    """The part that waits for the session."""

    def accepted(self, index: int, session: SessionAccepted) -> None:
        """The fragment with this index has locked the session."""

    def failed(self, error: BusbarError) -> None: ...


class SessionAcceptor:
    """One accept that waits for the next available session."""

    def __init__(
        self,
        origin: CancellingOrigin,
        fragments: Sequence[int],
        consumer: int,
        rotation: FragmentRotation,
        result: AcceptResult,
    ) -> None:
        self._origin = origin
        self._fragments = fragments
        self._consumer = consumer
        self._rotation = rotation
        self._result = result
        self._order, self._alone = rotation.begin()
        self._awaited: dict[int, int] = {}  # index: the request number of its await
        self._offered: dict[int, int] = {}  # the same, of those that have answered and were not asked yet
        self._claim: _Claim | None = None
        self._unavailable: dict[int, BusbarError] = {}
        self._due: list[tuple[int, _Act]] = []
        self._began = 0
        self._until = 0
        self._others_asked = False
        self._over = False
        """There is a result: no more requests are sent."""
        self._ended = False
        self._waited_for = set(self._order)

    def begin(self, now: int, wait_ms: int) -> None:
        """Send the first requests. The accept fails with OperationTimeout after `wait_ms`."""
        self._began = now
        self._until = now + max(wait_ms, LEAST_WAIT_MS)
        first = self._order[0]
        if self._alone:
            self._claim_at(first)
            self._later(now + SLOW_MS, self._mark_slow)
        else:
            self._await(first)
            self._later(now + FIRST_WAIT_MS, lambda: self._do_not_wait_for([first]))
            self._ask_others(now)
        self._origin.wake_at(self, self._next_wake())

    def end(self, *, taken: bool) -> None:
        """End the accept and leave no lock behind. `taken`: the client has the accepted session."""
        if self._ended:
            return
        self._over = self._ended = True
        self._origin.wake_at(self, 0)
        self._due.clear()
        for index, request in (*self._awaited.items(), *self._offered.items()):
            self._origin.forget_request(request)
            self._origin.command(CancelAwait(self._fragments[index], self._origin.origin, request))
        if self._claim is not None:
            if taken:
                self._rotation.mark_accepted(self._claim.index, self._order[0])
            else:
                self._leave(self._claim.index)

    # Time

    def wake(self, now: int) -> int:
        """Do what is due; the next wake time, 0 when the accept is over."""
        if self._over:
            return 0
        due = [act for at, act in self._due if at <= now]
        self._due = [(at, act) for at, act in self._due if at > now]
        for act in due:
            act()
        if now >= self._until:
            self._time_is_up()
        return self._next_wake()

    def _next_wake(self) -> int:
        return 0 if self._over else min([self._until, *[at for at, _act in self._due]])

    def _later(self, at: int, act: _Act) -> None:
        self._due.append((at, act))
        self._due.sort(key=lambda due: due[0])

    def _time_is_up(self) -> None:
        if len(self._unavailable) == len(self._fragments):
            self._fail(next(iter(self._unavailable.values())))
        else:
            self._fail(OperationTimeout(NONE_AVAILABLE))

    def _fail(self, error: BusbarError) -> None:
        self._over = True
        self._result.failed(error)

    # Offers

    def _await(self, index: int) -> None:
        request = self._origin.expect(SessionAwait(self, index))
        self._awaited[index] = request
        self._origin.command(AwaitSession(self._fragments[index], self._origin.origin, request))

    def await_answered(self, index: int, effect: Effect, now: int) -> None:
        if self._over:
            return
        request = self._awaited.pop(index)
        if isinstance(effect, Refused):
            self._handle_refusal(index, effect, now)
            return
        assert isinstance(effect, SessionOffered)
        self._unavailable.pop(index, None)
        if now - self._began < AT_ONCE_MS:
            self._rotation.mark_available(index)
        self._offered[index] = request
        self._lock_next()

    def _ask_others(self, now: int) -> None:
        """Send requests to all but the first fragment, once."""
        if not self._others_asked:
            self._others_asked = True
            others = self._order[1:]
            for index in others:
                self._await(index)
            self._later(now + ORDER_WAIT_MS, lambda: self._do_not_wait_for(others))

    def _do_not_wait_for(self, indexes: list[int]) -> None:
        """Offers of others do not wait for these fragments any more: they have no session now."""
        self._waited_for.difference_update(indexes)
        self._lock_next()

    # Claims

    def _lock_next(self) -> None:
        """Claim the first offer, unless a claim is pending or a fragment before it may still offer."""
        if self._claim is not None or not self._offered:
            return
        index = min(self._offered, key=self._order.index)
        before = self._order[: self._order.index(index)]
        if any(other in self._awaited and other in self._waited_for for other in before):
            return
        del self._offered[index]
        self._claim_at(index)

    def _claim_at(self, index: int) -> None:
        claim = self._claim = _Claim(self, index)
        request = self._origin.expect(claim)
        self._origin.command(
            AcceptSession(self._fragments[index], self._origin.origin, request, self._consumer, None)
        )

    def _mark_slow(self) -> None:
        if self._claim is not None:
            self._rotation.mark_empty(self._claim.index)

    def claim_answered(self, claim: _Claim, effect: Effect, now: int) -> None:
        if self._over or claim is not self._claim:
            return
        if isinstance(effect, SessionAccepted):
            self._over = True
            self._result.accepted(claim.index, effect)
            return
        self._claim = None
        assert isinstance(effect, Refused)
        if effect.condition == OperationTimeout.condition:
            self._rotation.mark_empty(claim.index)
            self._waited_for.discard(claim.index)
            self._await(claim.index)
        else:
            if not effect.certain:
                self._leave(claim.index)
            self._handle_refusal(claim.index, effect, now)
        if not self._over:
            self._ask_others(now)
            self._lock_next()
            self._origin.wake_at(self, self._next_wake())

    def _handle_refusal(self, index: int, effect: Refused, now: int) -> None:
        error = error_of(effect.condition, effect.text, effect.certain)
        if effect.condition in (ServerBusy.condition, InternalError.condition):
            self._unavailable[index] = error
            self._rotation.mark_empty(index)
            self._later(now + RETRY_MS, lambda: self._await(index))
            self._origin.wake_at(self, self._next_wake())
        else:
            self._fail(error)

    def _leave(self, index: int) -> None:
        self._origin.command(Leave(self._fragments[index], self._origin.origin, self._consumer))


class SessionAwait:
    """A request to a fragment to report when it has a session."""

    __slots__ = ("_index", "_owner")

    def __init__(self, owner: SessionAcceptor, index: int) -> None:
        self._owner = owner
        self._index = index

    def answered(self, effect: Effect, now: int) -> None:
        self._owner.await_answered(self._index, effect, now)


class _Claim:
    """A request to a fragment for the lock of a session."""

    __slots__ = ("_owner", "index")

    def __init__(self, owner: SessionAcceptor, index: int) -> None:
        self._owner = owner
        self.index = index

    def answered(self, effect: Effect, now: int) -> None:
        self._owner.claim_answered(self, effect, now)
