"""What moves and transactions cost: CPU of the server, compared with sends and settlements in the same run.

A forwarded message is two sends, one removal and a share of a mark, as long as the mover keeps up with the senders. It is
measured with 100 and with 1,000 messages in flight. A message that is sent via another entity is moved in the same way.
A transaction is compared with the same operations outside: as many in a group, and as many groups at a time.

All ways are measured in turn, and the median of the ratios of neighbours in time counts. Budgets, in sends:

    to a queue in the same store, or in another one        2.2
    to a queue of another broker process                   2.8
    20 subscriptions that forward to one queue, a copy     1.2 times the first
    via another queue                                      2.5

and in operations outside of a transaction:

    transactions of 10 and of 100 sends or settlements     1.3
"""

from __future__ import annotations

import asyncio
import http.client
import re
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from statistics import median

import uvloop

from busbar.catalogue.placement import place
from busbar.model.sas import sign
from harness.amqp_driver import connect
from harness.cycle import BODY, require_success
from harness.measured import processor_time, rooms_are_compiled
from harness.serving import Busbar, config_text
from harness.transaction_load import TransactionLoad

MESSAGES = 15_000
COPIES = 20
ROUNDS = 3
TRANSACTION_ROUNDS = 9
IN_FLIGHT, SATURATED = 100, 1_000
STORES = [f"store-{number}" for number in range(4)]
LARGE: dict[str, object] = {"MaxSizeInMegabytes": 5120}
FORWARD, OTHER_PROCESS, FAN_OUT, VIA, TRANSACTION = 2.2, 2.8, 1.2, 2.5, 1.3
MANY, FAST, BY_VIA = "20 subscriptions, a copy", "same store, 1,000 in flight", "via another queue"
GROUPS = 10
"""At a time, of as many operations as a transaction has."""
SIZES = (10, 100)


def name_in(store: str, word: str) -> str:
    """A queue that lies in this store."""
    return next(name for name in map(f"{word}-{{}}".format, range(999)) if place(name, 1, STORES) == (store,))


PLAIN = name_in("store-0", "plain")
TARGETS = {
    "to the same store": name_in("store-0", "same"),
    "to another store": name_in("store-1", "other"),
}
SOURCES = {way: name_in("store-0", f"source-{number}") for number, way in enumerate(TARGETS)}
GATHERED = name_in("store-0", "gathered")
TOPIC = name_in("store-0", "topic")
VIA_QUEUE = name_in("store-0", "via")
ACCOUNTS = name_in("store-0", "accounts")


def config() -> str:
    queues = {PLAIN: LARGE, GATHERED: LARGE, VIA_QUEUE: LARGE, ACCOUNTS: LARGE}
    for way, target in TARGETS.items():
        queues[target] = LARGE
        queues[SOURCES[way]] = {**LARGE, "ForwardTo": target}
    subscriptions = [{"Name": f"s{n}", "Properties": {"ForwardTo": GATHERED}} for n in range(COPIES)]
    topic = {"Name": TOPIC, "Properties": LARGE, "Subscriptions": subscriptions}
    return config_text(queues, topics=[topic])


def processor_seconds(server: Busbar) -> float:
    """Of all threads of all its processes."""
    return sum(processor_time(process) for process in server.processes())


def messages_in(server: Busbar, queue: str) -> int:
    token = sign("http://localhost/", "RootManageSharedAccessKey", server.key, int(time.time()) + 60)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"/{queue}?api-version=2021-05", headers={"Authorization": token})
    text = connection.getresponse().read().decode()
    connection.close()
    return int(re.findall(r"ActiveMessageCount>(\d+)<", text)[0])


async def cost_of(
    server: Busbar, entity: str, end: str, messages: int, copies: int = 1, in_flight: int = IN_FLIGHT
) -> float:
    """CPU-µs for each message that arrives at its end."""
    connection = await connect(server.port)
    sender = await connection.sender(entity, in_flight=in_flight, body=BODY)
    before, began = messages_in(server, end), processor_seconds(server)
    await sender.send(messages)
    require_success(sender)
    await arrived(server, end, before + messages * copies)
    await connection.close()
    return (processor_seconds(server) - began) * 1e6 / (messages * copies)


async def arrived(server: Busbar, end: str, messages: int) -> None:
    while messages_in(server, end) < messages:
        await asyncio.sleep(0.02)


async def cost_via(server: Busbar) -> float:
    """CPU-µs for each message that is sent via another queue."""
    target = TARGETS["to the same store"]
    load = await TransactionLoad.open(server.port, VIA_QUEUE, BODY, destination=target)
    before, began = messages_in(server, target), processor_seconds(server)
    await load.send(MESSAGES // IN_FLIGHT, IN_FLIGHT, 1, inside=False)
    await arrived(server, target, before + MESSAGES)
    await load.connection.close()
    return (processor_seconds(server) - began) * 1e6 / MESSAGES


async def cost_of_groups(server: Busbar, size: int, inside: bool, settles: bool) -> float:
    """CPU-µs for each operation of transactions of this size, or of groups of this size outside of one."""
    load = await TransactionLoad.open(server.port, ACCOUNTS, BODY, receives=settles)
    began = processor_seconds(server)
    work = load.settle if settles else load.send
    await work(MESSAGES // size, size, GROUPS, inside)
    await load.connection.close()
    return (processor_seconds(server) - began) * 1e6 / MESSAGES


async def compare_transactions(server: Busbar) -> dict[str, float]:
    """Prints a line for each kind and size; the ratios to the same operations outside."""
    ratios: dict[str, list[float]] = {}
    for round_number in range(TRANSACTION_ROUNDS + 1):
        for size in SIZES:
            for settles, what in (
                (False, "sends"),
                (True, "settlements"),
            ):  # as many are settled as were sent
                costs = {}
                for inside in (True, False) if round_number % 2 else (False, True):
                    costs[inside] = await cost_of_groups(server, size, inside, settles)
                if round_number:
                    ratios.setdefault(f"of {size} {what}", []).append(costs[True] / costs[False])
    found = {way: median(of_rounds) for way, of_rounds in ratios.items()}
    for way, ratio in found.items():
        print(f"{'transactions':<16}{way:<30}{ratio:>8.2f} outside", flush=True)
    return found


async def compare(server: Busbar, where: str) -> dict[str, float]:
    """Prints a line for each way; the ratios to a send."""
    ratios: dict[str, list[float]] = {way: [] for way in (*TARGETS, MANY, FAST, BY_VIA)}
    for round_number in range(ROUNDS + 1):
        plain = await cost_of(server, PLAIN, PLAIN, MESSAGES)
        for way, target in TARGETS.items():
            cost = await cost_of(server, SOURCES[way], target, MESSAGES)
            if round_number:  # the first one warms up
                ratios[way].append(cost / plain)
        cost = await cost_of(server, TOPIC, GATHERED, MESSAGES // COPIES, COPIES)
        plain_saturated = await cost_of(server, PLAIN, PLAIN, MESSAGES, in_flight=SATURATED)
        source, target = SOURCES["to the same store"], TARGETS["to the same store"]
        saturated = await cost_of(server, source, target, MESSAGES, in_flight=SATURATED)
        via = await cost_via(server)
        if round_number:
            ratios[MANY].append(cost / plain)
            ratios[FAST].append(saturated / plain_saturated)
            ratios[BY_VIA].append(via / plain)
    found = {way: median(of_rounds) for way, of_rounds in ratios.items()}
    for way, ratio in found.items():
        print(f"{where:<16}{way:<30}{ratio:>8.2f} sends", flush=True)
    return found


Comparison = Callable[[Busbar], Coroutine[None, None, dict[str, float]]]


def measured(comparison: Comparison, *arguments: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory:
        server = Busbar(Path(directory) / "data", config(), arguments=arguments).start()
        try:
            return uvloop.run(comparison(server))
        finally:
            server.stop()


def main() -> int:
    one = measured(lambda server: compare(server, "one process"))
    two = measured(lambda server: compare(server, "two brokers"), "--brokers", "2")
    transactions = measured(compare_transactions)
    if not rooms_are_compiled():
        print(
            "\nthe compiled rooms are not built: the interpreted ones were measured, and nothing is asked of them"
        )
        return 0
    budgets = [(one[way], FORWARD) for way in TARGETS]
    budgets.append((two["to another store"], OTHER_PROCESS))  # store-0 and store-1 have different brokers
    budgets.append((one[MANY], FAN_OUT * one["to the same store"]))
    budgets += [(one[FAST], FORWARD), (one[BY_VIA], VIA)]
    budgets += [(ratio, TRANSACTION) for ratio in transactions.values()]
    over = [f"{ratio:.2f} instead of {budget:.2f}" for ratio, budget in budgets if ratio > budget]
    if over:
        print(f"\nover the budget: {', '.join(over)}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
