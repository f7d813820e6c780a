"""A partitioned queue costs its broker about what a regular one does: with much in flight, measured in turn on one server.

The ratio of CPU times of neighbours in time says little of what else the machine does. `make bench ARGS=partitioned` asks
for 10 %, in throughput too, on a machine that does nothing else; here there is room for one that does, and so this does not
prove P9. It notices receives that lose their size, not sends that lose their turns.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median

import pytest

from bench import partitioned
from bench.measured import MeasuredServer
from tests.serving import Busbar, config_text

ROUNDS = 3
IN_FLIGHT = 1_000
MOST = 1.35
WORK: dict[str, partitioned.Measure] = {
    "send": partitioned.sending,
    "receive": partitioned.receiving,
    "cycle": partitioned.cycling,
}


@pytest.mark.parametrize("work", WORK)
def test_a_partitioned_queue_costs_what_a_regular_one_does(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned, "SECONDS", 0.4)
    queues = {"regular": {}, "partitioned": {"EnablePartitioning": True}}
    busbar = Busbar(tmp_path / "data", config_text(queues)).start()
    try:
        ratios = asyncio.run(compare(MeasuredServer(busbar, None), WORK[work]))
    finally:
        busbar.stop()
    assert median(ratios) <= MOST, [f"{ratio:.2f}" for ratio in ratios]


async def compare(server: MeasuredServer, measure: partitioned.Measure) -> list[float]:
    ratios = []
    for _ in range(ROUNDS):
        regular = await measure(server, "regular", IN_FLIGHT)
        ratios.append((await measure(server, "partitioned", IN_FLIGHT)).cpu_us / regular.cpu_us)
    return ratios
