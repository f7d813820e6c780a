"""What a message costs the server: send one per transfer, in batches of 100, receive and settle, the full cycle.

Durable, 1 KiB bodies, 1,000 messages in flight, clients that pipeline (harness/amqp_driver.py, in another process than the
server). Server CPU is that of all its threads. The budget is 50 µs of it for the full cycle.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from harness.amqp_driver import connect
from harness.cycle import WITHOUT_END, Cost, Meter, cycling, require_success, sending
from harness.measured import MeasuredServer, calibrate, measured_server, rooms_are_compiled

SECONDS = 3.0
IN_FLIGHT = 1_000
BUDGET = 50.0


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
    require_success(receiver)
    await connection.close()
    return cost


async def costs(server: MeasuredServer) -> list[Cost]:
    return [
        await sending(server, "one", IN_FLIGHT, SECONDS, what="send, one per transfer"),
        await sending(server, "many", IN_FLIGHT, SECONDS, batch=100, what="send, batches of 100"),
        await receiving(server, "one", True, "receive and settle, one by one"),
        await receiving(server, "many", False, "receive and settle, in ranges"),
        await cycling(server, "both", IN_FLIGHT, SECONDS, what="the full cycle"),
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
