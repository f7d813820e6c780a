"""Accepting the next available message session of an entity for a client.

Rules:
1. A fragment that is known to have sessions is asked for the lock of one (AcceptSession), which is all that there is to do
   where many wait. If it has none left, or none is known to have any, all fragments are asked to tell when they have one
   (AwaitSession), which locks nothing. A fragment that has offered a session is asked for its lock. If another client was
   faster there, its next session is awaited.
2. Only one fragment at a time is asked for a lock, and the next only when it has answered, however long that takes: an
   accept never holds two sessions, not even in passing. A fragment that has given or offered a session lately answers at
   once; if its store fails in between, the store host refuses for it. Others do not ask one first that is slow (SLOW_MS).
3. Fragments are asked in an order (session_rotation.py): of several that have offered, the first in it is claimed. Stores do
   not answer at the same moment: an offer waits for those before it in the order, but not for long (FIRST_WAIT_MS for the
   fragment whose turn it is, ORDER_WAIT_MS for others), or the quickest would always win.
4. A fragment whose store is unavailable is asked again from time to time, and the others go on meanwhile.
5. However it ends (accepted, refused, time is up, the client has gone), awaits are cancelled, also those that were answered
   and not used: the fragment may offer the session to others at once. A claim that was not taken is followed by a Leave,
   which the fragment applies after the claim: whatever became of it, no lock remains.

Time comes in with each call, in ms. The result goes to `AcceptResult`, once; `end` follows it.
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
"""Time that fragments have for their answers, however short the client's time."""
RETRY_MS = 500
"""Time until a fragment that is unavailable is asked again."""
FIRST_WAIT_MS = 20
"""Time that the fragment whose turn it is has to tell whether it has a session now."""
ORDER_WAIT_MS = 5
"""Time that all others have to tell whether they have a session now."""
AT_ONCE_MS = 100
"""An offer within this time means that sessions wait. A later one means that receivers do: a new accept must not take it
from them, as a claim without an offer may."""
SLOW_MS = 1_000
"""Time after which a fragment that was asked for a lock counts as one that hangs."""

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
        """There is a result: nothing more is asked."""
        self._ended = False
        self._waited_for = set(self._order)

    def begin(self, now: int, wait_ms: int) -> None:
        """Ask the first fragments. The accept fails with OperationTimeout after `wait_ms`."""
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
        """Leave nothing behind. `taken`: the client has the session that was accepted."""
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
        return 0 if self._over else min([self._until, *(at for at, _act in self._due)])

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
        request = self._origin.expect(_Await(self, index))
        self._awaited[index] = request
        self._origin.command(AwaitSession(self._fragments[index], self._origin.origin, request))

    def await_answered(self, index: int, effect: Effect, now: int) -> None:
        if self._over:
            return
        request = self._awaited.pop(index)
        if isinstance(effect, Refused):
            self._refused(index, effect, now)
            return
        assert isinstance(effect, SessionOffered)
        self._unavailable.pop(index, None)
        if now - self._began < AT_ONCE_MS:
            self._rotation.mark_available(index)
        self._offered[index] = request
        self._lock_next()

    def _ask_others(self, now: int) -> None:
        """All but the first, once."""
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
        """Claim the first that has offered, unless a claim is pending or one before it may still offer."""
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
            self._refused(claim.index, effect, now)
        if not self._over:
            self._ask_others(now)
            self._lock_next()
            self._origin.wake_at(self, self._next_wake())

    def _refused(self, index: int, effect: Refused, now: int) -> None:
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


class _Await:
    """A fragment that was asked to tell when it has a session."""

    __slots__ = ("_index", "_owner")

    def __init__(self, owner: SessionAcceptor, index: int) -> None:
        self._owner = owner
        self._index = index

    def answered(self, effect: Effect, now: int) -> None:
        self._owner.await_answered(self._index, effect, now)


class _Claim:
    """A fragment that was asked for the lock of a session."""

    __slots__ = ("_owner", "index")

    def __init__(self, owner: SessionAcceptor, index: int) -> None:
        self._owner = owner
        self.index = index

    def answered(self, effect: Effect, now: int) -> None:
        self._owner.claim_answered(self, effect, now)
