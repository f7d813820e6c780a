"""What forwarding costs: CPU of a message that is sent to a queue and forwarded, compared with one that is only sent.

A forwarded message is two sends, one removal and a share of a mark. All ways are measured in turn, and the median of the
ratios of neighbours in time counts. Budgets, in sends:

    to a queue in the same store, or in another one        2.2
    to a queue of another broker process                   2.8
    20 subscriptions that forward to one queue, a copy     1.2 times the first
"""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import uvloop

from busbar.catalogue.placement import place
from busbar.model.sas import sign
from harness.amqp_driver import connect
from harness.cycle import BODY, require_success
from harness.measured import rooms_are_compiled
from harness.serving import Busbar, config_text

MESSAGES = 15_000
COPIES = 20
ROUNDS = 3
IN_FLIGHT = 1_000
STORES = [f"store-{number}" for number in range(4)]
LARGE: dict[str, object] = {"MaxSizeInMegabytes": 5120}
FORWARD, OTHER_PROCESS, FAN_OUT = 2.2, 2.8, 1.2


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


def config() -> str:
    queues = {PLAIN: LARGE, GATHERED: LARGE}
    for way, target in TARGETS.items():
        queues[target] = LARGE
        queues[SOURCES[way]] = {**LARGE, "ForwardTo": target}
    subscriptions = [{"Name": f"s{n}", "Properties": {"ForwardTo": GATHERED}} for n in range(COPIES)]
    topic = {"Name": TOPIC, "Properties": LARGE, "Subscriptions": subscriptions}
    return config_text(queues, topics=[topic])


def processor_seconds(server: Busbar) -> float:
    """Of all its processes."""
    ticks = 0
    for process in server.processes():
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def messages_in(server: Busbar, queue: str) -> int:
    token = sign("http://localhost/", "RootManageSharedAccessKey", server.key, int(time.time()) + 60)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"/{queue}?api-version=2021-05", headers={"Authorization": token})
    text = connection.getresponse().read().decode()
    connection.close()
    return int(re.findall(r"ActiveMessageCount>(\d+)<", text)[0])


async def cost_of(server: Busbar, entity: str, end: str, messages: int, copies: int = 1) -> float:
    """CPU-µs for each message that arrives at its end."""
    connection = await connect(server.port)
    sender = await connection.sender(entity, in_flight=IN_FLIGHT, body=BODY)
    before, began = messages_in(server, end), processor_seconds(server)
    await sender.send(messages)
    require_success(sender)
    while messages_in(server, end) < before + messages * copies:
        await asyncio.sleep(0.02)
    await connection.close()
    return (processor_seconds(server) - began) * 1e6 / (messages * copies)


async def compare(server: Busbar, where: str) -> dict[str, float]:
    """Prints a line for each way; the ratios to a send."""
    ratios: dict[str, list[float]] = {way: [] for way in (*TARGETS, "20 subscriptions, a copy")}
    for round_number in range(ROUNDS + 1):
        plain = await cost_of(server, PLAIN, PLAIN, MESSAGES)
        for way, target in TARGETS.items():
            cost = await cost_of(server, SOURCES[way], target, MESSAGES)
            if round_number:  # the first one warms up
                ratios[way].append(cost / plain)
        cost = await cost_of(server, TOPIC, GATHERED, MESSAGES // COPIES, COPIES)
        if round_number:
            ratios["20 subscriptions, a copy"].append(cost / plain)
    found = {way: median(of_rounds) for way, of_rounds in ratios.items()}
    for way, ratio in found.items():
        print(f"{where:<16}{way:<28}{ratio:>8.2f} sends", flush=True)
    return found


def measured(where: str, *arguments: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory:
        server = Busbar(Path(directory) / "data", config(), arguments=arguments).start()
        try:
            return uvloop.run(compare(server, where))
        finally:
            server.stop()


def main() -> int:
    one = measured("one process")
    two = measured("two brokers", "--brokers", "2")
    if not rooms_are_compiled():
        print(
            "\nthe compiled rooms are not built: the interpreted ones were measured, and nothing is asked of them"
        )
        return 0
    budgets = [(one[way], FORWARD) for way in TARGETS]
    budgets.append((two["to another store"], OTHER_PROCESS))  # store-0 and store-1 have different brokers
    budgets.append((one["20 subscriptions, a copy"], FAN_OUT * one["to the same store"]))
    over = [f"{ratio:.2f} instead of {budget:.2f}" for ratio, budget in budgets if ratio > budget]
    if over:
        print(f"\nover the budget: {', '.join(over)}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
