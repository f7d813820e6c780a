"""The quota of a gateway with others: what waits for the counter, and what happens when it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from busbar.cluster import shared_quota
from busbar.cluster.connection_counter import ConnectionCounter, CountedGateway
from busbar.cluster.shared_quota import SharedQuota
from busbar.model.errors import ServerBusy
from busbar.model.limits import Limits
from harness.waiting import until

LIMITS = Limits(max_connections=4, max_entity_connections=2)


class Counter(CountedGateway):
    """A counter that can be out of reach, or slow."""

    def __init__(self, counter: ConnectionCounter, gateway: str) -> None:
        counter.report(gateway, {})
        super().__init__(counter, gateway)
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_lost = False
        self.reported: Mapping[str, int] = {}

    async def take_connections(self, subject: str, count: int) -> int:
        await self.answers.wait()
        if self.is_lost:
            raise ServerBusy("The namespace is out of reach.")
        return await super().take_connections(subject, count)

    def report_connections(self, held: Mapping[str, int]) -> None:
        self.reported = held
        super().report_connections(held)


async def test_two_gateways_have_the_limit_together() -> None:
    counter = ConnectionCounter(LIMITS)
    one, two = (SharedQuota(Counter(counter, name), LIMITS, lambda: 2) for name in "ab")
    assert not one.take("q") and await one.request("q")
    assert await two.request("q")
    assert not await one.request("q")
    two.release("q")
    assert await one.request("q")
    assert not await two.request("q") and await two.request("other")


async def test_one_that_no_longer_waits_is_not_counted() -> None:
    counter = ConnectionCounter(LIMITS)
    slow = Counter(counter, "a")
    quota = SharedQuota(slow, LIMITS, lambda: 1)
    slow.answers.clear()
    asked = [asyncio.ensure_future(quota.request("q")) for _ in range(4)]
    await asyncio.sleep(0)
    for one in asked[:2]:
        one.cancel()
    await asyncio.sleep(0)
    slow.answers.set()
    assert await asyncio.gather(*asked[2:]) == [True, True]


@pytest.mark.parametrize("is_first", [True, False])
async def test_one_that_is_cancelled_as_it_is_admitted_is_not_counted(is_first: bool) -> None:
    slow = Counter(ConnectionCounter(LIMITS), "a")
    quota = SharedQuota(slow, LIMITS, lambda: 1)
    slow.answers.clear()
    late = asyncio.ensure_future(quota.request("q"))
    await asyncio.sleep(0)
    if is_first:
        late.cancel()
    quota._decide("q", quota._share.answered("q", 1))
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    slow.answers.set()
    assert [await quota.request("q") for _ in range(3)] == [True, True, False]


async def test_without_the_counter_there_is_an_even_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_quota, "ANSWER_SECONDS", 0.01)
    counter = ConnectionCounter(LIMITS)
    far = Counter(counter, "a")
    quota = SharedQuota(far, LIMITS, lambda: 2)
    far.answers.clear()
    assert [await quota.request("") for _ in range(3)] == [True, True, False], "it does not answer"
    far.is_lost = True
    far.answers.set()
    await until(lambda: not quota._share._parts[""].is_asked)
    assert not await quota.request("")

    far.is_lost = False
    quota.counter_changed()
    assert far.reported == {"": 2}
    assert [await quota.request("") for _ in range(3)] == [True, True, False]


async def test_what_is_not_used_is_returned_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_quota, "PERIOD_SECONDS", 0.01)
    limits = Limits(max_connections=100)
    counter = ConnectionCounter(limits)
    first, second = Counter(counter, "a"), Counter(counter, "b")
    one, two = SharedQuota(first, limits, lambda: 1), SharedQuota(second, limits, lambda: 1)
    assert await one.request("")
    assert counter._sums[""] == 3, "a block"
    await until(lambda: counter._sums[""] == 1)
    assert [await two.request("") for _ in range(100)] == [True] * 99 + [False]
