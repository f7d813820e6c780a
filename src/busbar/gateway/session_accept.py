"""Accepting a message session for a client: a named one, or the next that is available.

Rules:
1. A named session lies in the fragment of its key; that one is asked for the lock, and its answer is final.
2. For the next available one, all fragments are asked to say when they have one (AwaitSession), which locks nothing. One
   that has offered is asked for the lock (AcceptSession). If somebody else was faster there, it is awaited anew.
3. Only one fragment at a time is asked for a lock: an accept never holds two sessions, not even in passing.
4. Fragments are asked in an order that the caller chooses (session_turns.py); of several that have offered, the first in it.
   Stores do not answer at the same moment: in the first ORDER_WAIT an offer waits for those before it in the order, or the
   quickest store would always be the first.
5. A fragment that is out is asked again from time to time, and the others go on meanwhile. One that does not answer a claim
   in time is told to forget it.
6. However it ends (accepted, refused, time is up, the client has gone), awaits are cancelled, also those that were answered
   and not used: the fragment may offer the session to others at once. A claim that was not taken is followed by a Leave,
   which the fragment sees after the claim: whatever became of it, no lock remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from busbar.gateway.peer import Peer
from busbar.model.commands import AcceptSession, AwaitSession, CancelAwait, Leave
from busbar.model.effects import Effect, Refused, SessionAccepted, SessionOffered
from busbar.model.errors import BusbarError, InternalError, OperationTimeout, ServerBusy, error_of

LEAST_WAIT = 0.1
"""Seconds that fragments have for their answers, however short the client's time."""
RETRY = 0.5
"""Seconds until a fragment that is out is asked again."""
ORDER_WAIT = 0.005
"""Seconds that all fragments have to say whether they have a session now."""
CLAIM_WAIT = 2.0
"""Seconds that a fragment which has offered a session has to answer a claim."""

NONE_AVAILABLE = "No message session became available in time; accept again to go on waiting."

_Act = Callable[[], None]


async def accept_named(peer: Peer, fragment: int, consumer: int, session: str) -> SessionAccepted:
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
    peer: Peer, fragments: Sequence[int], consumer: int, first: int, wait: float
) -> tuple[int, SessionAccepted]:
    """Rule 2: the index of the fragment and what it gave. Raises OperationTimeout after `wait` seconds."""
    return await NextSession(peer, fragments, consumer, first).accept(wait)


class NextSession:
    """One accept that waits for the next available session."""

    def __init__(self, peer: Peer, fragments: Sequence[int], consumer: int, first: int) -> None:
        self._peer = peer
        self._fragments = fragments
        self._consumer = consumer
        self._order = [(first + step) % len(fragments) for step in range(len(fragments))]
        self._awaited: dict[int, int] = {}  # index: the request number of its await
        self._offered: dict[int, int] = {}  # the same, of those that have answered and were not asked yet
        self._claim: _Claim | None = None
        self._out: dict[int, BusbarError] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._loop = asyncio.get_running_loop()
        self._won: asyncio.Future[tuple[int, SessionAccepted]] = self._loop.create_future()
        self._over = False
        self._all_asked = False

    async def accept(self, wait: float) -> tuple[int, SessionAccepted]:
        taken = False
        try:
            for index in self._order:
                self._await(index)
            self._peer.flush()
            self._later(ORDER_WAIT, self._order_is_known)
            async with asyncio.timeout(max(wait, LEAST_WAIT)):
                won = await self._won
            taken = True
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
        self._offered[index] = request
        if self._all_asked or not any(other in self._awaited for other in self._before(index)):
            self._claim_next()

    def _before(self, index: int) -> list[int]:
        return self._order[: self._order.index(index)]

    def _order_is_known(self) -> None:
        """Rule 4: who is silent has no session now."""
        self._all_asked = True
        self._claim_next()
        self._peer.flush()

    def _claim_next(self) -> None:
        """Rule 3."""
        if self._claim is not None or not self._offered:
            return
        index = min(self._offered, key=self._order.index)
        del self._offered[index]
        claim = self._claim = _Claim(self, index)
        request = self._peer.expect(claim)
        self._peer.command(
            AcceptSession(self._fragments[index], self._peer.origin, request, self._consumer, None)
        )
        self._later(CLAIM_WAIT, lambda: self._claim_overdue(claim))

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
            self._await(claim.index)
        else:
            if not effect.certain:
                self._leave(claim.index)
            self._failed(claim.index, effect)
        self._claim_next()

    def _claim_overdue(self, claim: _Claim) -> None:
        """Rule 5."""
        if claim is self._claim and not self._won.done():
            self._leave(claim.index)
            self._claim = None
            self._retry(claim.index, ServerBusy("A fragment of the entity does not answer. Retry later."))
            self._claim_next()
            self._peer.flush()

    def _failed(self, index: int, effect: Refused) -> None:
        error = error_of(effect.condition, effect.text, effect.certain)
        if effect.condition in (ServerBusy.condition, InternalError.condition):
            self._retry(index, error)
        elif not self._won.done():
            self._won.set_exception(error)

    def _retry(self, index: int, why: BusbarError) -> None:
        self._out[index] = why
        self._later(RETRY, lambda: self._await_again(index))

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

    def __init__(self, owner: NextSession, index: int) -> None:
        self._owner = owner
        self._index = index

    def answered(self, effect: Effect) -> None:
        self._owner.await_answered(self._index, effect)


class _Claim:
    """A fragment that was asked for the lock of a session."""

    __slots__ = ("_owner", "index")

    def __init__(self, owner: NextSession, index: int) -> None:
        self._owner = owner
        self.index = index

    def answered(self, effect: Effect) -> None:
        self._owner.claim_answered(self, effect)
