"""Each operation needs its right, and asks nothing of anybody before it has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from busbar.gateway.authority import Authority
from busbar.gateway.gateway import Gateway
from busbar.model.api import EntityView
from busbar.model.commands import Demand, Send, Settle
from busbar.model.effects import Drained, Sent, Settled
from busbar.model.entities import QueueDescription
from busbar.model.limits import Limits
from busbar.model.sas import SasRule
from tests.interop.http_runtime import Http
from tests.unit.gateway.scripted_port import ScriptedPort

LOCK = "q/messages/1/01000000-0000-0000-0001-000000000002"  # of fragment 1
RULES = [
    SasRule(right.lower(), ("key", "second"), frozenset({right})) for right in ("Send", "Listen", "Manage")
]
OPERATIONS = [
    ("POST", "q/messages", "send"),
    ("POST", "q/messages/head?timeout=0", "listen"),
    ("DELETE", "q/messages/head?timeout=0", "listen"),
    ("PUT", LOCK, "listen"),
    ("POST", LOCK, "listen"),
    ("DELETE", LOCK, "listen"),
]


class Answering(ScriptedPort):
    """Says yes to everything, at once."""

    def submit(self, commands: Any) -> None:
        super().submit(commands)
        for command in commands:
            if isinstance(command, Send):
                self.emit(Sent(command.origin, command.request, [1], []))
            elif isinstance(command, Demand):
                self.emit(Drained(command.origin, command.consumer))
            elif isinstance(command, Settle):
                self.emit(Settled(command.origin, command.request, []))


@asynccontextmanager
async def serving(port: ScriptedPort) -> AsyncIterator[Http]:
    gateway = Gateway(cast(Any, port), Authority(RULES), Limits(), None)
    await gateway.start()
    http = Http(await gateway.listen("localhost", 0), "second")
    try:
        yield http
    finally:
        await http.close()
        await gateway.stop()


@pytest.mark.parametrize(("method", "path", "right"), OPERATIONS)
async def test_without_the_right_nothing_happens(method: str, path: str, right: str) -> None:
    port = Answering(EntityView("q", QueueDescription(), (1,)))
    other = "listen" if right == "send" else "send"
    async with serving(port) as http:
        answer = await http.request(method, path, token=http.token("q", rule=other))
        assert f"lacks the claim '{right.capitalize()}'" in answer.error(401)
        missing = await http.request(method, "x" + path, token=http.token(rule=other))
        missing.error(401)  # not 404: who may not use a name does not learn whether it exists
        assert port.commands == []


@pytest.mark.parametrize(
    ("method", "path", "right"), [item for item in OPERATIONS if item[:2] != ("POST", LOCK)]
)
async def test_with_it_or_with_manage_it_does(method: str, path: str, right: str) -> None:
    port = Answering(EntityView("q", QueueDescription(), (1,)))
    async with serving(port) as http:
        for rule in (right, "manage"):
            answer = await http.request(method, path, token=http.token("q", rule=rule))
            assert answer.status in (200, 201, 204), answer
        assert port.commands
