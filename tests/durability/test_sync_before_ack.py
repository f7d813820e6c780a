"""No acknowledgement leaves before the sync of its commit has returned.

The page cache survives `kill -9`, so killing shows nothing about syncing. Here a library preloaded into the real
process (harness/faults/trace.c) writes down every write, sync and socket call in one order, and trace.py reads it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from busbar.amqp.types import UInt
from harness.promises import require_kept
from harness.serving import Busbar, config_text
from tests.durability.trace import Record, Verdict, judge, read_trace
from tests.robustness.wire import (
    ACCEPTED,
    DISPOSITION,
    RECEIVER,
    SENDER,
    TRANSFER,
    logged_in,
    message,
)

HERE = Path(__file__).parent
ALONE, TOGETHER = 40, 400

pytestmark = pytest.mark.shim("trace")


def marked(number: int) -> bytes:
    return message(b"<mark %08d>" % number, f"m{number}")


def use(port: int) -> None:
    """Send and settle one at a time, then many at once, then as a batch."""
    with logged_in(port) as wire:
        wire.attach(0, SENDER, "q")
        wire.attach(1, RECEIVER, "q")
        for number in range(ALONE):
            assert wire.send_message(0, number, marked(number)).outcome == ACCEPTED
        for number in range(ALONE, ALONE + TOGETHER):
            wire.transfer(0, number, marked(number))
        settled = 0
        while settled < TOGETHER:
            heard = wire.until(DISPOSITION)
            assert heard.outcome == ACCEPTED
            settled += heard.count
        for alone in range(ALONE):
            wire.grant(1, 1, count=alone)
            delivery = int(str(wire.until(TRANSFER).field(1)))
            wire.dispose(delivery, delivery, ACCEPTED)
            assert wire.until(DISPOSITION).outcome == ACCEPTED
        wire.grant(1, TOGETHER, count=ALONE)
        wire.complete(TOGETHER, 10)
        batch = b"".join(message(marked(1_000 + number)) for number in range(50))
        wire.say(TRANSFER, [UInt(0), UInt(10_000), b"batch", UInt(0x80013700), False, False], batch)
        assert wire.until(DISPOSITION).outcome == ACCEPTED


def traced(server: Busbar, log: Path) -> list[Record]:
    server.start()
    try:
        use(server.port)
    finally:
        server.kill()
    return read_trace(log)


def traced_server(directory: Path, shim: Path, log: Path, launcher: Path | None = None) -> Busbar:
    data = directory / "data"
    environment = {"LD_PRELOAD": str(shim), "TRACE_LOG": str(log), "TRACE_DATA": str(data)}
    program = ("-m", "busbar") if launcher is None else (str(launcher),)
    return Busbar(
        data, config_text({"q": {}}), environment=environment, program=program, arguments=("--stores", "1")
    )


@pytest.fixture(scope="module")
def trace(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    directory = tmp_path_factory.mktemp("traced")
    return traced(traced_server(directory, shim, directory / "log"), directory / "log")


@pytest.mark.req("U6")
def test_no_acknowledgement_leaves_before_its_commit_is_synced(trace: list[Record]) -> None:
    verdict = judge(trace)
    require_kept("nothing is acknowledged before its commit is synced", verdict.early)
    assert verdict.sends == ALONE + TOGETHER + 1
    assert verdict.settlements == ALONE + TOGETHER
    syncs = sum(record.kind == "E" for record in trace)
    # Everything alone has a sync of its own; what comes together shares them (group commit).
    assert 2 * ALONE <= syncs < 2 * ALONE + TOGETHER
    print(f"{verdict.sends} sends and {verdict.settlements} settlements, {syncs} syncs")


def test_a_store_that_does_not_sync_is_caught(shim: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = traced_server(tmp_path, shim, log, HERE / "serve_unsynced.py")
    verdict = judge(traced(server, log))
    assert len(verdict.early) == verdict.sends + verdict.settlements
    assert verdict.sends and verdict.settlements


def doctored(trace: list[Record], kind: str) -> Verdict:
    return judge([record for record in trace if record.kind != kind])


def test_doctored_traces_are_caught(trace: list[Record]) -> None:
    """The judge finds fault when syncs fail, when they never end, and when one acknowledgement goes ahead of its sync."""
    everything = ALONE + TOGETHER + 1 + ALONE + TOGETHER
    assert len(doctored(trace, "E").early) == everything
    failing = [replace(record, kind="x") if record.kind in "BE" else record for record in trace]
    assert len(judge(failing).early) == everything
    # The sync before one acknowledgement is moved behind it.
    first = next(
        index for index, record in enumerate(trace) if record.kind == "D"
    )  # before it, Busbar starts
    ends = [index for index, record in enumerate(trace) if record.kind == "E" and index > first]
    moved = ends[len(ends) // 4]
    after = next(i for i in range(moved, len(trace)) if trace[i].kind == "D") + 1
    late = trace[:moved] + trace[moved + 1 : after] + [trace[moved]] + trace[after:]
    assert judge(late).early
