"""How messages are sent again: who they are, in which pieces, how fast."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from busbar.amqp.events import Delivery
from busbar.amqp.link import Link
from busbar.amqp.outcomes import annotated_state
from busbar.amqp.types import Int, Symbol
from busbar.client import OutgoingMessage, Retry, encode
from busbar.client.blocking import connect
from busbar.client.sender import Writer
from busbar.jobs.resending import (
    CHUNK_BYTES,
    Pace,
    Resender,
    ResendMessage,
    ResendResult,
    _chunks,
    source_id,
    writer_name,
)
from tests.unit.client.scripted_broker import ScriptedBroker


def test_an_id_says_where_a_message_came_from_and_fits() -> None:
    assert source_id("orders", (3 << 48) | 7, 1767312000000) == "orders:844424930131975:1767312000000"
    long = source_id("o" * 200, 7, 1)
    assert len(long) <= 128
    assert long != source_id("o" * 200, 7, 2)
    assert source_id("orders", 7, 1) != source_id("orders", 7, 2)  # of a queue that was re-created


def test_the_same_job_is_the_same_writer() -> None:
    assert writer_name("replay", "a", "b") == writer_name("replay", "a", "b")
    assert (
        len({writer_name("replay", "ab", "c"), writer_name("replay", "a", "bc"), writer_name("r", "ab", "c")})
        == 3
    )


def test_chunks_are_neighbours_that_fit_into_one_delivery() -> None:
    def pieces(sizes: list[int], most: int) -> list[tuple[int, int]]:
        return list(_chunks([ResendMessage(bytes(size), "") for size in sizes], most))

    assert pieces([], 10) == []
    assert pieces([1] * 5, 2) == [(0, 2), (2, 4), (4, 5)]
    half = CHUNK_BYTES // 2
    assert pieces([half, half, 1, 3 * half, 1], 10) == [(0, 1), (1, 3), (3, 4), (4, 5)]


def test_a_pace_holds_over_its_chunks() -> None:
    pace = Pace(1_000)
    assert pace.chunk == 200
    began = time.monotonic()
    for _ in range(3):
        pace.wait(pace.chunk)
    assert time.monotonic() - began >= 0.39
    assert Pace(0).chunk == 1_000
    assert Pace(0.5).chunk == 1


@pytest.mark.asyncio
async def test_what_was_repeated_after_a_failure_is_unsure() -> None:
    """The broker has 8 of the 10 messages. It drops these, and in one case answers when they are sent again."""
    scripted = await ScriptedBroker().start()
    scripted.offers = ["busbar:mixed-batches", "busbar:duplicates"]
    messages = [
        ResendMessage(encode(OutgoingMessage(b"x", message_id=str(number))), "") for number in range(10)
    ]

    def run() -> tuple[ResendResult, ResendResult]:
        retry = Retry(patience=5.0, first=0.01, longest=0.05)
        with (
            connect(scripted.connection_string, retry=retry) as factory,
            Resender(factory, "q", Writer("w", 0), Pace(0)) as resender,
        ):
            resender.send(messages)
            return resender.dropped(repeats=False), resender.dropped(repeats=True)

    def answer(link: Link, deliveries: list[Delivery]) -> None:
        if scripted.connections == hangs_up_at:
            scripted.hang_up()
        else:
            link.dispose([deliveries[0].id], annotated_state({Symbol("busbar:duplicates"): Int(8)}))

    scripted.answer = answer
    hangs_up_at = 0
    first, repeated = await asyncio.to_thread(run)
    assert (first.known, first.unsure, first.is_counted) == (8, 0, True)
    assert (repeated.known, repeated.unsure) == (0, 8), "an earlier attempt of the task may have sent them"
    hangs_up_at = scripted.connections + 1
    first, _ = await asyncio.to_thread(run)
    assert (first.known, first.unsure) == (0, 8)
    total = ResendResult(10)
    total.add(first)
    assert total.added == 2
    scripted.offers = ["busbar:mixed-batches"]
    first, _ = await asyncio.to_thread(run)
    total.add(first)
    assert not first.is_counted and total.added is None
    await scripted.stop()


def test_a_redrive_needs_no_spark() -> None:
    code = "import sys; sys.modules.update(dict.fromkeys(['pyspark', 'pyarrow']))"
    code += "; import busbar.cli.redrive, busbar.jobs.redrive"
    code += "; from busbar.cli.job_run import running_job; running_job('redrive', spark=False).__enter__()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
