"""Waiting for a message session, without sockets: who is asked when, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from busbar.clock import wall_clock
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.pending import PendingEffect
from busbar.gateway.amqp.session_accepting import accept_named, accept_next
from busbar.gateway.wake_timer import WakeTimer
from busbar.model.commands import AcceptSession, AwaitSession, CancelAwait, Command, Leave
from busbar.model.effects import Effect, Refused, SessionAccepted, SessionOffered
from busbar.model.errors import (
    InternalError,
    InvalidOperation,
    OperationTimeout,
    ServerBusy,
    SessionCannotBeLocked,
)
from busbar.partitions import session_accept
from busbar.partitions.origin import EffectHandler, Wakeable
from busbar.partitions.session_rotation import FragmentRotation, SessionRotations

C = TypeVar("C", bound=Command)
CONSUMER = 7


class Fragments:
    """The connection, with fragments that answer when a test says so."""

    origin = 1

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.waiting: dict[int, EffectHandler] = {}
        self._last = 0
        self._timer = WakeTimer(self.flush)

    def expect(self, who: EffectHandler) -> int:
        self._last += 1
        self.waiting[self._last] = who
        return self._last

    def command(self, command: Command) -> None:
        self.commands.append(command)

    def wake_at(self, who: Wakeable, at: int) -> None:
        self._timer.wake_at(who, at)

    def flush(self) -> None:
        pass

    def forget_request(self, number: int) -> None:
        self.waiting.pop(number, None)

    async def ask(self, build: Callable[[int], Command]) -> Effect:
        future: asyncio.Future[Effect] = asyncio.get_running_loop().create_future()
        self.command(build(self.expect(PendingEffect(future))))
        return await future

    # The test's side

    def said(self, kind: type[C]) -> list[C]:
        return [command for command in self.commands if isinstance(command, kind)]

    def asked(self, kind: type[Command]) -> list[int]:
        """The fragments that got commands of a kind, in their order."""
        return [command.fragment for command in self.said(kind)]

    def last(self, kind: type[C], fragment: int) -> C:
        return [command for command in self.said(kind) if command.fragment == fragment][-1]

    def answer(self, command: Command, effect: Effect) -> None:
        who = self.waiting.pop(command.request, None)
        if who is not None:
            who.answered(effect, wall_clock())

    def offer(self, fragment: int) -> None:
        await_ = self.last(AwaitSession, fragment)
        self.answer(await_, SessionOffered(1, await_.request))

    def give(self, fragment: int, session: str) -> None:
        claim = self.last(AcceptSession, fragment)
        self.answer(claim, SessionAccepted(1, claim.request, CONSUMER, session, 5_000))

    def refuse(
        self, kind: type[Command], fragment: int, error: type[Any], text: str = "no", certain: bool = True
    ) -> None:
        command = self.last(kind, fragment)
        self.answer(command, Refused(1, command.request, error.condition, text, certain))

    def locks_left(self) -> list[int]:
        """Fragments whose last word on our consumer is a claim."""
        last: dict[int, type[Command]] = {}
        for command in self.commands:
            if isinstance(command, AcceptSession | Leave):
                last[command.fragment] = type(command)
        return [fragment for fragment, kind in last.items() if kind is AcceptSession]

    def awaits_left(self) -> set[int]:
        return {command.request for command in self.said(AwaitSession)} - self.over

    @property
    def over(self) -> set[int]:
        cancelled = {command.awaited for command in self.said(CancelAwait)}
        answered = {
            command.request for command in self.said(AwaitSession) if command.request not in self.waiting
        }
        return cancelled | answered


@pytest.fixture
def fragments() -> Fragments:
    return Fragments()


def waiting(
    fragments: Fragments, count: int = 3, first: int = 0, wait: float = 10
) -> asyncio.Task[tuple[int, SessionAccepted]]:
    turns = FragmentRotation(count)
    for _ in range(first):
        turns.begin()
    return begin(fragments, turns, wait)


def begin(
    fragments: Fragments, turns: FragmentRotation, wait: float = 10
) -> asyncio.Task[tuple[int, SessionAccepted]]:
    ids = [100 + index for index in range(turns.fragments)]
    return asyncio.create_task(accept_next(cast(LinkConnection, fragments), ids, CONSUMER, turns, wait))


async def turn() -> None:
    """Until every fragment has had the time to say what it has now."""
    await asyncio.sleep(1.5 * session_accept.FIRST_WAIT_MS / 1000)


async def test_all_are_awaited_and_only_who_offered_is_asked(fragments: Fragments) -> None:
    accepting = waiting(fragments)
    await turn()
    assert fragments.asked(AwaitSession) == [100, 101, 102]
    assert fragments.asked(AcceptSession) == []

    fragments.offer(101)
    assert fragments.asked(AcceptSession) == [101]
    assert fragments.said(AcceptSession)[0].session is None
    fragments.give(101, "s")

    index, accepted = await accepting
    assert (index, accepted.session) == (1, "s")
    assert sorted(fragments.asked(CancelAwait)) == [100, 102]
    assert fragments.asked(Leave) == []
    assert not fragments.waiting and not fragments.awaits_left()


async def test_the_quickest_does_not_come_before_its_turn(fragments: Fragments) -> None:
    accepting = waiting(fragments, first=1)
    await asyncio.sleep(0)
    fragments.offer(100)
    fragments.offer(102)
    assert fragments.asked(AcceptSession) == [], "101 is first, and may still answer"
    await turn()
    assert fragments.asked(AcceptSession) == [102], "then the next in the order 101, 102, 100"
    fragments.give(102, "s")
    assert (await accepting)[0] == 2


async def test_whose_turn_it_is_need_not_wait(fragments: Fragments) -> None:
    accepting = waiting(fragments, first=1)
    await asyncio.sleep(0)
    fragments.offer(101)
    assert fragments.asked(AcceptSession) == [101]
    fragments.give(101, "s")
    assert (await accepting)[0] == 1


async def test_never_two_claims_at_a_time(fragments: Fragments) -> None:
    accepting = waiting(fragments)
    await turn()
    fragments.offer(102)
    fragments.offer(101)
    fragments.offer(100)
    assert fragments.asked(AcceptSession) == [102]

    fragments.refuse(AcceptSession, 102, OperationTimeout)
    assert fragments.asked(AcceptSession) == [102, 100]
    assert fragments.asked(AwaitSession)[3:] == [102], "who lost a race is awaited again"
    fragments.give(100, "s")

    assert (await accepting)[0] == 0
    assert fragments.locks_left() == [102, 100], "a refused claim has locked nothing"
    assert sorted(fragments.asked(CancelAwait)) == [101, 102], "what was offered and not used is given back"


async def test_of_those_that_have_offered_the_next_in_turn_is_taken(fragments: Fragments) -> None:
    turns = SessionRotations().of("Q", 3)
    turns.begin()
    accepting = asyncio.create_task(
        accept_next(cast(LinkConnection, fragments), [100, 101, 102], CONSUMER, turns, 9)
    )
    await turn()
    assert fragments.asked(AwaitSession) == [101, 102, 100]
    fragments.offer(101)
    fragments.offer(100)
    fragments.offer(102)
    fragments.refuse(AcceptSession, 101, OperationTimeout)
    assert fragments.asked(AcceptSession) == [101, 102]
    fragments.give(102, "s")
    assert (await accepting)[0] == 2
    assert turns.begin()[0] == [0, 1, 2], "0 is behind 2"


# ---- one asked alone ----


async def test_a_fragment_that_had_sessions_is_asked_alone(fragments: Fragments) -> None:
    accepting = begin(fragments, alone_at(1))
    await asyncio.sleep(0)
    fragments.give(101, "s")
    assert (await accepting)[0] == 1
    assert fragments.asked(AcceptSession) == [101]
    assert fragments.asked(AwaitSession) == fragments.asked(CancelAwait) == []


async def test_all_are_awaited_if_it_has_none_left(fragments: Fragments) -> None:
    turns = alone_at(1)
    accepting = begin(fragments, turns)
    await asyncio.sleep(0)
    fragments.refuse(AcceptSession, 101, OperationTimeout)
    assert fragments.asked(AwaitSession) == [101, 102, 100]
    fragments.offer(102)
    fragments.give(102, "s")
    assert (await accepting)[0] == 2
    assert sorted(fragments.asked(CancelAwait)) == [100, 101]
    assert turns.begin()[0][0] == 2, "101 has none now"


@pytest.mark.parametrize("error", [ServerBusy, InternalError])
async def test_the_others_are_awaited_if_it_is_out(fragments: Fragments, error: type[Any]) -> None:
    accepting = begin(fragments, alone_at(1))
    await asyncio.sleep(0)
    fragments.refuse(AcceptSession, 101, error)
    assert fragments.asked(AwaitSession) == [102, 100]
    fragments.offer(102)
    fragments.give(102, "s")
    assert (await accepting)[0] == 2


async def test_a_late_offer_is_for_who_has_waited(
    fragments: Fragments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_accept, "AT_ONCE_MS", 10)
    turns = FragmentRotation(1)
    accepting = begin(fragments, turns)
    await turn()
    fragments.offer(100)
    assert turns.begin()[1] is False, "who comes now awaits its turn behind it"
    fragments.give(100, "s")
    await accepting


async def test_who_lost_a_race_makes_others_wait_behind_it(fragments: Fragments) -> None:
    turns = FragmentRotation(1)
    accepting = begin(fragments, turns)
    await asyncio.sleep(0)
    fragments.offer(100)
    assert turns.begin()[1] is True
    fragments.refuse(AcceptSession, 100, OperationTimeout)
    assert turns.begin()[1] is False
    fragments.offer(100)
    fragments.give(100, "s")
    await accepting


async def test_one_that_hangs_is_not_asked_first_by_others(
    fragments: Fragments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_accept, "SLOW_MS", 10)
    turns = alone_at(1)
    accepting = begin(fragments, turns)
    await asyncio.sleep(0.05)
    assert turns.begin()[1] is False
    assert fragments.asked(AwaitSession) == [], "this one waits for it: nobody knows what it has done"
    accepting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await accepting
    assert fragments.locks_left() == []


def alone_at(index: int, count: int = 3) -> FragmentRotation:
    """That fragment is known to have sessions, and no other."""
    turns = FragmentRotation(count)
    turns.begin()
    turns.mark_available(index)
    return turns


def test_fragments_take_turns() -> None:
    turns = SessionRotations().of("Q", 4)
    order, alone = turns.begin()
    assert (order, alone) == ([0, 1, 2, 3], False)
    for index in (0, 1, 3):
        turns.mark_available(index)
    asked = [turns.begin() for _ in range(4)]
    assert [order[0] for order, _ in asked] == [1, 3, 0, 1]
    assert [alone for _, alone in asked] == [True, True, True, False], "all are asked from time to time"
    turns.mark_accepted(3, first=1)
    assert turns.begin()[0][0] == 0


def test_entities_have_turns_of_their_own() -> None:
    turns = SessionRotations()
    turns.of("q", 3).begin()
    assert turns.of("Q", 3) is turns.of("q", 3), "names do not differ in their case"
    assert turns.of("q", 3).begin()[0][0] == 1
    assert turns.of("other", 3).begin()[0][0] == 0
    assert turns.of("q", 16).begin()[0][0] == 0, "another entity of that name"


# ---- however it ends ----


async def test_time_is_up(fragments: Fragments) -> None:
    with pytest.raises(OperationTimeout):
        await waiting(fragments, wait=0)
    assert fragments.asked(CancelAwait) == [100, 101, 102]
    assert not fragments.waiting and fragments.asked(AcceptSession) == []


async def test_time_is_up_while_a_claim_is_under_way(fragments: Fragments) -> None:
    accepting = waiting(fragments, wait=0)
    await turn()
    fragments.offer(100)
    with pytest.raises(OperationTimeout):
        await accepting
    assert fragments.asked(Leave) == [100]
    fragments.give(100, "late")
    assert fragments.locks_left() == []


async def test_a_client_that_vanishes_leaves_no_lock_and_no_waiter(fragments: Fragments) -> None:
    accepting = waiting(fragments)
    await turn()
    fragments.offer(100)
    accepting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await accepting
    assert sorted(fragments.asked(CancelAwait)) == [101, 102]
    assert fragments.asked(Leave) == [100]
    assert fragments.locks_left() == []


async def test_a_client_that_vanishes_in_the_moment_of_acceptance(fragments: Fragments) -> None:
    accepting = waiting(fragments)
    await turn()
    fragments.offer(100)
    fragments.give(100, "s")  # the answer is there, and nobody has looked at it yet
    accepting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await accepting
    assert fragments.asked(Leave) == [100]


async def test_a_fragment_that_is_out_does_not_delay_the_others(
    fragments: Fragments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_accept, "RETRY_MS", 10)
    accepting = waiting(fragments)
    await turn()
    fragments.refuse(AwaitSession, 100, ServerBusy)
    fragments.refuse(AwaitSession, 101, ServerBusy)
    await asyncio.sleep(0.03)
    assert fragments.asked(AwaitSession).count(100) == 2, "asked again, once it has answered"
    fragments.offer(102)
    fragments.refuse(AcceptSession, 102, ServerBusy)
    fragments.offer(100)
    fragments.give(100, "s")
    assert (await accepting)[0] == 0
    assert not fragments.waiting


async def test_a_claim_of_unknown_outcome_is_left(fragments: Fragments) -> None:
    accepting = waiting(fragments)
    await turn()
    fragments.offer(100)
    fragments.refuse(AcceptSession, 100, InternalError, certain=False)
    assert fragments.asked(Leave) == [100]
    fragments.offer(101)
    fragments.give(101, "s")
    assert (await accepting)[0] == 1


async def test_a_claim_is_waited_for_and_no_other_made(fragments: Fragments) -> None:
    """An accept holds one lock at most, even in passing: nobody knows what a fragment that is silent has done."""
    accepting = waiting(fragments)
    await turn()
    fragments.offer(100)
    fragments.offer(101)
    await asyncio.sleep(0.15)
    assert fragments.asked(AcceptSession) == [100]
    fragments.give(100, "late")
    index, accepted = await accepting
    assert (index, accepted.session) == (0, "late")
    assert fragments.locks_left() == [100]


async def test_a_store_that_goes_out_after_its_offer_does_not_keep_the_accept(fragments: Fragments) -> None:
    accepting = waiting(fragments)
    await turn()
    fragments.offer(100)
    fragments.offer(101)
    fragments.refuse(AcceptSession, 100, ServerBusy, certain=False)
    assert fragments.asked(AcceptSession) == [100, 101]
    assert fragments.locks_left() == [101]
    fragments.give(101, "s")
    assert (await accepting)[0] == 1


async def test_if_all_are_out_the_client_hears_that_instead_of_a_time_out(fragments: Fragments) -> None:
    accepting = waiting(fragments, count=1, wait=0.1)
    await turn()
    fragments.refuse(AwaitSession, 100, ServerBusy, "The store is unavailable.")
    with pytest.raises(ServerBusy, match="The store is unavailable"):
        await accepting


async def test_what_cannot_get_better_is_said_at_once(fragments: Fragments) -> None:
    accepting = waiting(fragments)
    await turn()
    fragments.refuse(AwaitSession, 101, InvalidOperation)
    with pytest.raises(InvalidOperation):
        await accepting
    assert fragments.asked(CancelAwait) == [100, 102]


async def test_a_named_session(fragments: Fragments) -> None:
    accepting = asyncio.create_task(accept_named(cast(LinkConnection, fragments), 100, CONSUMER, ""))
    await turn()
    assert fragments.said(AcceptSession)[0].session == "", "the empty string is a session like any other"
    fragments.give(100, "")
    assert (await accepting).session == ""
    assert fragments.asked(Leave) == []


async def test_a_named_session_that_is_held(fragments: Fragments) -> None:
    accepting = asyncio.create_task(accept_named(cast(LinkConnection, fragments), 100, CONSUMER, "s"))
    await turn()
    fragments.refuse(AcceptSession, 100, SessionCannotBeLocked)
    with pytest.raises(SessionCannotBeLocked):
        await accepting
    assert fragments.asked(Leave) == []


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_named_session_nobody_waits_for_any_more(fragments: Fragments, cancelled: bool) -> None:
    accepting = asyncio.create_task(accept_named(cast(LinkConnection, fragments), 100, CONSUMER, "s"))
    await turn()
    if cancelled:
        accepting.cancel()
    else:
        fragments.refuse(AcceptSession, 100, InternalError, certain=False)
    with pytest.raises((asyncio.CancelledError, InternalError)):
        await accepting
    assert fragments.locks_left() == []
