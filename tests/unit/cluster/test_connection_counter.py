"""Limits of connections over several gateways: the counter and the shares, with their messages on the way."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from busbar.cluster.connection_counter import UNKNOWN, ConnectionCounter, block_of
from busbar.cluster.connection_share import ConnectionShare, Decided
from busbar.model.limits import Limits

LIMITS = Limits(max_connections=1_000, max_entity_connections=100)


@pytest.mark.parametrize(
    ("subject", "limit", "gateways", "block"),
    [("", 5_000, 2, 64), ("q", 5_000, 2, 16), ("", 5_000, 64, 2), ("q", 5, 4, 1), ("", 1, 64, 1)],
)
def test_blocks_are_small_beside_the_limit(subject: str, limit: int, gateways: int, block: int) -> None:
    limits = Limits(max_connections=limit, max_entity_connections=limit)
    assert block_of(subject, limits, gateways) == block


def test_of_the_last_parts_each_gateway_gets_a_few() -> None:
    counter = ConnectionCounter(LIMITS)
    for gateway in "ab":
        counter.report(gateway, {})
    assert counter.take("a", "q", 16) == 16
    assert counter.take("b", "q", 80) == 42
    assert counter.take("a", "q", 80) == 21
    for _ in range(8):
        counter.take("a", "q", 80)
    assert counter.take("b", "q", 80) == 0
    assert counter.take("b", "other", 80) == 50, "each entity has its own"


def test_a_new_counter_gives_nothing_before_all_have_reported() -> None:
    counter = ConnectionCounter(LIMITS)
    counter.expect("a")
    counter.expect("b")
    counter.report("a", {"q": 90})
    assert counter.take("a", "q", 1) == UNKNOWN
    assert counter.take("b", "q", 1) == UNKNOWN
    counter.report("b", {"q": 30})
    assert counter.take("a", "q", 1) == 0, "they had more than the limit while there was no counter"
    counter.put_back("a", "q", 25)
    assert counter.take("b", "q", 1) == 1
    counter.expect("b")
    assert counter.take("b", "q", 1) == 1, "it has reported"
    counter.expect("c")
    assert counter.take("b", "q", 1) == UNKNOWN
    counter.ended("c")
    assert counter.take("b", "q", 1) == 1


def test_without_a_counter_a_gateway_has_its_even_share() -> None:
    share = ConnectionShare(LIMITS, lambda: 4)
    for _ in range(30):
        share.wait("q")
    assert share.question("q") == 30
    assert share.unanswered("q", over=True) == Decided(25, 5)
    assert share.report() == {"q": 25}
    share.wait("q")
    assert share.question("q") == 1
    assert share.answered("q", UNKNOWN) == Decided(0, 1)


def test_an_answer_that_comes_late_counts_for_what_was_admitted_meanwhile() -> None:
    share = ConnectionShare(LIMITS, lambda: 4)
    share.wait("q")
    asked = share.question("q")
    assert share.unanswered("q", over=False) == Decided(1, 0)
    share.wait("q")
    assert share.question("q") == 0, "the first question is still open"
    assert share.answered("q", asked) == Decided(0, 0)
    assert share.question("q") == 1
    assert share.answered("q", 1) == Decided(1, 0)
    assert share.report() == {"q": 2}


def test_parts_that_are_not_used_for_a_period_are_returned() -> None:
    share = ConnectionShare(Limits(max_entity_connections=5_000), lambda: 2)
    share.wait("q")
    assert share.question("q") == 16
    share.answered("q", 16)
    assert share.period_ended() == {}, "it was not a whole period"
    assert share.take("q")
    assert share.period_ended() == {"q": 14}
    assert share.period_ended() == {}
    assert share.release("q") == 0
    assert share.release("q") == 0
    assert share.period_ended() == {}
    assert share.period_ended() == {"q": 2}


class World:
    """Gateways and a counter. Each direction of each channel keeps its order, and is delayed at random."""

    def __init__(self, seed: int, limit: int, gateways: int) -> None:
        self.random = Random(seed)
        self.limit = limit
        self.limits = Limits(max_connections=limit, max_entity_connections=limit)
        self.counter = ConnectionCounter(self.limits)
        self.names = [f"gateway-{number}" for number in range(gateways)]
        self.begun = 0
        self.start_all()

    def start_all(self) -> None:
        self.shares: dict[str, ConnectionShare] = {}
        self.to_counter: dict[str, deque[tuple[str, int]]] = {}
        self.from_counter: dict[str, deque[int]] = {}
        self.used: dict[str, int] = {}
        self.refused = 0
        for name in [*self.names]:
            self.start(name)

    def start(self, name: str) -> None:
        self.shares[name] = ConnectionShare(self.limits, lambda: len(self.names))
        self.to_counter[name], self.from_counter[name], self.used[name] = deque(), deque(), 0
        self.counter.report(name, {})

    def step(self) -> None:
        name = self.random.choice(self.names)
        match self.random.choices(range(7), (4, 3, 3, 3, 1, 0.2, 0.05))[0]:
            case 0:
                self.connect(name)
            case 1 if self.used[name]:
                self.used[name] -= 1
                self.give_back(name, self.shares[name].release("q"))
            case 2:
                self.counter_reads(name)
            case 3:
                self.gateway_reads(name)
            case 4:
                for count in self.shares[name].period_ended().values():
                    self.give_back(name, count)
            case 5:  # killed: its connections end, and the process was reaped
                self.counter.ended(name)
                self.start(name)
        assert sum(self.used.values()) <= self.limit

    def connect(self, name: str) -> None:
        share = self.shares[name]
        if share.take("q"):
            self.used[name] += 1
            return
        share.wait("q")
        self.ask(name)

    def ask(self, name: str) -> None:
        count = self.shares[name].question("q")
        if count:
            self.to_counter[name].append(("take", count))

    def give_back(self, name: str, count: int) -> None:
        if count:
            self.to_counter[name].append(("return", count))

    def counter_reads(self, name: str) -> None:
        if self.to_counter[name]:
            kind, count = self.to_counter[name].popleft()
            if kind == "take":
                self.from_counter[name].append(self.counter.take(name, "q", count))
            else:
                self.counter.put_back(name, "q", count)

    def gateway_reads(self, name: str) -> None:
        if self.from_counter[name]:
            decided = self.shares[name].answered("q", self.from_counter[name].popleft())
            self.used[name] += decided.admitted
            self.refused += decided.refused
            self.ask(name)

    def settle(self) -> None:
        """Let all messages arrive."""
        while any(self.to_counter.values()) or any(self.from_counter.values()):
            for name in self.names:
                self.counter_reads(name)
                self.gateway_reads(name)


@pytest.mark.parametrize("limit", (1, 5, 40, 400))
@pytest.mark.parametrize("seed", range(8))
def test_the_sum_is_never_above_the_limit_and_all_of_it_can_be_had(seed: int, limit: int) -> None:
    gateways = 2 + seed % 3
    world = World(seed, limit, gateways)
    for _ in range(3_000):
        world.step()
    world.settle()
    for name in world.names:
        while world.used[name]:
            world.used[name] -= 1
            world.give_back(name, world.shares[name].release("q"))
    for _ in range(2):  # what lies unused is returned
        for name in world.names:
            for count in world.shares[name].period_ended().values():
                world.give_back(name, count)
    world.settle()
    for name in world.names:
        assert world.shares[name].report() == {}
    # One gateway alone gets all of it, and not one more.
    world.refused = 0
    for _ in range(limit + 1):
        world.connect(world.names[-1])
        world.settle()
    assert (world.used[world.names[-1]], world.refused) == (limit, 1)


@pytest.mark.parametrize("seed", range(4))
def test_while_nobody_ends_a_small_limit_is_exact(seed: int) -> None:
    """Five connections and four gateways: whoever comes when there are fewer than five gets in."""
    world = World(seed, 5, 4)
    for _ in range(2_000):
        name = world.random.choice(world.names)
        before = sum(world.used.values())
        if world.random.random() < 0.5 and world.used[name]:
            world.used[name] -= 1
            world.give_back(name, world.shares[name].release("q"))
            world.settle()
        else:
            world.connect(name)
            world.settle()
            assert sum(world.used.values()) == min(5, before + 1)
