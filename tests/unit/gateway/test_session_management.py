"""The list of sessions over several fragments, and what a management node asks before it acts on a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from busbar.amqp.types import Array
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.management_request import RequestBody
from busbar.gateway.amqp.session_management import DEFAULT_LISTING, SessionOperations
from busbar.model.api import EntityView
from busbar.model.commands import Command, ListSessions, SetSessionState
from busbar.model.effects import Done, Effect, SessionList
from busbar.model.entities import QueueDescription
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    InvalidOperation,
    QuotaExceeded,
    SessionLockLost,
)
from busbar.model.message import ACTIVE, DEAD

LIST = "com.microsoft:get-message-sessions"
SET_STATE = "com.microsoft:set-session-state"


class Held:
    index, fragment, consumer = 0, 100, 7


class FragmentsOfNames:
    """Fragments 100, 101 and so on, each with sessions of its own."""

    origin = 1

    def __init__(self, *names: list[str]) -> None:
        self._names = names
        self.asked: list[Command] = []

    async def ask(self, build: Callable[[int], Command]) -> Effect:
        command = build(len(self.asked) + 1)
        self.asked.append(command)
        if isinstance(command, ListSessions):
            names = self._names[command.fragment - 100]
            behind = [name for name in names if command.after is None or name > command.after]
            return SessionList(1, command.request, behind[: command.top])
        return Done(1, command.request)

    def held_session(self, path: str, session: str) -> Held | None:
        return Held() if (path, session) == ("q", "mine") else None


def operations(
    peer: FragmentsOfNames, count: int = 3, sub: int = ACTIVE, **of_queue: Any
) -> SessionOperations:
    description = QueueDescription(**{"requires_session": True, **of_queue})
    entity = EntityView("q", description, tuple(100 + index for index in range(count)))
    return SessionOperations(cast(LinkConnection, peer), entity, entity.path, sub, 1_000)


async def page(node: SessionOperations, skip: int, top: int, updated: int = DEFAULT_LISTING) -> list[object]:
    request = {"last-updated-time": updated, "skip": skip, "top": top}
    status, body = await node.operations[LIST](RequestBody(LIST, request))
    if status == 204:
        return []
    listed = body["sessions-ids"]
    assert isinstance(listed, Array) and body["skip"] == skip
    return listed.items


NAMES: tuple[list[str], ...] = ([f"a{n}" for n in range(5)], [], [f"c{n}" for n in range(4)])
ALL = [*NAMES[0], *NAMES[2]]


@pytest.mark.parametrize("top", [1, 2, 3, 4, 5, 9, 100])
async def test_pages_go_through_all_fragments(top: int) -> None:
    node = operations(FragmentsOfNames(*NAMES))
    found: list[object] = []
    while more := await page(node, len(found), top):
        assert len(more) == min(top, len(ALL) - len(found)), "a short page would end the list for a client"
        found += more
    assert found == ALL


async def test_the_next_page_is_not_looked_for() -> None:
    peer = FragmentsOfNames(*NAMES)
    node = operations(peer)
    await page(node, 0, 6)
    before = len(peer.asked)
    assert await page(node, 6, 2) == ["c1", "c2"]
    assert len(peer.asked) == before + 1


@pytest.mark.parametrize("skip", range(12))
async def test_a_page_from_anywhere(skip: int) -> None:
    node = operations(FragmentsOfNames(*NAMES))
    assert await page(node, skip, 3) == ALL[skip : skip + 3]


async def test_the_list_begins_anew() -> None:
    peer = FragmentsOfNames([], [])
    node = operations(peer, 2)
    assert await page(node, 0, 10) == []
    peer._names = (["new"], [])
    assert await page(node, 0, 10) == ["new"]


async def test_a_time_is_passed_on_and_the_far_future_means_all() -> None:
    peer = FragmentsOfNames(["a"])
    node = operations(peer, 1)
    for given, asked in ((DEFAULT_LISTING, 0), (5_000, 5_000), (0, 1), (-62_135_596_800_000, 1)):
        await page(node, 0, 1, given)
        command = peer.asked[-1]
        assert isinstance(command, ListSessions) and command.updated_after == asked
    with pytest.raises(ArgumentOutOfRange):
        await page(node, -1, 1)
    with pytest.raises(ArgumentOutOfRange):
        await page(node, 0, 0)


async def set_state(node: SessionOperations, **request: object) -> int:
    named = {key.replace("_", "-"): value for key, value in request.items()}
    return (await node.operations[SET_STATE](RequestBody(SET_STATE, named)))[0]


async def test_what_a_state_may_be() -> None:
    peer = FragmentsOfNames([])
    node = operations(peer)
    assert await set_state(node, session_id="mine", session_state=b"x" * 1_000) == 200
    assert await set_state(node, session_id="mine", session_state=None) == 200
    states = [command.state for command in peer.asked if isinstance(command, SetSessionState)]
    assert states == [b"x" * 1_000, None]
    with pytest.raises(QuotaExceeded, match="1001 bytes; at most 1000"):
        await set_state(node, session_id="mine", session_state=b"x" * 1_001)
    with pytest.raises(ArgumentError, match="'session-state' is missing"):
        await set_state(node, session_id="mine")
    with pytest.raises(ArgumentError):
        await set_state(node, session_id="mine", session_state="text")
    with pytest.raises(SessionLockLost):
        await set_state(node, session_id="another's", session_state=b"x")
    assert len(peer.asked) == 2


@pytest.mark.parametrize(("sub", "requires"), [(DEAD, True), (ACTIVE, False)])
async def test_where_there_are_no_sessions(sub: int, requires: bool) -> None:
    node = operations(FragmentsOfNames([]), 1, sub, requires_session=requires)
    assert not node.required
    with pytest.raises(InvalidOperation):
        await page(node, 0, 1)
    with pytest.raises(InvalidOperation):
        await set_state(node, session_id="mine", session_state=b"")
    with pytest.raises(InvalidOperation):
        node.named(RequestBody("peek", {"session-id": "s"}))
    assert node.named(RequestBody("peek", {})) is None
