"""The client's end of a receiving link: messages that wait for calls, calls that wait for messages, and settlements.

1. Calls that wait are served in their order. A call gets the messages that are there, at most as many as it requested. If a
   call is cancelled after it was served, its messages go back to the front.
2. This link requests up to `credit` messages ahead. They wait here, locked. FetchLink has another rule for credit.
3. A settlement is done when the broker confirms it: then it is durable. Consecutive messages are settled with one
   disposition.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from busbar.amqp.errors import AmqpError
from busbar.amqp.events import Delivery
from busbar.amqp.outcomes import REJECTED, RELEASED, Outcome, empty_state
from busbar.client.answer_watch import AnswerWatch, WatchedCall
from busbar.client.connection import ClientConnection, LinkEnd
from busbar.client.errors import BusbarClientError, ConnectionLost, LockLost, SettleFailed
from busbar.client.received import Received

RELEASE = empty_state(RELEASED)


class WaitingReceive:
    """A call that waits for messages."""

    __slots__ = ("has_expired", "most", "result", "timer")

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self.most = most
        self.result: asyncio.Future[list[Received]] = loop.create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.has_expired = False


class _Settlement(WatchedCall):
    """One call whose messages the broker has still to confirm."""

    __slots__ = ("_give_up", "code", "done", "failed", "places")

    def __init__(
        self, ids: list[int], code: int, loop: asyncio.AbstractEventLoop, give_up: Callable[[], None]
    ) -> None:
        self.places = {number: place for place, number in enumerate(ids)}
        self.code = code
        self.failed: dict[int, tuple[str, str]] = {}
        self.done: asyncio.Future[None] = loop.create_future()
        self._give_up = give_up

    def answered(self, number: int, outcome: Outcome | None) -> None:
        place = self.places.pop(number)
        error = None if outcome is None else outcome.error
        # A dead-lettering is confirmed by a rejection without an error; a refusal is a rejection with its reason.
        if outcome is None or outcome.code != self.code or error is not None:
            self.failed[place] = (
                ("amqp:internal-error", "The broker did not settle it.")
                if error is None
                else (error.condition, error.description)
            )
        if not self.places and not self.done.done():
            self.done.set_result(None)

    def expire(self) -> None:
        self._give_up()


_SETTLED_BEFORE = Outcome(REJECTED, AmqpError(LockLost.default_condition, "The message was settled before."))


class ReceiverLink(LinkEnd):
    """A receiver on one connection, with which it ends."""

    def __init__(self, connection: ClientConnection, credit: int, delete: bool, timeout: float) -> None:
        self.connection = connection
        self.delete = delete
        self.error: BusbarClientError | None = None
        self._timeout = timeout
        self._watch = AnswerWatch(timeout, self._give_up)
        self._credit = credit
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Received] = deque()
        self._waiting: deque[WaitingReceive] = deque()
        self.demand = 0
        """The number of messages that calls wait for."""
        self._held: set[int] = set()  # delivered and not settled: the broker confirms no others
        self._settling: dict[int, _Settlement] = {}
        self.locked: set[int] = set()
        """Deliveries that are settled while their messages are locked: a transaction was rolled back."""

    async def attach(self, address: str, timeout: float) -> None:
        await self.connection.attach_receiver(self, address, timeout, settled=self.delete)
        self.request()

    # ---- credit ----------------------------------------------------------------------------------

    def request(self) -> None:
        """Give the broker credit for the messages that may come."""
        room = self._credit - len(self._buffer)
        if room > 0 and self.link.credit <= room // 2:
            self.link.grant(room)
            self.connection.touch()

    def can_serve(self, call: WaitingReceive) -> bool:
        """Whether the call gets what is in the buffer now."""
        return bool(self._buffer)

    def expire(self, call: WaitingReceive) -> None:
        """End a call, because its time has passed."""
        self._end(call)

    def cancelled(self) -> None:
        """A call was cancelled: it takes no messages."""

    # ---- receiving -------------------------------------------------------------------------------

    async def receive(self, most: int, timeout: float) -> list[Received]:
        """Return the messages that are there, at most `most`, or the first that come within `timeout` seconds. Returns none
        also if the link has ended: see `error`."""
        call = WaitingReceive(most, self._loop)
        if self._buffer and not self._waiting and self.can_serve(call):
            taken = self._take(most)
            if self.error is None:
                self.request()
            return taken
        if self.error is not None:
            return []
        self._waiting.append(call)
        self.demand += most
        self.request()
        call.timer = self._loop.call_later(timeout, self.expire, call)
        try:
            return await call.result
        except asyncio.CancelledError:
            self._withdraw(call)
            raise
        finally:
            call.timer.cancel()

    def _withdraw(self, call: WaitingReceive) -> None:
        """Forget a cancelled call. If it was served, its messages are for the next one."""
        if call.result.done() and not call.result.cancelled():
            self._buffer.extendleft(reversed(call.result.result()))
            self.serve()
        else:
            self._waiting.remove(call)
            self._left(call)
        self.cancelled()

    def serve(self) -> None:
        """Pass messages on to the calls that wait, in their order."""
        waiting = self._waiting
        while waiting and self.can_serve(waiting[0]):
            call = waiting.popleft()
            self._left(call)
            if not call.result.done():
                call.result.set_result(self._take(call.most))

    def _left(self, call: WaitingReceive) -> None:
        if not call.has_expired:
            self.demand -= call.most

    def _take(self, most: int) -> list[Received]:
        buffer = self._buffer
        if len(buffer) <= most:
            taken = list(buffer)
            buffer.clear()
            return taken
        return [buffer.popleft() for _ in range(most)]

    def _end(self, call: WaitingReceive) -> None:
        """End a call without messages."""
        if call in self._waiting:
            self._waiting.remove(call)
            self._left(call)
        if not call.result.done():
            call.result.set_result([])

    def keep(self, deliveries: list[Delivery]) -> None:
        """Add messages to the buffer."""
        self._buffer.extend([Received(self, delivery) for delivery in deliveries])
        if not self.delete:
            self._held.update([delivery.id for delivery in deliveries])

    def arrived(self, deliveries: list[Delivery]) -> None:
        self.keep(deliveries)
        self.serve()
        self.request()

    # ---- settlement ------------------------------------------------------------------------------

    async def settle(self, ids: list[int], state: bytes, code: int) -> None:
        """Settle deliveries. Raises SettleFailed. If no answer comes, the connection is closed."""
        settlement = _Settlement(ids, code, self._loop, self._give_up)
        held = [number for number in ids if number in self._held]
        self._held.difference_update(held)
        for number in held:
            self._settling[number] = settlement
        if len(held) < len(ids):
            for number in set(ids).difference(held):
                settlement.answered(number, _SETTLED_BEFORE)
        if held:
            self.link.dispose(held, state, False)
            self.connection.touch()
            self._watch.begin(settlement)
            try:
                await settlement.done
            finally:
                self._watch.end(settlement)
        if settlement.failed:
            first = settlement.failed[min(settlement.failed)]
            text = f"Of {len(ids)} messages {len(settlement.failed)} were not settled. {first[1]}"
            raise SettleFailed(text, first[0], settlement.failed)

    def _give_up(self) -> None:
        """Close the connection, since a settlement was not answered. Its messages fail with the link."""
        text = f"No answer to a settlement for {self._timeout:g} s: the connection is given up."
        lost = ConnectionLost(text)
        self.connection.abort(lost)

    def release(self, messages: list[Received]) -> None:
        """Return messages to the broker. Their delivery counts do not rise."""
        ids = [message.delivery_id for message in messages]
        self._held.difference_update(ids)
        self.link.dispose(ids, RELEASE, True)
        self.connection.touch()

    def still_locked(self, ids: list[int]) -> None:
        """Note that the transaction in which these deliveries were settled was rolled back."""
        if self.error is None:
            self.locked.update(ids)

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        self._watch.answered()
        for number in ids:
            settlement = self._settling.pop(number, None)
            if settlement is not None:
                settlement.answered(number, outcome)

    # ---- the end ---------------------------------------------------------------------------------

    def ended(self, error: BusbarClientError) -> None:
        self.error = error
        self._watch.stop()
        if not self.delete:
            self._buffer.clear()  # their locks are lost
        settling, self._settling = self._settling, {}
        denial = Outcome(REJECTED, AmqpError(error.condition, error.text))
        for number, settlement in settling.items():
            settlement.answered(number, denial)
        for call in list(self._waiting):
            self._end(call)

    def close(self, release: bool = False) -> None:
        """Close the link. Messages that no call has got are released, with `release` also those that are not settled."""
        if self.error is not None:
            return
        given_back = [received.delivery_id for received in self._buffer]
        if release:
            given_back = sorted(self._held)
        if given_back and not self.delete:
            self.link.dispose(given_back, RELEASE, True)
        self.ended(ConnectionLost("The receiver was closed by its owner."))
        self.connection.detach(self.link)
