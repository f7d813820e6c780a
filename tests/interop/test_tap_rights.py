"""Who may do what with taps: Listen reads and moves, Manage makes and deletes, Send commits what it has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.serving import PATIENCE, Busbar
from tests.interop.plain_amqp import PlainAmqp
from tests.interop.taps import Refused, Taps

READING: dict[str, dict[str, Any]] = {
    "show-tap": {"name": "t"},
    "list-taps": {},
    "own-tap": {"name": "t", "owner": "me"},
    "resume-tap": {"name": "t", "owner": "me"},
    "advance-tap": {"name": "t", "owner": "me", "positions": {0: 0}},
    "find-time": {"time": 0},
    "ends": {},
    "read-tap": {"name": "t", "fragment": 0, "after": 0, "upto": 1},
}
MAKING: dict[str, dict[str, Any]] = {"create-tap": {"name": "another"}, "delete-tap": {"name": "another"}}
WRITING: dict[str, dict[str, Any]] = {"commit-writes": {"writer": "w", "batch": 1}}
ALL = {**READING, **MAKING, **WRITING}

As = Callable[[str], Taps]

RULES = [
    {"Name": right, "Rights": [right], "PrimaryKey": f"to {right}", "SecondaryKey": "another"}
    for right in ("Listen", "Send")
]
pytestmark = [pytest.mark.timeout(60), pytest.mark.server({"q": {}}, PATIENCE, rules=RULES)]


@pytest.fixture(scope="module", autouse=True)
def tap(server: Busbar) -> None:
    manager = PlainAmqp(server.port, server.key)
    Taps(manager, "q")("create-tap", name="t", owner="me")
    manager.close()


@pytest.fixture
def allowed_to(server: Busbar) -> Iterator[As]:
    clients: list[PlainAmqp] = []

    def connect(right: str) -> Taps:
        clients.append(PlainAmqp(server.port, f"to {right}", user=right))
        return Taps(clients[-1], "q")

    yield connect
    for client in clients:
        client.close()


def refused(taps: Taps, operations: dict[str, dict[str, Any]]) -> list[str]:
    found = []
    for operation, body in operations.items():
        try:
            taps(operation, **body)
        except Refused as refusal:
            assert refusal.status == 401, refusal
            assert refusal.condition == "amqp:unauthorized-access" and operation in refusal.text
            found.append(operation)
    return found


def test_listen_reads_and_moves_a_tap_and_does_not_make_one(allowed_to: As) -> None:
    assert refused(allowed_to("Listen"), ALL) == [*MAKING, *WRITING]


def test_send_commits_what_it_has_written_and_sees_nothing(allowed_to: As) -> None:
    assert refused(allowed_to("Send"), ALL) == [*READING, *MAKING]


def test_who_is_refused_changes_nothing(allowed_to: As) -> None:
    assert refused(allowed_to("Listen"), {"delete-tap": {"name": "t"}}) == ["delete-tap"]
    assert [tap["name"] for tap in allowed_to("Listen")("list-taps")["taps"]] == ["t"]
