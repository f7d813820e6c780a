"""A partitioned queue costs its broker about what a regular one does: with much in flight, measured in turn on one server.

Ratios of neighbours in time say little of what else the machine does. There are two: that of CPU times, and for sends that
of syncs, since messages that lose their turns share fewer commits (of the compiled rooms: interpreted ones are too slow to
fill theirs). `make bench ARGS=partitioned` asks for 10 %, in throughput too, on a machine that does nothing else; here there
is room for one that does, and so this does not prove P9.
"""

from __future__ import annotations

import asyncio
from statistics import median

import pytest

from bench import partitioned
from bench.cycle import Cost
from bench.measured import MeasuredServer, measured_server, rooms_are_compiled
from tests.serving import BROKERS

pytestmark = pytest.mark.skipif(
    bool(BROKERS), reason="messages that go from one broker to another cost more, as docs/brokers.md says"
)

ROUNDS = 3
IN_FLIGHT = 1_000
MOST_CPU = 1.35
MOST_SYNCS = 1.5
WORK: dict[str, partitioned.Measure] = {
    "send": partitioned.sending,
    "receive": partitioned.receiving,
    "cycle": partitioned.cycling,
}


@pytest.mark.parametrize("work", WORK)
def test_a_partitioned_queue_costs_what_a_regular_one_does(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned, "SECONDS", 0.4)
    with measured_server({"regular": {}, "partitioned": {"EnablePartitioning": True}}) as server:
        pairs = asyncio.run(compare(server, WORK[work]))
    cpu = [after.cpu_us / before.cpu_us for before, after in pairs]
    assert median(cpu) <= MOST_CPU, [f"{ratio:.2f}" for ratio in cpu]
    if work == "send" and rooms_are_compiled():
        syncs = [syncs_of(after) / syncs_of(before) for before, after in pairs]
        assert median(syncs) <= MOST_SYNCS, [f"{ratio:.2f}" for ratio in syncs]


async def compare(server: MeasuredServer, measure: partitioned.Measure) -> list[tuple[Cost, Cost]]:
    """Of the regular queue and, right after it, of the partitioned one."""
    return [
        (await measure(server, "regular", IN_FLIGHT), await measure(server, "partitioned", IN_FLIGHT))
        for _ in range(ROUNDS)
    ]


def syncs_of(cost: Cost) -> float:
    assert cost.syncs is not None, "counting them takes a C compiler"
    return cost.syncs / cost.messages
