"""A client whose password is wrong is told so, and its connection is closed at once: long before any other wait ends."""

from __future__ import annotations

import asyncio

import pytest

from busbar.amqp.types import Symbol
from tests.robustness.wire import SASL_HEADER, SASL_INIT, frame, performative
from tests.unit.gateway.test_failing_connection import served


@pytest.mark.parametrize("response", [b"\0RootManageSharedAccessKey\0wrong", b"\xff\xff"])
async def test_a_connection_whose_password_is_wrong_is_closed(response: bytes) -> None:
    async with served() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(SASL_HEADER + frame(performative(SASL_INIT, [Symbol("PLAIN"), response]), kind=1))
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.endswith(b"\x00\x53\x44\xc0\x03\x01\x50\x01"), "the outcome, then the end"
        writer.close()
