"""Limits and partitions: nothing is left out, nothing is read twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from busbar.spark.planning import LEAST_PER_TASK, limit_batch, pack_tasks

SPANS = st.dictionaries(
    st.integers(0, 15), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=16
)


def bounds(spans: dict[int, tuple[int, int]]) -> tuple[dict[int, int], dict[int, int]]:
    return (
        {index: begin for index, (begin, _length) in spans.items()},
        {index: begin + length for index, (begin, length) in spans.items()},
    )


@given(SPANS, st.none() | st.integers(1, 10**7))
def test_a_limit_is_used_and_kept(spans: dict[int, tuple[int, int]], limit: int | None) -> None:
    begins, ends = bounds(spans)
    stops = limit_batch(begins, ends, limit)
    taken = sum(stops[index] - begins[index] for index in ends)
    total = sum(ends[index] - begins[index] for index in ends)
    assert taken == (total if limit is None else min(limit, total))
    assert all(begins[index] <= stops[index] <= ends[index] for index in ends)


def test_fragments_advance_in_proportion() -> None:
    assert limit_batch({0: 0, 1: 100, 2: 5}, {0: 900, 1: 200, 2: 5}, 100) == {0: 90, 1: 110, 2: 5}


@given(SPANS, st.integers(1, 20))
def test_partitions_cover_all_once(spans: dict[int, tuple[int, int]], most: int) -> None:
    begins, ends = bounds(spans)
    plan = pack_tasks(begins, ends, most)
    assert len(plan) <= most
    reached = dict(begins)
    for ranges in plan:
        for index, after, upto in ranges:
            assert after == reached[index] < upto
            reached[index] = upto
    assert reached == ends


def test_small_batches_take_one_task_and_large_ones_all_evenly() -> None:
    assert pack_tasks({}, dict.fromkeys(range(16), 10), 8) == [[(index, 0, 10) for index in range(16)]]
    plan = pack_tasks({}, dict.fromkeys(range(16), LEAST_PER_TASK), 4)
    assert [sum(upto - after for _, after, upto in ranges) for ranges in plan] == [4 * LEAST_PER_TASK] * 4
    assert len(pack_tasks({}, {0: 100 * LEAST_PER_TASK}, 2)) == 2
