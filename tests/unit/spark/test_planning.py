"""Limits and partitions: nothing is left out, nothing is read twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from busbar.spark.planning import LEAST_PER_TASK, Bounds, EntityRanges, limit_batch, pack_tasks, plan_tasks

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


@given(st.lists(SPANS, max_size=4), st.integers(1, 20))
def test_tasks_of_several_entities_cover_all_once(
    entities: list[dict[int, tuple[int, int]]], most: int
) -> None:
    found = [
        (EntityRanges(f"queue{number}", "", "tap", ""), *bounds(spans))
        for number, spans in enumerate(entities)
    ]
    tasks = plan_tasks(found, most)
    assert len(tasks) <= most
    reached = {part.entity: dict(begins) for part, begins, _ends in found}
    for task in tasks:
        for part in task.parts:
            for index, after, upto in part.ranges:
                assert after == reached[part.entity][index] < upto
                reached[part.entity][index] = upto
    assert reached == {part.entity: ends for part, _begins, ends in found}


def test_one_deep_fragment_is_divided_among_all_tasks_and_shallow_entities_share_one() -> None:
    deep = EntityRanges("deep", "", None, "")
    tasks = plan_tasks([(deep, {0: 0}, {0: 10_000_000})], 4)
    assert [task.parts[0].ranges for task in tasks] == [
        ((0, 2_500_000 * number, 2_500_000 * (number + 1)),) for number in range(4)
    ]
    small: list[Bounds] = [(EntityRanges(f"q{number}", "", None, ""), {}, {0: 10}) for number in range(20)]
    (only,) = plan_tasks(small, 4)
    assert len(only.parts) == 20
