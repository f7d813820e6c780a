"""What a message costs the server, compared with another commit: two servers side by side, whose short rounds take turns.

    AGAINST=../busbar-before make bench ARGS=against

AGAINST is a checkout of the other commit with its compiled rooms. Each checkout runs its own server, and its own harness
drives it. The machine is shared, so the median of the ratios of neighbours in time counts. It has to stay within BUDGET.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import uvloop

from bench import brokers, sessions, topics
from harness.cycle import cycling, draining, sending
from harness.measured import MeasuredServer, measured_server
from harness.serving import Busbar, config_text

HERE = Path(__file__).resolve()
ROUNDS = 9
SECONDS = 0.8
IN_FLIGHT = 1_000
BACKLOG = 20_000
BUDGET = 1.05
KINDS = {"regular": False, "partitioned": True}
LOADS = (
    *(f"{work}, {kind}" for kind in KINDS for work in ("send", "batches", "receive", "cycle", "sessions")),
    "topic-0",
    "topic-2",
    "brokers",
)


async def cost_of(load: str, server: MeasuredServer, several: Busbar) -> float:
    """CPU-µs for each message."""
    if load.startswith("topic"):
        cost = await sending(server, load, IN_FLIGHT, SECONDS, payload=lambda _number: topics._MESSAGE)
        return cost.cpu_us
    if load == "brokers":
        return (await brokers.cycle(several, BACKLOG)).total
    work, kind = load.split(", ")
    if work == "sessions":
        with contextlib.redirect_stdout(io.StringIO()):
            return (await sessions.throughput(server, kind, 100, BACKLOG))[1]
    if work == "receive":
        return (await draining(server, f"{kind}-backlog", IN_FLIGHT, BACKLOG)).cpu_us
    if work == "cycle":
        return (await cycling(server, f"{kind}-cycle", IN_FLIGHT, SECONDS)).cpu_us
    batch = 100 if work == "batches" else 1
    return (await sending(server, f"{kind}-send", IN_FLIGHT, SECONDS, batch=batch)).cpu_us


def serve() -> None:
    """Measure the loads that are named on the standard input, one in a line, on servers of the checkout that is imported."""
    queues: dict[str, dict[str, object]] = {}
    for kind, is_partitioned in KINDS.items():
        settings: dict[str, object] = {"EnablePartitioning": is_partitioned, "MaxSizeInMegabytes": 5120}
        queues |= {f"{kind}-{use}": settings for use in ("send", "backlog", "cycle")}
        queues[f"{kind}-100"] = {**settings, "RequiresSession": True}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(measured_server(queues, topics=topics.topics()))
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="busbar-bench-")))
        config = config_text({"orders": {"EnablePartitioning": True}})
        several = Busbar(data / "data", config, arguments=("--brokers", "2")).start()
        stack.callback(several.stop)
        print("ready", flush=True)
        for line in sys.stdin:
            print(uvloop.run(cost_of(line.strip(), server, several)), flush=True)


class Checkout:
    """The servers of one checkout, in a process that imports it."""

    def __init__(self, root: Path) -> None:
        paths = os.pathsep.join((str(root / "src"), str(root)))
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), "serve"],
            cwd=root,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def cost(self, load: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{load}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a server could not be measured; the reason is above")
        return line

    def close(self) -> None:
        self._process.communicate()


def main() -> int:
    other = os.environ.get("AGAINST")
    if other is None:
        print("nothing to compare with: AGAINST names a checkout of another commit, with its compiled rooms")
        return 0
    before, after = Checkout(Path(other).resolve()), Checkout(HERE.parents[1])
    print(f"{'':<24}{'before':>10}{'after':>10}{'ratio':>8}  CPU-µs a message", flush=True)
    worst = 0.0
    for load in LOADS:
        pairs = []
        for number in range(ROUNDS):
            if number % 2:
                late, early = after.cost(load), before.cost(load)
            else:
                early, late = before.cost(load), after.cost(load)
            pairs.append((early, late))
        ratio = median(late / early for early, late in pairs)
        worst = max(worst, ratio)
        medians = [median(costs) for costs in zip(*pairs, strict=True)]
        print(f"{load:<24}{medians[0]:>10.1f}{medians[1]:>10.1f}{ratio:>8.2f}", flush=True)
    before.close()
    after.close()
    if worst > BUDGET:
        print(f"\nover the budget: {worst:.2f} instead of {BUDGET}")
    return 1 if worst > BUDGET else 0


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else sys.exit(main())
