"""A partitioned queue costs its broker about what a regular one does: with much in flight, measured in turn on one server.

There are two ratios. That of CPU times compares the cheapest round of each queue: what else the machine does can only make
a round dearer. For sends there is also the median ratio of syncs, since messages that lose their turns share fewer commits
(of the compiled rooms: interpreted ones are too slow to fill theirs). `make bench ARGS=partitioned` asks for 10 %, in
throughput too, on a machine that does nothing else. Here there is room for one that does, and so this does not prove P9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median

import pytest

from harness.cycle import Cost, cycling, draining, sending
from harness.measured import MeasuredServer, measured_server, rooms_are_compiled
from harness.serving import BROKERS

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        bool(BROKERS), reason="messages that go from one broker to another cost more, as docs/brokers.md says"
    ),
]

ROUNDS = 5
IN_FLIGHT = 1_000
MOST_CPU = 1.35
MOST_SYNCS = 1.5
SECONDS = 0.4
BACKLOG = 40_000

Measure = Callable[[MeasuredServer, str], Awaitable[Cost]]
WORK: dict[str, Measure] = {
    "send": lambda server, queue: sending(server, queue, IN_FLIGHT, SECONDS),
    "receive": lambda server, queue: draining(server, queue, IN_FLIGHT, BACKLOG),
    "cycle": lambda server, queue: cycling(server, queue, IN_FLIGHT, SECONDS),
}


@pytest.mark.parametrize("work", WORK)
def test_a_partitioned_queue_costs_what_a_regular_one_does(work: str) -> None:
    with measured_server({"regular": {}, "partitioned": {"EnablePartitioning": True}}) as server:
        pairs = asyncio.run(compare(server, WORK[work]))
    regular, partitioned = ([cost.cpu_us for cost in costs] for costs in zip(*pairs, strict=True))
    assert min(partitioned) <= MOST_CPU * min(regular), [f"{cost:.1f}" for cost in (*regular, *partitioned)]
    if work == "send" and rooms_are_compiled():
        syncs = [syncs_of(after) / syncs_of(before) for before, after in pairs]
        assert median(syncs) <= MOST_SYNCS, [f"{ratio:.2f}" for ratio in syncs]


async def compare(server: MeasuredServer, measure: Measure) -> list[tuple[Cost, Cost]]:
    """Of the regular queue and, right after it, of the partitioned one."""
    return [(await measure(server, "regular"), await measure(server, "partitioned")) for _ in range(ROUNDS)]


def syncs_of(cost: Cost) -> float:
    assert cost.syncs is not None, "counting them takes a C compiler"
    return cost.syncs / cost.messages
