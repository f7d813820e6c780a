"""Memory returns to its level when connections end, also if each did the worst that it could before.

What a connection of such a client costs while it lives is measured beside it, so that the bound is a ratio of one run.
"""

from __future__ import annotations

import contextlib

import pytest

from harness.serving import Busbar
from tests.robustness.attacks import (
    attach_with,
    colliding_map,
    empty_lists,
    large_transfer,
    token_request,
)
from tests.robustness.attacks import server as server  # the fixture
from tests.robustness.bystander import Bystander
from tests.robustness.test_listeners import fill
from tests.robustness.wire import ATTACH, RECEIVER, SENDER, Wire, connected, logged_in

MEGABYTE = 1024 * 1024
OPEN_AT_ONCE = 30
SHARE = 50
"""One that has ended leaves less than this part of what it costs while it lives."""


@pytest.fixture(scope="module", autouse=True)
def held(server: Busbar) -> None:
    fill(server, "held", 20, b"x" * 20_000)


def stranger(port: int) -> Wire:
    """Without a token: links with all the properties that are allowed, and replies that nobody takes."""
    wire = connected(port)
    for handle in range(2):
        wire.send(attach_with(handle, empty_lists(4_000)))
        assert wire.until(ATTACH).field(6) is not None
    wire.attach(3, SENDER, "$cbs", name="ask")
    wire.attach(4, RECEIVER, "$cbs", name="answer")
    for number in range(2):
        large_transfer(wire, 3, number, token_request("i" * 60_000, "none", "answer-end"))
    return wire


def listener(port: int) -> Wire:
    """With a token: a link with messages that it never settles, half a message on another, a request on a third."""
    wire = logged_in(port)
    wire.attach(0, RECEIVER, "held")
    wire.grant(0, 5)
    wire.attach(1, SENDER, "other")
    wire.transfer(1, 0, b"\0" * 60_000, more=True)
    wire.attach(2, SENDER, "$cbs", name="ask")
    wire.attach(3, RECEIVER, "$cbs", name="answer")
    large_transfer(wire, 2, 1, token_request("i" * 60_000, "none", "answer-end"))
    return wire


def leave(wire: Wire, number: int) -> None:
    """One way in turn: without a word, with a reset, and by a mistake for which it is closed."""
    if number % 3 == 2:
        with contextlib.suppress(OSError):
            wire.send(attach_with(200, colliding_map(2_000)))
            wire.ended()
    if number % 3 == 1:
        wire.vanish()
    else:
        wire.socket.close()


def attack(port: int, number: int) -> Wire:
    return stranger(port) if number % 2 else listener(port)


def come_and_go(port: int, count: int) -> None:
    for number in range(count):
        leave(attack(port, number), number)


def costs(server: Busbar, count: int) -> tuple[float, float]:
    """In bytes for one connection: what stays of it when many have come and gone, and what it costs while it is there."""
    with Bystander(server.port) as bystander:
        come_and_go(server.port, max(100, count // 10))
        bystander.works()
        before = server.resident_bytes()
        come_and_go(server.port, count)
        bystander.works()
        after = server.resident_bytes()
        wires = [attack(server.port, number) for number in range(OPEN_AT_ONCE)]
        bystander.works()
        alive = (server.resident_bytes() - after) / OPEN_AT_ONCE
        for wire in wires:
            wire.vanish()
    gone = (after - before) / count
    megabytes = f"{before / MEGABYTE:.1f} MB before, {after / MEGABYTE:.1f} MB after {count} connections"
    print(f"{megabytes}: {gone:.0f} bytes each; while it lives {alive:.0f}")
    return gone, alive


def test_connections_that_did_their_worst_leave_nothing(server: Busbar) -> None:
    gone, alive = costs(server, 1_000)
    assert gone < alive / SHARE


@pytest.mark.deep
def test_ten_thousand_connections_that_did_their_worst_leave_nothing(server: Busbar) -> None:
    gone, alive = costs(server, 10_000)
    assert gone < alive / (10 * SHARE)
