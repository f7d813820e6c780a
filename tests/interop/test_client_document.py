"""The programs of docs/client.md, run as they are printed."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import types
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from busbar.client import MessageContext, MessagingFactory, OutgoingMessage, encode
from harness.serving import Busbar

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "client.md"
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(90),
    pytest.mark.server({"orders": {}, "workflows": {"RequiresSession": True}}, checked=True),
]


def programs() -> list[tuple[str, str]]:
    """The heading and the text of each program."""
    found, heading = [], ""
    for part in re.split(r"^(?=#+ )", DOCUMENT.read_text(), flags=re.MULTILINE):
        heading = part.splitlines()[0].lstrip("# ") if part.startswith("#") else heading
        found += [(heading, block) for block in re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL)]
    return found


async def run(text: str, names: dict[str, Any]) -> None:
    if "asyncio.run(" in text or "blocking" in text:
        code = compile(text, str(DOCUMENT), "exec")
        await asyncio.to_thread(exec, code, dict(names))  # with names of its own
        return
    code = compile(text, str(DOCUMENT), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = types.FunctionType(code, names)()
    if inspect.isawaitable(result):  # a program without await is over
        await result


async def test_every_program_of_the_document_runs(server: Busbar, capfd: pytest.CaptureFixture[str]) -> None:
    async with MessagingFactory(server.connection_string) as factory:
        client = factory.queue_client("orders")
        names: dict[str, Any] = {
            "CONNECTION_STRING": server.connection_string,
            "MessageContext": MessageContext,
            "OutgoingMessage": OutgoingMessage,
            "UTC": UTC,
            "asyncio": asyncio,
            "client": client,
            "datetime": datetime,
            "encode": encode,
            "factory": factory,
            "timedelta": timedelta,
        }
        taps = await factory.taps("orders")
        await taps.create("archive", owner="my checkpoint")
        await factory.message_sender("workflows").send_messages(
            OutgoingMessage(b"step", session_id="order 7")
        )
        ran = []
        for heading, text in programs():
            if heading == "Transactions":
                await client.send_messages(OutgoingMessage(b"to be completed"))
                (names["message"],) = await client.receive_messages(1, 10)
            await run(text, names)
            ran.append(heading)
        assert ran == [
            "busbar.client",
            "Sending",
            "Receiving",
            "Message sessions",
            "Processors",
            "Transactions",
            "Without await",
            "Bulk work",
            "Taps",
            "Administration",
            "Presets and advice",
        ]
        assert names["receiver_settings"] == {"prefetch_count": 600}
        assert "b'hello'" in capfd.readouterr().out
        session = await factory.accept_session("workflows", "order 7")
        assert await session.get_state() == b"done"
        assert (await taps.show("archive")).fragments[0].position > 10_000
        assert await client.receive_messages(1, 0.2) == [], "all were received and completed"
