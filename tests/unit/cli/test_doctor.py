"""What `busbar doctor` makes of what it finds."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from busbar.app.certificates import own_files
from busbar.cli.diagnosis import (
    certificate_finding,
    clock_finding,
    directory_findings,
    port_findings,
    space_finding,
    sync_finding,
    sync_milliseconds,
)


@pytest.mark.parametrize(("free", "state"), [(1 << 20, "bad"), (1 << 30, "warn"), (1 << 40, "ok")])
def test_space(free: int, state: str) -> None:
    assert space_finding(free).state == state


@pytest.mark.parametrize(("took", "state"), [(0.1, "ok"), (25.0, "warn"), (900.0, "bad")])
def test_syncs(took: float, state: str) -> None:
    assert sync_finding(took).state == state


def test_a_sync_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    assert sync_milliseconds(tmp_path) > 0 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("ahead", "state"), [(0, "ok"), (20, "warn"), (-300, "bad")])
def test_clocks(ahead: int, state: str) -> None:
    now = datetime(2026, 11, 18, 12, 0, 0, tzinfo=UTC)
    date = format_datetime(now + timedelta(seconds=ahead), usegmt=True)
    assert clock_finding(date, now.timestamp()).state == state


def test_a_time_that_is_none() -> None:
    assert clock_finding("soon", 0).state == "warn"


def test_certificates(tmp_path: Path) -> None:
    assert certificate_finding(tmp_path).text.startswith("none")
    own_files(tmp_path, ["localhost"])
    now = datetime.now(UTC)
    assert certificate_finding(tmp_path, now).state == "ok"
    assert certificate_finding(tmp_path, now + timedelta(days=365 * 30)).state == "bad"
    (tmp_path / "tls" / "server.pem").write_text("nothing")
    assert certificate_finding(tmp_path).state == "bad"


def test_a_directory_that_others_can_write_into(tmp_path: Path) -> None:
    assert [one.state for one in directory_findings(tmp_path / "none")] == ["warn"]
    tmp_path.chmod(0o777)
    first = next(directory_findings(tmp_path))
    assert first.state == "bad" and "chmod" in first.advice


def test_ports_that_are_in_use() -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        (found,) = port_findings({used.getsockname()[1]: "--port"})
    assert found.state == "warn" and "--port" in found.advice
