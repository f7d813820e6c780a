"""How messages are sent again: who they are, in which pieces, how fast."""

from __future__ import annotations

import subprocess
import sys
import time

from busbar.jobs.resending import CHUNK_BYTES, Pace, ResendMessage, _chunks, source_id, writer_name


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


def test_a_redrive_needs_no_spark() -> None:
    code = "import sys; sys.modules.update(dict.fromkeys(['pyspark', 'pyarrow']))"
    code += "; import busbar.cli.redrive, busbar.jobs.redrive"
    code += "; from busbar.cli.job_run import running_job; running_job('redrive', spark=False).__enter__()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
