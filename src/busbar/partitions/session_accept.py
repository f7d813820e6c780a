"""Accepting a message session for a client: a named one, or the next that is available.

Rules:
1. A named session lies in the fragment of its key; that one is asked for the lock, and its answer is final.
2. For the next available one, a fragment that is known to have sessions is asked for the lock of one (AcceptSession), which
   is all that there is to do where many wait. If it has none left, or none is known to have any, all are asked to say when
   they have one (AwaitSession), which locks nothing; who has offered is asked for the lock. If somebody else was faster
   there, it is awaited anew.
3. Only one fragment at a time is asked for a lock, and the next only when it has answered, however long that takes: an
   accept never holds two sessions, not even in passing. Who has given or offered a session lately lives, and answers at
   once; if its store fails in between, the host refuses for it. One that is SLOW is not asked first by others.
4. Fragments are asked in an order (session_turns.py): of several that have offered, the first in it is claimed. Stores do
   not answer at the same moment: an offer waits for those before it in the order, but not for long (FIRST_WAIT for whose
   turn it is, ORDER_WAIT for others), or the quickest would always win.
5. A fragment that is out is asked again from time to time, and the others go on meanwhile.
6. However it ends (accepted, refused, time is up, the client has gone), awaits are cancelled, also those that were answered
   and not used: the fragment may offer the session to others at once. A claim that was not taken is followed by a Leave,
   which the fragment sees after the claim: whatever became of it, no lock remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from busbar.model.commands import AcceptSession, AwaitSession, CancelAwait, Leave
from busbar.model.effects import Effect, Refused, SessionAccepted, SessionOffered
from busbar.model.errors import BusbarError, InternalError, OperationTimeout, ServerBusy, error_of
from busbar.partitions.origin import AwaitingOrigin
from busbar.partitions.session_rotation import FragmentRotation

LEAST_WAIT = 0.1
"""Seconds that fragments have for their answers, however short the client's time."""
RETRY = 0.5
"""Seconds until a fragment that is out is asked again."""
FIRST_WAIT = 0.02
"""Seconds that the fragment whose turn it is has to say whether it has a session now."""
ORDER_WAIT = 0.005
"""Seconds that all others have to say whether they have a session now."""
AT_ONCE = 0.1
"""Seconds within which an offer says that sessions wait. A later one says that receivers do: who comes anew must not take it
from them, as a claim without an offer may."""
SLOW = 1.0
"""Seconds after which a fragment that was asked for a lock is taken for one that hangs."""

NONE_AVAILABLE = "No message session became available in time; accept again to go on waiting."

_Act = Callable[[], None]


async def accept_named(peer: AwaitingOrigin, fragment: int, consumer: int, session: str) -> SessionAccepted:
    """Rule 1. Raises SessionCannotBeLocked."""
    try:
        effect = await peer.ask(
            lambda request: AcceptSession(fragment, peer.origin, request, consumer, session)
        )
    except BusbarError as error:
        if not error.certain:
            peer.command(Leave(fragment, peer.origin, consumer))
        raise
    except asyncio.CancelledError:
        peer.command(Leave(fragment, peer.origin, consumer))
        raise
    assert isinstance(effect, SessionAccepted)
    return effect


async def accept_next(
    peer: AwaitingOrigin, fragments: Sequence[int], consumer: int, turns: FragmentRotation, wait: float
) -> tuple[int, SessionAccepted]:
    """Rule 2: the index of the fragment and what it gave. Raises OperationTimeout after `wait` seconds."""
    return await SessionAcceptor(peer, fragments, consumer, turns).accept(wait)


class SessionAcceptor:
    """One accept that waits for the next available session."""

    def __init__(
        self, peer: AwaitingOrigin, fragments: Sequence[int], consumer: int, turns: FragmentRotation
    ) -> None:
        self._peer = peer
        self._fragments = fragments
        self._consumer = consumer
        self._turns = turns
        self._order, self._alone = turns.begin()
        self._awaited: dict[int, int] = {}  # index: the request number of its await
        self._offered: dict[int, int] = {}  # the same, of those that have answered and were not asked yet
        self._claim: _Claim | None = None
        self._out: dict[int, BusbarError] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._others_asked = False
        self._won: asyncio.Future[tuple[int, SessionAccepted]] = self._loop.create_future()
        self._over = False
        self._waited_for = set(self._order)

    async def accept(self, wait: float) -> tuple[int, SessionAccepted]:
        taken = False
        try:
            first = self._order[0]
            if self._alone:
                self._claim_at(first)
                self._later(SLOW, self._mark_slow)
            else:
                self._await(first)
                self._later(FIRST_WAIT, lambda: self._do_not_wait_for([first]))
                self._ask_others()
            self._peer.flush()
            async with asyncio.timeout(max(wait, LEAST_WAIT)):
                won = await self._won
            taken = True
            self._turns.mark_accepted(won[0], self._order[0])
            return won
        except TimeoutError:
            if len(self._out) == len(self._fragments):
                raise next(iter(self._out.values())) from None
            raise OperationTimeout(NONE_AVAILABLE) from None
        finally:
            self._end(taken)

    def _await(self, index: int) -> None:
        request = self._peer.expect(_Await(self, index))
        self._awaited[index] = request
        self._peer.command(AwaitSession(self._fragments[index], self._peer.origin, request))

    def await_answered(self, index: int, effect: Effect) -> None:
        if self._over:
            return
        request = self._awaited.pop(index)
        if isinstance(effect, Refused):
            self._failed(index, effect)
            return
        assert isinstance(effect, SessionOffered)
        self._out.pop(index, None)
        if self._loop.time() - self._began < AT_ONCE:
            self._turns.mark_available(index)
        self._offered[index] = request
        self._lock_next()

    def _ask_others(self) -> None:
        """All but the first, once."""
        if not self._others_asked:
            self._others_asked = True
            others = self._order[1:]
            for index in others:
                self._await(index)
            self._later(ORDER_WAIT, lambda: self._do_not_wait_for(others))

    def _do_not_wait_for(self, indexes: list[int]) -> None:
        """Rule 4: who is silent has no session now."""
        self._waited_for.difference_update(indexes)
        self._lock_next()
        self._peer.flush()

    def _lock_next(self) -> None:
        """Rules 3 and 4."""
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
        request = self._peer.expect(claim)
        self._peer.command(
            AcceptSession(self._fragments[index], self._peer.origin, request, self._consumer, None)
        )

    def _mark_slow(self) -> None:
        if self._claim is not None:
            self._turns.mark_empty(self._claim.index)

    def claim_answered(self, claim: _Claim, effect: Effect) -> None:
        if self._over or claim is not self._claim:
            return
        if isinstance(effect, SessionAccepted):
            if not self._won.done():
                self._won.set_result((claim.index, effect))
            return
        self._claim = None
        assert isinstance(effect, Refused)
        if effect.condition == OperationTimeout.condition:
            self._turns.mark_empty(claim.index)
            self._waited_for.discard(claim.index)
            self._await(claim.index)
        else:
            if not effect.certain:
                self._leave(claim.index)
            self._failed(claim.index, effect)
        self._ask_others()
        self._lock_next()

    def _failed(self, index: int, effect: Refused) -> None:
        error = error_of(effect.condition, effect.text, effect.certain)
        if effect.condition in (ServerBusy.condition, InternalError.condition):
            self._out[index] = error
            self._turns.mark_empty(index)
            self._later(RETRY, lambda: self._await_again(index))
        elif not self._won.done():
            self._won.set_exception(error)

    def _await_again(self, index: int) -> None:
        self._await(index)
        self._peer.flush()

    def _leave(self, index: int) -> None:
        self._peer.command(Leave(self._fragments[index], self._peer.origin, self._consumer))

    def _later(self, seconds: float, act: _Act) -> None:
        def run() -> None:
            self._timers.discard(timer)
            if not self._over:
                act()

        timer = self._loop.call_later(seconds, run)
        self._timers.add(timer)

    def _end(self, taken: bool) -> None:
        """Rule 6."""
        self._over = True
        for timer in self._timers:
            timer.cancel()
        for index, request in (*self._awaited.items(), *self._offered.items()):
            self._peer.forget_request(request)
            self._peer.command(CancelAwait(self._fragments[index], self._peer.origin, request))
        if self._claim is not None and not taken:
            self._leave(self._claim.index)
        self._peer.flush()


class _Await:
    """A fragment that was asked to say when it has a session."""

    __slots__ = ("_index", "_owner")

    def __init__(self, owner: SessionAcceptor, index: int) -> None:
        self._owner = owner
        self._index = index

    def answered(self, effect: Effect, now: int) -> None:
        self._owner.await_answered(self._index, effect)


class _Claim:
    """A fragment that was asked for the lock of a session."""

    __slots__ = ("_owner", "index")

    def __init__(self, owner: SessionAcceptor, index: int) -> None:
        self._owner = owner
        self.index = index

    def answered(self, effect: Effect, now: int) -> None:
        self._owner.claim_answered(self, effect)
