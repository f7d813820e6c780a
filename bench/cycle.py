"""What a message costs the server: send one per transfer, in batches of 100, receive and settle, the full cycle.

Durable, 1 KiB bodies, 1,000 messages in flight, clients that pipeline (bench/load.py, in another process than the
server). Server CPU is that of all its threads. The budget is 50 µs of it for the full cycle.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass

import uvloop

from bench.load import Receiver, Sender, connect
from bench.measured import MeasuredServer, calibrate, measured_server, rooms_are_compiled

SECONDS = 3.0
IN_FLIGHT = 1_000
BODY = b"x" * 1024
BUDGET = 50.0
WITHOUT_END = 1 << 30


@dataclass(frozen=True, slots=True)
class Cost:
    what: str
    messages: int
    seconds: float
    cpu_seconds: float
    syncs: int | None

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds * 1e6 / max(1, self.messages)


class Meter:
    """What the server spends between two moments."""

    def __init__(self, server: MeasuredServer) -> None:
        self._server = server
        self._began = time.monotonic()
        self._cpu = server.cpu_seconds()
        self._syncs = server.syncs()

    def cost(self, what: str, messages: int) -> Cost:
        syncs = self._server.syncs()
        spent = None if syncs is None or self._syncs is None else syncs - self._syncs
        seconds = time.monotonic() - self._began
        return Cost(what, messages, seconds, self._server.cpu_seconds() - self._cpu, spent)


async def sending(server: MeasuredServer, queue: str, batch: int, what: str) -> Cost:
    connection = await connect(server.busbar.port)
    sender = await connection.sender(queue, in_flight=IN_FLIGHT, batch=batch, body=BODY)
    await sender.send(2_000)
    meter, before = Meter(server), sender.acknowledged
    await _for_a_while(sender)
    cost = meter.cost(what, sender.acknowledged - before)
    _check(sender)
    await connection.close()
    return cost


async def receiving(server: MeasuredServer, queue: str, single: bool, what: str) -> Cost:
    connection = await connect(server.busbar.port)
    receiver = await connection.receiver(queue, credit=IN_FLIGHT, single=single)
    await receiver.settled(2_000)
    meter, before = Meter(server), receiver.confirmed
    try:
        await asyncio.wait_for(receiver.settled(WITHOUT_END), SECONDS)
    except TimeoutError:
        pass
    cost = meter.cost(what, receiver.confirmed - before)
    _check(receiver)
    await connection.close()
    return cost


async def cycling(server: MeasuredServer, queue: str, what: str) -> Cost:
    """A sender and a receiver at once, each on its own connection; the sender keeps 1,000 messages on their way."""
    sending_side, receiving_side = await connect(server.busbar.port), await connect(server.busbar.port)
    receiver = await receiving_side.receiver(queue, credit=IN_FLIGHT)
    sender = await sending_side.sender(queue, in_flight=IN_FLIGHT, body=BODY)
    await sender.send(2_000)
    await receiver.settled(2_000)
    meter, before = Meter(server), receiver.confirmed
    await _for_a_while(sender)
    await receiver.settled(sender.acknowledged)
    cost = meter.cost(what, receiver.confirmed - before)
    _check(sender)
    _check(receiver)
    await sending_side.close()
    await receiving_side.close()
    return cost


async def _for_a_while(sender: Sender) -> None:
    sender.start(WITHOUT_END)
    await asyncio.sleep(SECONDS)
    sender.stop()
    await sender.until(lambda: sender.outstanding == 0)


def _check(end: Sender | Receiver) -> None:
    failed = end.refused if isinstance(end, Sender) else end.denied
    if failed:
        raise SystemExit(f"{len(failed)} operations failed, the first with {failed[0][1]}")


async def costs(server: MeasuredServer) -> list[Cost]:
    return [
        await sending(server, "one", 1, "send, one per transfer"),
        await sending(server, "many", 100, "send, batches of 100"),
        await receiving(server, "one", True, "receive and settle, one by one"),
        await receiving(server, "many", False, "receive and settle, in ranges"),
        await cycling(server, "both", "the full cycle"),
    ]


def report(costs: list[Cost], unit: float) -> None:
    print(f"{'':<34}{'msg/s':>10}{'CPU-µs/msg':>12}{'ratio':>8}{'syncs/1,000':>13}")
    for cost in costs:
        syncs = "-" if cost.syncs is None else f"{1000 * cost.syncs / max(1, cost.messages):.1f}"
        rate = cost.messages / cost.seconds
        print(f"{cost.what:<34}{rate:>10,.0f}{cost.cpu_us:>12.1f}{cost.cpu_us / unit:>8.2f}{syncs:>13}")


def main() -> int:
    compiled = rooms_are_compiled()
    worst = 0.0
    for interpreted in (False, True) if compiled else (True,):
        unit = calibrate()
        with measured_server({"one": {}, "many": {}, "both": {}}, interpreted=interpreted) as server:
            measured = uvloop.run(costs(server))
            memory = server.busbar.resident_bytes() / 1024 / 1024
        unit = min(unit, calibrate())
        print(
            f"\n{'interpreted' if interpreted else 'compiled'}; {unit:.2f} CPU-µs for a unit of the calibration loop"
        )
        report(measured, unit)
        print(f"{'memory at the end':<34}{memory:>10.0f} MB")
        if not interpreted:
            worst = measured[-1].cpu_us
    if not compiled:
        print("\nthe compiled rooms are not built: only the interpreted ones were measured")
    elif worst > BUDGET:
        print(f"\nover the budget: the full cycle should cost {BUDGET:.0f} CPU-µs or less, compiled")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
