"""Clients that go without a word: what they had not settled comes back, what they had not finished is forgotten."""

from __future__ import annotations

import time

from busbar.amqp.types import UInt
from harness.serving import Busbar, serving
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    ACCEPTED,
    DETACH,
    DISPOSITION,
    END,
    RECEIVER,
    SENDER,
    TRANSFER,
    logged_in,
    message,
)

LOCK_SECONDS = 1.0


def fill(port: int, queue: str, count: int) -> None:
    with logged_in(port) as wire:
        wire.attach(0, SENDER, queue)
        for number in range(count):
            answer = wire.send_message(0, number, message(b"x" * 100, f"m{number}"))
            assert answer.outcome == ACCEPTED


def test_locked_messages_come_back_when_their_lock_ends(server: Busbar, bystander: Bystander) -> None:
    fill(server.port, "q", 5)
    gone = logged_in(server.port)
    gone.attach(1, RECEIVER, "q")
    gone.grant(1, 5)
    for _ in range(5):
        gone.until(TRANSFER)
    locked = time.monotonic()
    gone.vanish()
    with logged_in(server.port) as wire:
        wire.attach(1, RECEIVER, "q")
        wire.grant(1, 10)
        wire.complete(5, 5)
        assert 0.5 * LOCK_SECONDS < time.monotonic() - locked < LOCK_SECONDS + 2
    bystander.works()


def test_credit_dies_with_its_client(server: Busbar, bystander: Bystander) -> None:
    """Messages sent after a waiting receiver vanished go to the next one at once, not after a lock."""
    gone = logged_in(server.port)
    gone.attach(1, RECEIVER, "other")
    gone.grant(1, 1_000)
    bystander.works()
    gone.vanish()
    bystander.works()  # by now the server has seen the reset
    fill(server.port, "other", 5)
    with logged_in(server.port) as wire:
        wire.attach(1, RECEIVER, "other")
        wire.grant(1, 10)
        wire.complete(5, 1)


def test_a_receiver_that_vanishes_amid_deliveries(bystander: Bystander) -> None:
    """A large backlog on its way to a client that is reset: everything is delivered again, once its lock has ended."""
    count = 400
    with serving({"big": {"LockDuration": "PT1S"}}, {"min_lock_duration": 1_000}) as server:
        with logged_in(server.port) as wire:
            wire.attach(0, SENDER, "big")
            for number in range(count):
                wire.transfer(0, number, message(b"y" * 20_000, f"m{number}"))
            settled = 0
            while settled < count:
                heard = wire.until(DISPOSITION)
                settled += heard.count
        for _ in range(3):
            gone = logged_in(server.port)
            gone.attach(1, RECEIVER, "big")
            gone.grant(1, count)
            gone.until(TRANSFER)
            gone.vanish()
        with logged_in(server.port) as wire:
            wire.attach(1, RECEIVER, "big")
            wire.grant(1, count + 10)
            wire.complete(count, 5)
            wire.socket.settimeout(0.3)
            assert not wire.ended(), "nothing more is there"


def test_a_sender_that_vanishes_amid_a_transfer_leaves_nothing(server: Busbar, bystander: Bystander) -> None:
    gone = logged_in(server.port)
    gone.attach(0, SENDER, "other")
    gone.transfer(0, 0, message(b"z" * 30_000, "half")[:20_000], more=True)
    gone.vanish()
    gone = logged_in(server.port)
    gone.attach(0, SENDER, "other")
    gone.send(b"\x00\x00\x40\x00\x02\x00\x00\x00\x00\x53\x14")
    gone.vanish()
    bystander.works()
    with logged_in(server.port) as wire:
        wire.attach(1, RECEIVER, "other")
        wire.grant(1, 10)
        wire.socket.settimeout(0.3)
        try:
            wire.until(TRANSFER)
        except TimeoutError:
            pass
        else:
            raise AssertionError("half a message was delivered")


def test_a_session_and_a_link_that_end_amid_deliveries(server: Busbar, bystander: Bystander) -> None:
    """Detach and end without settling: the locks stay, and end by themselves."""
    fill(server.port, "q", 4)
    with logged_in(server.port) as wire:
        wire.attach(1, RECEIVER, "q")
        wire.grant(1, 2)
        wire.until(TRANSFER)
        wire.until(TRANSFER)
        wire.begin(channel=1)
        wire.attach(2, RECEIVER, "q", channel=1)
        wire.grant(2, 2, channel=1)
        wire.until(TRANSFER)
        wire.until(TRANSFER)
        wire.say(DETACH, [UInt(1), True])
        wire.until(DETACH)
        wire.say(END, [], channel=1)
        wire.until(END)
    with logged_in(server.port) as wire:
        wire.attach(1, RECEIVER, "q")
        wire.grant(1, 10)
        wire.complete(4, 5)
