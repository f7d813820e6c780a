"""A full disk: sends are refused for the time being, completions go on, nothing acknowledged is lost.

The disk is made small by a preloaded library (harness/faults/small_disk.c), which answers ENOSPC; no root, no mount.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness.serving import Busbar, config_text
from tests.robustness.wire import ACCEPTED, DISPOSITION, RECEIVER, SENDER, Wire, logged_in, message

MEGABYTE = 1024 * 1024
RETRYABLE = {"com.microsoft:server-busy", "amqp:internal-error"}

pytestmark = pytest.mark.shim("small_disk")


def send(wire: Wire, first: int, count: int) -> list[str]:
    """Send together; the condition of each answer, empty for accepted."""
    for number in range(first, first + count):
        wire.transfer(0, number, message(b"%08d" % number + b"." * 20_000, f"m{number}"))
    conditions: list[str] = []
    while len(conditions) < count:
        heard = wire.until(DISPOSITION)
        conditions += [heard.condition if heard.outcome != ACCEPTED else ""] * heard.count
    return conditions


def fill_up(wire: Wire, first: int = 0) -> tuple[int, int]:
    """Send until the disk is full; how many were tried and how many accepted."""
    tried = accepted = 0
    while True:
        conditions = send(wire, first + tried, 50)
        tried += 50
        accepted += conditions.count("")
        refusals = {condition for condition in conditions if condition}
        assert refusals <= RETRYABLE, refusals
        if refusals:
            return tried, accepted
        assert tried < 20_000, "the disk never gets full"


def test_a_full_disk_is_refused_drained_and_used_again(shim: Path, tmp_path: Path) -> None:
    size = tmp_path / "size"
    size.write_text(str(160 * MEGABYTE))
    data = tmp_path / "data"
    environment = {"LD_PRELOAD": str(shim), "DISK_ROOT": str(data), "DISK_SIZE_FILE": str(size)}
    server = Busbar(
        data, config_text({"q": {}, "second": {}}), environment=environment, arguments=("--stores", "1")
    ).start()
    try:
        with logged_in(server.port) as wire:
            wire.attach(0, SENDER, "q")
            wire.attach(1, RECEIVER, "q")
            used = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
            size.write_text(str(used + 40 * MEGABYTE))
            tried, accepted = fill_up(wire)
            assert accepted > 200
            assert set(send(wire, tried, 20)) <= RETRYABLE, "it stays full"
            tried += 20
            # Completions work although the disk is full. One at a time: each commit must find its space.
            for taken in range(100):
                wire.grant(1, 1, count=taken)
                wire.complete(1, 5)
            wire.grant(1, 100, count=100)
            wire.complete(100, 10)
        # Nothing acknowledged is lost over a crash while the disk is full.
        server.kill()
        server.start()
        with logged_in(server.port) as wire:
            wire.attach(0, SENDER, "q")
            wire.attach(1, RECEIVER, "q")
            size.write_text(str(1000 * MEGABYTE))
            until = time.monotonic() + 5
            while send(wire, tried, 1) != [""]:
                assert time.monotonic() < until, "there is room again, and still no send is accepted"
                tried += 1
                time.sleep(0.1)
            left = accepted - 200 + 1
            wire.grant(1, left + 10)
            wire.complete(left, 20)
            wire.socket.settimeout(0.5)
            assert not wire.ended(), "nothing more was there"
        print(f"{accepted} of {tried} sends accepted before and after a full disk, and none lost")
    finally:
        code = server.stop()
    assert code == 0, server.error_text


def test_a_disk_that_stays_full_does_not_stop_the_server(shim: Path, tmp_path: Path) -> None:
    """Clean shutdown on a full disk, and a start on it, keep what is there."""
    size = tmp_path / "size"
    size.write_text(str(160 * MEGABYTE))
    data = tmp_path / "data"
    environment = {"LD_PRELOAD": str(shim), "DISK_ROOT": str(data), "DISK_SIZE_FILE": str(size)}
    server = Busbar(
        data, config_text({"q": {}}), environment=environment, arguments=("--stores", "1")
    ).start()
    try:
        with logged_in(server.port) as wire:
            wire.attach(0, SENDER, "q")
            used = sum(file.stat().st_size for file in data.rglob("*") if file.is_file())
            size.write_text(str(used + 10 * MEGABYTE))
            _tried, accepted = fill_up(wire)
        assert server.stop() == 0, server.error_text
        server.start()
        with logged_in(server.port) as wire:
            wire.attach(1, RECEIVER, "q")
            wire.grant(1, accepted + 10)
            wire.complete(accepted, 20)
    finally:
        server.stop()
