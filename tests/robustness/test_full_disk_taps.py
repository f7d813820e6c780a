"""A full disk, and a tap that nobody reads: what receivers complete is kept, so completing makes no room.

Sends are refused and nothing acknowledged is lost. Room comes from the tap: advanced, deleted, or at its own limit of age.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from busbar.broker.store_lifecycle import FULL_PAUSE
from busbar.client import blocking
from harness.serving import Busbar, config_text
from tests.robustness.test_full_disk import MEGABYTE, RETRYABLE, fill_up, send
from tests.robustness.wire import ACCEPTED, DISPOSITION, RECEIVER, SENDER, TRANSFER, Wire, logged_in, message

pytestmark = pytest.mark.shim("small_disk")
TAP = "forgotten"
AGE = 3_000


@contextmanager
def serving_on(disk: Path, shim: Path) -> Iterator[Busbar]:
    size = disk / "size"
    size.write_text(str(200 * MEGABYTE))
    data = disk / "data"
    environment = {"LD_PRELOAD": str(shim), "DISK_ROOT": str(data), "DISK_SIZE_FILE": str(size)}
    queues = config_text({"q": {}, "second": {}})
    server = Busbar(data, queues, environment=environment, arguments=("--stores", "1")).start()
    try:
        yield server
    finally:
        server.stop()


def shrink(disk: Path, left: int) -> None:
    """Let the disk have so much more room than is used."""
    used = sum(file.stat().st_size for file in (disk / "data").rglob("*") if file.is_file())
    (disk / "size").write_text(str(used + left))


def complete(wire: Wire, count: int) -> int:
    """Complete the deliveries that were asked for; how many were confirmed before the server had no space."""
    confirmed = refused = 0
    while confirmed + refused < count:
        heard = wire.until(TRANSFER, DISPOSITION)
        if heard.code == TRANSFER:
            if heard.field(1) is not None:
                delivery = int(str(heard.field(1)))
                wire.dispose(delivery, delivery, ACCEPTED)
        elif heard.outcome == ACCEPTED:
            confirmed += heard.count
        else:
            assert heard.condition in RETRYABLE, heard
            refused += heard.count
    return confirmed


def use_up(wire: Wire, tried: int, accepted: int) -> tuple[int, int, int]:
    """Complete some, send what there is room for then, complete more, until no completion is taken or all of the first
    messages are completed: how many were tried, accepted, completed."""
    completed, there = 0, accepted
    for first in range(0, there, 300):
        count = min(300, there - first)
        wire.grant(1, count, count=first)
        confirmed = complete(wire, count)
        completed += confirmed
        if confirmed < count:
            break
        if first == 0:
            time.sleep(FULL_PAUSE / 1000 + 0.1)  # for as long sends are refused without a look at the disk
            more, taken = fill_up(wire, tried)
            tried, accepted = tried + more, accepted + taken
    return tried, accepted, completed


def delete(taps: blocking.BlockingTaps) -> None:
    taps.delete(TAP)


def advance(taps: blocking.BlockingTaps) -> None:
    taps.advance(TAP, "", {0: taps.ends().ends[0]})


def leave_alone(taps: blocking.BlockingTaps) -> None:
    """Its limit of age makes room."""


@pytest.mark.parametrize("act", [delete, pytest.param(advance, marks=pytest.mark.deep), leave_alone])
def test_a_forgotten_tap_on_a_full_disk(
    shim: Path, tmp_path: Path, act: Callable[[blocking.BlockingTaps], None]
) -> None:
    with serving_on(tmp_path, shim) as server, blocking.connect(server.connection_string) as client:
        taps = client.taps("q")
        taps.create(TAP, events=True, max_age=AGE if act is leave_alone else None)
        with logged_in(server.port) as wire, logged_in(server.port) as other:
            wire.attach(0, SENDER, "q")
            wire.attach(1, RECEIVER, "q")
            other.attach(0, SENDER, "second")
            other.attach(1, RECEIVER, "second")
            for number in range(10):
                assert other.send_message(0, number, message(b"second")).outcome == ACCEPTED
            shrink(tmp_path, 25 * MEGABYTE)
            tried, accepted = fill_up(wire)
            tried, accepted, completed = use_up(wire, tried, accepted)
            kept = taps.show(TAP).fragments[0].kept
            print(f"{accepted} of {tried} accepted, {completed} completed, {kept} kept")
            if act is not leave_alone:
                assert kept == completed, "the tap lost something"
                assert set(send(wire, tried, 20)) <= RETRYABLE, "there is no room for anything"
                tried += 20
            other.grant(1, 10)
            assert complete(other, 10) == 10, "who makes room is served"
            act(taps)
            until = time.monotonic() + 15
            while send(wire, tried, 1) != [""]:
                assert time.monotonic() < until, (
                    "the tap keeps nothing any more, and still no send is accepted"
                )
                tried += 1
                time.sleep(0.1)
            accepted += 1
        with logged_in(server.port) as wire:
            wire.attach(1, RECEIVER, "q")
            wire.grant(1, accepted - completed + 10)
            wire.complete(accepted - completed, 20)
            wire.socket.settimeout(0.3)
            assert not wire.ended()
            with pytest.raises(TimeoutError):
                wire.until(TRANSFER)
        assert "Traceback" not in server.error_text, server.error_text
