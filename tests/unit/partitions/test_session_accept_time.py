"""Waiting for a message session while time passes: no event loop, the test is the clock."""

from __future__ import annotations

from busbar.model.commands import AcceptSession, AwaitSession, CancelAwait, Command
from busbar.model.effects import Refused, SessionAccepted, SessionOffered
from busbar.model.errors import BusbarError, OperationTimeout, ServerBusy
from busbar.partitions.origin import DeliveryHandler, EffectHandler, Wakeable
from busbar.partitions.session_accept import FIRST_WAIT_MS, ORDER_WAIT_MS, RETRY_MS, SessionAcceptor
from busbar.partitions.session_rotation import FragmentRotation

FRAGMENTS = (100, 101, 102)


class Accept:
    """One accept with its connection; the test answers for the fragments."""

    def __init__(self, wait_ms: int = 10_000) -> None:
        self.origin = 1
        self.now = 1_000
        self.due = 0
        self.commands: list[Command] = []
        self.result: tuple[int, str] | BusbarError | None = None
        self._requests: dict[int, EffectHandler] = {}
        self.acceptor = SessionAcceptor(self, FRAGMENTS, 7, FragmentRotation(3), self)
        self.acceptor.begin(self.now, wait_ms)

    def accepted(self, index: int, session: SessionAccepted) -> None:
        assert self.result is None
        self.result = index, session.session

    def failed(self, error: BusbarError) -> None:
        assert self.result is None
        self.result = error

    def command(self, command: Command) -> None:
        self.commands.append(command)

    def expect(self, who: EffectHandler) -> int:
        self._requests[len(self._requests) + 1] = who
        return len(self._requests)

    def forget_request(self, number: int) -> None: ...

    def consumer(self, who: DeliveryHandler) -> int:
        raise AssertionError("it has its consumer")

    def forget_consumer(self, number: int) -> None: ...

    def wake_at(self, who: Wakeable, at: int) -> None:
        self.due = at

    def flush(self) -> None: ...

    def pass_time(self, milliseconds: int) -> None:
        end = self.now + milliseconds
        while 0 < self.due <= end:
            self.now = self.due
            self.due = self.acceptor.wake(self.now)
        self.now = end

    def asked(self, kind: type[Command]) -> list[int]:
        return [command.fragment for command in self.commands if isinstance(command, kind)]

    def _last(self, kind: type[Command], fragment: int) -> int:
        return next(
            command.request
            for command in reversed(self.commands)
            if isinstance(command, kind) and command.fragment == fragment
        )

    def offer(self, fragment: int) -> None:
        request = self._last(AwaitSession, fragment)
        self._requests[request].answered(SessionOffered(1, request), self.now)

    def refuse(self, kind: type[Command], fragment: int) -> None:
        request = self._last(kind, fragment)
        self._requests[request].answered(Refused(1, request, ServerBusy.condition, "out"), self.now)

    def give(self, fragment: int) -> None:
        request = self._last(AcceptSession, fragment)
        self._requests[request].answered(SessionAccepted(1, request, 7, "s", 5_000), self.now)


def test_an_offer_waits_for_the_fragment_whose_turn_it_is_but_not_for_long() -> None:
    accept = Accept()
    accept.offer(101)
    accept.pass_time(ORDER_WAIT_MS)
    accept.pass_time(FIRST_WAIT_MS - ORDER_WAIT_MS - 1)
    assert accept.asked(AcceptSession) == []
    accept.pass_time(1)
    assert accept.asked(AcceptSession) == [101]
    accept.give(101)
    assert accept.result == (1, "s")
    accept.acceptor.end(taken=True)
    assert accept.asked(CancelAwait) == [100, 102] and not accept.due


def test_a_fragment_that_is_unavailable_is_asked_again() -> None:
    accept = Accept()
    accept.refuse(AwaitSession, 101)
    accept.pass_time(RETRY_MS - 1)
    assert accept.asked(AwaitSession).count(101) == 1
    accept.pass_time(1)
    assert accept.asked(AwaitSession).count(101) == 2


def test_when_the_time_is_up_the_accept_fails_and_asks_for_nothing_more() -> None:
    accept = Accept(wait_ms=2_000)
    accept.pass_time(1_999)
    assert accept.result is None
    accept.pass_time(1)
    assert isinstance(accept.result, OperationTimeout) and not accept.due
    accept.offer(100)
    assert accept.asked(AcceptSession) == []
    accept.acceptor.end(taken=False)
    assert sorted(accept.asked(CancelAwait)) == [100, 101, 102]


def test_while_all_fragments_are_unavailable_the_accept_fails_with_their_error() -> None:
    accept = Accept(wait_ms=300)
    for fragment in FRAGMENTS:
        accept.refuse(AwaitSession, fragment)
    accept.pass_time(300)
    assert isinstance(accept.result, ServerBusy)
