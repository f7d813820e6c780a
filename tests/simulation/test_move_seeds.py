"""Long lives of queues and a topic that move messages to each other, from printed seeds (move_checker.py says what is
checked), and sequences that once failed.

`make simulate WORLD=moves SEED=n` replays a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, OUTBOX, TRANSFER_DEAD, VIA, Draft
from busbar.model.settings import ForwardSettings
from harness.simulated_host import JobFault
from tests.simulation.campaign import run_lives
from tests.simulation.move_checker import Transaction, make_draft, name_of
from tests.simulation.move_life import MoveLife
from tests.simulation.move_world import LETTERS, TOPIC, MoveWorld

SOURCE, TARGET = 10, 11


def begin(stores: int = 2, with_topic: bool = False) -> MoveWorld:
    """Everything fits into memory and into a turn."""
    world = MoveWorld(0, 2, stores, with_topic=with_topic, bounds=Bounds())
    settle(world)
    return world


def settle(world: MoveWorld) -> None:
    """Do all that can be done now."""
    while world._proceed():
        world.check()
    world.check()


def via(name: str, target: int) -> Draft:
    draft = make_draft(name)
    draft.target, draft.kind, draft.path = target, VIA, f"entity {target}"
    return draft


def send(world: MoveWorld, fragment: int, *drafts: Draft) -> list[e.Effect | None]:
    answers: list[e.Effect | None] = []
    world.submit(c.Send(fragment, 1, 1, list(drafts), True), answers.append)
    return answers


def forward_to(world: MoveWorld, fragment: int, target: int) -> None:
    forward = ForwardSettings(f"entity {target}", [target])
    world.change(fragment, world.make_settings(fragment, forward=forward))


def names_in(world: MoveWorld, fragment: int, lane: int = ACTIVE) -> list[str]:
    return [name_of(record) for record in world.stores()[fragment].lanes[lane].records.values()]


def via_and_forwarded_in_one_send() -> None:
    """A message for another entity and one that is forwarded there come in one send."""
    world = begin()
    forward_to(world, SOURCE, TARGET)
    sent = send(world, SOURCE, via("m1", TARGET), make_draft("m2"), via("m3", TARGET))
    settle(world)
    assert isinstance(sent[0], e.Sent)
    assert sorted(names_in(world, TARGET)) == ["m1:", "m2:", "m3:"]
    assert world.stores()[SOURCE].outbox == {}


def refused_and_repeated() -> None:
    """A move that was refused is repeated when its record has been dead-lettered."""
    world = begin()
    world.change(TARGET, world.make_settings(TARGET, can_send=False))
    send(world, SOURCE, via("m1", TARGET))
    settle(world)
    assert names_in(world, SOURCE, TRANSFER_DEAD) == ["m1:"]
    world.change(TARGET, world.make_settings(TARGET))
    (take,) = world.sent_takes
    world.repeat(take)
    settle(world)
    assert names_in(world, TARGET) == [] and names_in(world, SOURCE, TRANSFER_DEAD) == ["m1:"]


def refused_and_late_after_a_crash() -> None:
    """A move that was refused arrives once more at the process that took the target's place."""
    world = begin()
    world.change(TARGET, world.make_settings(TARGET, can_send=False))
    send(world, SOURCE, via("m1", TARGET))
    settle(world)
    assert names_in(world, SOURCE, TRANSFER_DEAD) == ["m1:"]
    world.crash(world.process_of(world.home[TARGET]), landed=True)
    world.change(TARGET, world.make_settings(TARGET))
    settle(world)
    (take,) = world.sent_takes
    world.repeat(take)
    settle(world)
    assert names_in(world, TARGET) == [] and names_in(world, SOURCE, TRANSFER_DEAD) == ["m1:"]


def taken_and_unheard() -> None:
    """The target has taken a page in a commit of unknown outcome: the page comes again, and is not stored again."""
    world = begin()
    send(world, SOURCE, via("m1", TARGET), via("m2", TARGET))
    source, target = world.hosts
    world.drain(source)
    world.move(world.processes[0])
    world.drain(source)
    world.move(world.processes[0])
    ((process, store, link),) = world.links()
    world.carry(process, store, link, False)
    target.turn()
    world.work(target, JobFault.UNHEARD)
    world.check()
    assert names_in(world, TARGET) == ["m1:", "m2:"]
    assert len(names_in(world, SOURCE, OUTBOX)) == 2
    world.heal()
    assert names_in(world, TARGET) == ["m1:", "m2:"]
    assert len(world.sent_takes) == 2


def through_a_topic_to_a_queue() -> None:
    """A message is forwarded to a topic, and one of its subscriptions forwards its copy to a queue."""
    world = begin(with_topic=True)
    forward_to(world, SOURCE, TOPIC)
    first, second = LETTERS
    forward_to(world, first, TARGET)
    send(world, SOURCE, make_draft("m1"), make_draft("m2"))
    settle(world)
    assert names_in(world, TARGET) == ["m1:a", "m2:a"]
    assert names_in(world, second) == ["m1:b", "m2:b"] and names_in(world, first) == []


def answered(
    world: MoveWorld, one: Transaction, answers: list[e.Effect | None], answer: e.Effect | None
) -> None:
    answers.append(answer)
    world.checker.transacted(one, answer)


def transaction_over_a_topic() -> None:
    """A transaction completes a message of a subscription and sends to its topic; its commit is lost, then made."""
    world = begin(with_topic=True)
    first = next(iter(LETTERS))
    send(world, TOPIC, make_draft("m1"))
    settle(world)
    for fault in (JobFault.LOST, None):
        world.submit(c.Demand(first, 1, 900, ACTIVE, 1, True, False))
        settle(world)
        (held,) = world.held
        world.held = []
        one = Transaction(["m2:"], [held.name])
        world.checker.transactions.append(one)
        answers: list[e.Effect | None] = []
        parts: list[c.TransactionPart] = [
            c.Send(TOPIC, 1, 0, [make_draft("m2")], True),
            c.Settle(first, 1, 0, c.COMPLETE, [held.n], [held.nonce], None, True),
        ]
        world.submit(c.Transact(TOPIC, 1, 1, parts), partial(answered, world, one, answers))
        host = world.hosts[world.home[TOPIC]]
        host.turn()
        world.work(host, fault)
        world.check()
        if fault is not None:
            world.heal()
            world.pass_time(100)  # the lock ends
            settle(world)
            assert isinstance(answers[0], e.Refused) and not answers[0].certain
            assert names_in(world, first) == ["m1:a"]
    settle(world)
    assert isinstance(answers[0], e.Done)
    assert names_in(world, first) == ["m2:a"] and one.completed == ["m1:a"]


SCENARIOS = [
    via_and_forwarded_in_one_send,
    refused_and_repeated,
    refused_and_late_after_a_crash,
    taken_and_unheard,
    through_a_topic_to_a_queue,
    transaction_over_a_topic,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[], None]) -> None:
    scenario()


def test_lives() -> None:
    lives = run_lives(MoveLife, 100, 10_000)
    checkers = [life.world.checker for life in lives]
    if len(lives) > 1:
        assert sum(len(checker.accepted) for checker in checkers) > 10 * len(lives)
        assert sum(checker.arrived for checker in checkers) > 4 * len(lives)
        assert sum(checker.published for checker in checkers) > 2 * len(lives)
        assert sum(checker.shown for checker in checkers) > len(lives)
        assert sum(life.accepted_sessions for life in lives) > len(lives) // 5
        done = [one for checker in checkers for one in checker.transactions if one.outcome == "done"]
        assert len(done) > 2 * len(lives)
