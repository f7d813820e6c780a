"""How long a sender waits while its store is handed over to another broker, and when the broker of its store is killed.

Two brokers have two stores. A sender at the gateway of each broker sends one message after the other to a queue of one
store, and repeats what is refused. The store is handed over and back; the longest time between two acknowledgements is the
pause. A hand-over that refuses anything has failed. Then the broker that has the store is killed, and the sender at the
other gateway is measured.

    longest pause of a hand-over     at most 0.3 s
    pause of a takeover              at most 1.5 s
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import uvloop

from busbar.cli.endpoint import ManagementEndpoint
from busbar.cli.management_client import ManagementClient
from harness.amqp_driver import LoadConnection, Sender, connect
from harness.measured import rooms_are_compiled
from harness.processes import broker_of, brokers_of, client_connections
from harness.serving import Busbar, config_text

MOVES = 10
SETTLE_SECONDS = 0.3
"""Between two moves."""
MOST, MOST_OF_TAKEOVER = 0.3, 1.5
QUEUE = "orders"
OTHER = {"broker-0": "broker-1", "broker-1": "broker-0"}


class MeasuredSender:
    """Sends one message after the other, and notes when each was acknowledged."""

    def __init__(self, connection: LoadConnection, sender: Sender) -> None:
        self.connection = connection
        self.sender = sender
        self._last = time.perf_counter()
        self._longest = 0.0
        sender.on_acknowledged = self._acknowledged

    def _acknowledged(self, first: int, count: int) -> None:
        now = time.perf_counter()
        self._longest = max(self._longest, now - self._last)
        self._last = now

    async def run(self) -> None:
        while True:
            await self.sender.send(1)
            if self.sender.refused:
                await asyncio.sleep(0.002)

    def take_longest(self) -> float:
        """The longest time between two acknowledgements since this was last asked, and since the last one."""
        longest = max(self._longest, time.perf_counter() - self._last)
        self._longest = 0.0
        return longest


async def senders_at_both(server: Busbar) -> dict[str, MeasuredSender]:
    """A sender at the gateway of each broker, by the name of the broker."""
    names = {process: name for name, process in brokers_of(server).items()}
    found: dict[str, MeasuredSender] = {}
    while len(found) < len(names):
        connection = await connect(server.port)
        broker = names[client_connections(server)[connection.local_port]]
        sender = await connection.sender(QUEUE, in_flight=1, body=b"x" * 1024)
        found.setdefault(broker, MeasuredSender(connection, sender))
    return found


def move(server: Busbar) -> None:
    endpoint = ManagementEndpoint("127.0.0.1", server.port, False, "RootManageSharedAccessKey", server.key)
    with ManagementClient(endpoint) as client:
        (fragment,) = json.loads(client.expect("GET", f"$busbar/fragments/{QUEUE}", QUEUE).body)
        store, broker = fragment["store"], OTHER[fragment["broker"]]
        client.expect("POST", f"$busbar/stores/{store}/move/{broker}", store)


async def measure(server: Busbar) -> tuple[list[float], float]:
    """The longest pauses of hand-overs, and the pause of a takeover."""
    senders = await senders_at_both(server)
    tasks = {name: asyncio.create_task(one.run()) for name, one in senders.items()}
    pauses = []
    for _ in range(MOVES):
        await asyncio.sleep(SETTLE_SECONDS)
        for one in senders.values():
            one.take_longest()
        await asyncio.to_thread(move, server)
        await asyncio.sleep(SETTLE_SECONDS)
        pauses.append(max(one.take_longest() for one in senders.values()))
    refused = [error for one in senders.values() for _, error in one.sender.refused]
    if refused:
        raise SystemExit(f"a hand-over refused {len(refused)} sends: {refused[0]}")
    owner = await asyncio.to_thread(broker_of, server, QUEUE)
    tasks[owner].cancel()
    left = senders[OTHER[owner]]
    left.take_longest()
    acknowledged = left.sender.acknowledged
    os.kill(brokers_of(server)[owner], signal.SIGKILL)
    await asyncio.sleep(SETTLE_SECONDS)
    while left.sender.acknowledged <= acknowledged + 10:
        await asyncio.sleep(0.01)
    takeover = left.take_longest()
    tasks[OTHER[owner]].cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    await left.connection.close()
    return pauses, takeover


def main() -> int:
    if not rooms_are_compiled():
        print("the compiled rooms are not built: the interpreted ones are measured")
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory:
        config = config_text({QUEUE: {}}, {"balance_delay": 600_000})
        arguments = ("--brokers", "2", "--stores", "2")
        server = Busbar(Path(directory) / "data", config, arguments=arguments).start()
        try:
            pauses, takeover = uvloop.run(measure(server))
        finally:
            server.stop()
    held = max(pauses) <= MOST and takeover <= MOST_OF_TAKEOVER
    print(
        f"{MOVES} hand-overs: pauses of a sender {min(pauses):.3f} to {max(pauses):.3f} s, median {median(pauses):.3f} s "
        f"(at most {MOST}){'' if max(pauses) <= MOST else '  MISSED'}"
    )
    print(
        f"takeover of a killed broker's store: {takeover:.3f} s (at most {MOST_OF_TAKEOVER})"
        f"{'' if takeover <= MOST_OF_TAKEOVER else '  MISSED'}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
