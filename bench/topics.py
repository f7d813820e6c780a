"""What a topic costs: CPU of a message that is sent to a topic, compared with one that is sent to a queue.

Each subscription that selects a message keeps a copy, so a send costs more with every such subscription. A rule that does
not match costs its evaluation. Queue and topics are measured in turn, and the median of the ratios of neighbours in time
counts. A topic with one subscription that gets everything has to stay within BUDGET of a queue: there is one commit for
both.

Then all subscriptions have consumers that keep up. A message is sent once, and received and settled as often as there are
subscriptions. It is compared with a message that is sent to a queue, received and settled. Ten subscriptions may cost 3
times as much, a hundred 25 times (FOLLOWED_BUDGETS).
"""

from __future__ import annotations

import sys
from statistics import median

import uvloop

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, ULong
from harness.amqp_driver import connect
from harness.cycle import BODY, Cost, Meter, require_success, send_for, sending
from harness.measured import MeasuredServer, measured_server, rooms_are_compiled

SECONDS = 1.0
ROUNDS = 5
IN_FLIGHT = 1_000
BUDGET = 1.5
EVERYTHING: dict[str, object] = {
    "Name": "$Default",
    "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}},
}


def sql(number: int) -> dict[str, object]:
    expression = f"number = {number} AND color = 'red'"
    return {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}}


def correlation(number: int) -> dict[str, object]:
    conditions = {"Label": f"label-{number}"}
    return {"Name": "r", "Properties": {"FilterType": "Correlation", "CorrelationFilter": conditions}}


TOPICS = {
    "1 subscription takes all": [EVERYTHING],
    "10 take all": [EVERYTHING] * 10,
    "10 SQL filters, 1 matches": [sql(number) for number in range(10)],
    "1,000 correlations, 1 matches": [correlation(number) for number in range(1_000)],
}


def topics() -> list[dict[str, object]]:
    return [
        {
            "Name": f"topic-{place}",
            "Properties": {"MaxSizeInMegabytes": 5120},
            "Subscriptions": [{"Name": f"s{number}", "Rules": [rule]} for number, rule in enumerate(rules)],
        }
        for place, rules in enumerate(TOPICS.values())
    ]


_MESSAGE = b"".join(
    encode_value(Described(ULong(code), value))
    for code, value in (
        (0x73, ["id", None, None, "label-3"]),
        (0x74, {"number": 3, "color": "red"}),
        (0x75, b"x" * 1024),
    )
)


FOLLOWED = {"10, with consumers": 10, "100, with consumers": 100}
FOLLOWED_BUDGETS = {"10, with consumers": 3.0, "100, with consumers": 25.0}
FEW = 40
"""In flight, so that the copies of all are pending in the store at once."""


def followed() -> list[dict[str, object]]:
    return [
        {
            "Name": f"followed-{count}",
            "Properties": {"MaxSizeInMegabytes": 5120},
            "Subscriptions": [{"Name": f"s{number}", "Rules": [EVERYTHING]} for number in range(count)],
        }
        for count in FOLLOWED.values()
    ]


async def cost_with_consumers(server: MeasuredServer, entity: str, ends: list[str]) -> Cost:
    """Send for a time while each end receives and settles everything."""
    sending_side, receiving_side = await connect(server.busbar.port), await connect(server.busbar.port)
    receivers = [await receiving_side.receiver(end, credit=IN_FLIGHT) for end in ends]
    sender = await sending_side.sender(entity, lambda _number: _MESSAGE, in_flight=FEW, body=BODY)
    await sender.send(2 * FEW)
    meter, before = Meter(server), sender.acknowledged
    await send_for(sender, SECONDS)
    for receiver in receivers:
        await receiver.settled(sender.acknowledged)
    cost = meter.cost(entity, sender.acknowledged - before)
    require_success(sender)
    await sending_side.close()
    await receiving_side.close()
    return cost


async def cost_of(server: MeasuredServer, entity: str) -> Cost:
    return await sending(server, entity, IN_FLIGHT, SECONDS, payload=lambda number: _MESSAGE, what=entity)


async def compare(server: MeasuredServer) -> float:
    """Print the table; returns the ratio of the first topic."""
    print(f"{'':<34}{'messages/s':>12}{'CPU-µs':>9}{'to a queue':>12}")
    ratios = []
    for place, what in enumerate(TOPICS):
        pairs = [
            (await cost_of(server, "queue"), await cost_of(server, f"topic-{place}")) for _ in range(ROUNDS)
        ]
        ratios.append(median(topic.cpu_us / queue.cpu_us for queue, topic in pairs))
        costs = [topic for _, topic in pairs]
        rate = max(cost.messages / cost.seconds for cost in costs)
        cpu = median(cost.cpu_us for cost in costs)
        print(f"{what:<34}{rate:>12,.0f}{cpu:>9.1f}{ratios[-1]:>12.2f}", flush=True)
    return ratios[0]


async def compare_with_consumers(server: MeasuredServer) -> dict[str, float]:
    """Print the rest of the table; returns its ratios."""
    ratios = {}
    for what, count in FOLLOWED.items():
        topic = f"followed-{count}"
        ends = [f"{topic}/Subscriptions/s{number}" for number in range(count)]
        pairs = [
            (
                await cost_with_consumers(server, "consumed", ["consumed"]),
                await cost_with_consumers(server, topic, ends),
            )
            for _ in range(ROUNDS)
        ]
        rate = max(cost.messages / cost.seconds for _, cost in pairs)
        cpu = median(cost.cpu_us for _, cost in pairs)
        ratios[what] = median(topic.cpu_us / queue.cpu_us for queue, topic in pairs)
        print(f"{what:<34}{rate:>12,.0f}{cpu:>9.1f}{ratios[what]:>12.2f}", flush=True)
    return ratios


def main() -> int:
    queues: dict[str, dict[str, object]] = {
        name: {"MaxSizeInMegabytes": 5120} for name in ("queue", "consumed")
    }
    with measured_server(queues, topics=[*topics(), *followed()]) as server:
        ratio = uvloop.run(compare(server))
        followed_ratios = uvloop.run(compare_with_consumers(server))
    if not rooms_are_compiled():
        print(
            "\nthe compiled rooms are not built: the interpreted ones were measured, and no ratio is asked of them"
        )
        return 0
    if ratio > BUDGET:
        print(f"\nover the budget: one subscription should cost at most {BUDGET} times what a queue costs")
    over = [what for what, budget in FOLLOWED_BUDGETS.items() if followed_ratios[what] > budget]
    for what in over:
        print(f"\nover the budget: {what} should cost at most {FOLLOWED_BUDGETS[what]:g} times a queue")
    return 1 if over or ratio > BUDGET else 0


if __name__ == "__main__":
    sys.exit(main())
