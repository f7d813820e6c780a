"""Rules that are meant to be slow, and messages with long properties for them: others are not kept waiting."""

from __future__ import annotations

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, ULong
from busbar.cli.main import run
from harness.serving import Busbar
from tests.robustness.bystander import Bystander
from tests.robustness.wire import ACCEPTED, DISPOSITION, RECEIVER, SENDER, TRANSFER, Wire, logged_in, message

MESSAGES = 12
LONG = encode_value(Described(ULong(0x74), {"a": "a" * 50_000, "b": "%" + "a_" * 500 + "b"}))
COSTLY = " OR ".join(["a LIKE '%ab%'"] * 60)
"""About as much as a rule may take, in a way that was never slow."""
HOSTILE = " OR ".join(["a LIKE b"] * 85)


def create_topic(server: Busbar, name: str, expression: str) -> None:
    """As somebody does who may manage it."""
    where = ["--data", str(server.data)]
    below = ["--topic", name, "--subscription", "s"]
    letters = ["--dead-letter-on-filter-exceptions", "true"]
    assert run(["topic", "create", name, *where]) == 0
    assert run(["subscription", "create", "--topic", name, "s", *letters, *where]) == 0
    assert run(["rule", "create", *below, "slow", "--filter-sql-expression", expression, *where]) == 0
    assert run(["rule", "delete", *below, "$Default", "--yes", *where]) == 0


def slowest_cycle(server: Busbar, topic: str) -> float:
    """Of a client of another entity, while the topic gets its messages."""
    with logged_in(server.port, 60) as wire, Bystander(server.port) as bystander:
        wire.attach(0, SENDER, topic)
        bystander.works()
        bystander.slowest = 0.0
        for number in range(MESSAGES):
            wire.transfer(0, number, LONG + message(b"x"))
        answered = 0
        while answered < MESSAGES:
            bystander.works()
            answered += _answers(wire)
        return bystander.slowest


def _answers(wire: Wire) -> int:
    """How many messages the broker has accepted since this was last asked."""
    wire.socket.settimeout(0.005)
    count = 0
    try:
        while True:
            heard = wire.until(DISPOSITION)
            assert heard.outcome == ACCEPTED, heard
            count += heard.count
    except TimeoutError:
        return count


@pytest.mark.req("U7")
def test_a_rule_that_is_meant_to_be_slow_stalls_nobody(server: Busbar) -> None:
    create_topic(server, "costly", COSTLY)
    create_topic(server, "hostile", HOSTILE)
    slowest_cycle(server, "costly")  # the first message compiles the rule
    usual = slowest_cycle(server, "costly")
    found = slowest_cycle(server, "hostile")
    print(
        f"slowest cycle of a bystander: {usual:.3f} s beside a costly rule, {found:.3f} s beside a hostile one"
    )
    assert found < 8 * usual, "without a bound it is many times as long"
    with logged_in(server.port, 10) as wire:
        wire.attach(0, RECEIVER, "hostile/Subscriptions/s/$DeadLetterQueue")
        wire.grant(0, MESSAGES)
        for _ in range(MESSAGES):
            letter = wire.until(TRANSFER).payload
            assert b"FilterException" in letter
            assert b"Rule 'slow': the rule needs more than 4194304 steps" in letter
