"""A client that lowers its credit, and raises it again, gets messages in their order.

A slow disk (harness/faults/slow_sync.c) keeps deliveries on their way: they wait for the commit of what was sent
before them.
"""

from __future__ import annotations

import time
from pathlib import Path

from busbar.amqp.codec import decode_value
from busbar.amqp.types import Described
from harness.faults.shims import build_shim
from harness.serving import serving
from tests.robustness.wire import DISPOSITION, RECEIVER, SENDER, TRANSFER, Frame, Wire, logged_in, message

SYNC_SECONDS = 0.6


def body_of(delivery: Frame) -> bytes:
    position = 0
    while position < len(delivery.payload):
        section, position = decode_value(delivery.payload, position, len(delivery.payload))
        assert isinstance(section, Described)
        if section.descriptor == 0x75:
            assert isinstance(section.value, bytes)
            return section.value
    raise AssertionError("the message has no body")


def send(wire: Wire, number: int) -> None:
    wire.transfer(0, number, message(b"%d" % number))


def test_messages_stay_in_order_when_credit_is_lowered_and_raised(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    shim = {
        "LD_PRELOAD": str(build_shim("slow_sync", tmp_path)),
        "SLOW_SYNC_MS": str(int(SYNC_SECONDS * 1000)),
        "SLOW_SYNC_FILE": str(slow),
    }
    with serving({"q": {}}, environment=shim) as server, logged_in(server.port, 20) as wire:
        wire.attach(0, SENDER, "q")
        wire.attach(1, RECEIVER, "q")
        for number in range(8):
            send(wire, number)
        confirmed = 0
        while confirmed < 8:
            confirmed += wire.until(DISPOSITION).count
        slow.touch()
        began = time.monotonic()
        send(wire, 8)
        wire.grant(1, 4)  # four messages wait for the first slow commit
        time.sleep(SYNC_SECONDS / 6)
        send(wire, 9)
        wire.grant(1, 8)  # and four for the second one
        time.sleep(SYNC_SECONDS / 6)
        wire.grant(1, 0)  # so the first four go back
        time.sleep(began + 1.5 * SYNC_SECONDS - time.monotonic())
        wire.grant(1, 8)
        assert [body_of(wire.until(TRANSFER)) for _ in range(8)] == [b"%d" % number for number in range(8)]
