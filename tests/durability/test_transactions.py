"""A transaction is done as a whole or not at all, also if the server or one of its brokers is killed under load.

Money shows it: transfers between accounts conserve it, and no transfer is half done. What is sent via another queue arrives
once. The messages are compared with what clients were told after each kill of the server, and at the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from busbar.cli.failure import CommandFailure
from busbar.client import MessagingFactory
from harness.processes import brokers_of
from harness.promises import require_kept
from harness.serving import Busbar, config_text
from harness.waiting import until
from tests.durability.test_store_outage import Operator
from tests.durability.transaction_load import LIMITS, QUEUES, Accounts, Deliveries, Load, Transfers

SEED = int(os.environ.get("BUSBAR_KILL_SEED", time.time_ns() % 1_000_000))
DEEP = bool(os.environ.get("BUSBAR_DEEP"))
ROUNDS = 20 if DEEP else 3
ORDERS = 80
"""Orders of each kind for a round. A kill comes after some of them."""

pytestmark = pytest.mark.timeout(900 if DEEP else 240)


class Bank:
    """All load on one server."""

    def __init__(self, server: Busbar, chance: random.Random) -> None:
        self._server = server
        self._chance = chance
        self.transfers = Transfers(server, chance)
        self.accounts = Accounts(server, chance)
        self.deliveries = Deliveries(server, chance)
        self.loads: list[Load] = [self.transfers, self.accounts, self.deliveries]
        self._running: list[asyncio.Future[None]] = []

    async def order(self, count: int) -> None:
        async with await MessagingFactory.connect(self._server.connection_string) as factory:
            await self.transfers.order(factory, count)
            await self.deliveries.order(factory, count)

    async def open_accounts(self) -> None:
        async with await MessagingFactory.connect(self._server.connection_string) as factory:
            await self.accounts.order(factory)

    def begin(self, *loads: Load) -> None:
        for load in loads or self.loads:
            load.stop = False
            self._running += [asyncio.ensure_future(client) for client in load.clients()]

    async def end(self) -> None:
        for load in self.loads:
            load.stop = True
        running, self._running = self._running, []
        await asyncio.gather(*running)

    async def progress(self) -> None:
        """Give orders, wait until each load has committed some more transactions, and a moment of chance."""
        goals = [load.confirmed + self._chance.randrange(ORDERS // 8, ORDERS // 3) for load in self.loads]
        await self.order(ORDERS)

        def is_reached() -> bool:
            return all(load.confirmed >= goal for load, goal in zip(self.loads, goals, strict=True))

        await until(is_reached, lambda: [*map(str, self.loads)], seconds=60)
        await asyncio.sleep(self._chance.uniform(0, 0.02))

    async def check(self) -> None:
        async with await MessagingFactory.connect(self._server.connection_string) as factory:
            for load in (self.transfers, self.accounts, self.deliveries):
                faults = await load.faults(factory)
                require_kept(f"transactions are whole, BUSBAR_KILL_SEED={SEED} {load}", faults)
                assert load.unanswered == [], f"BUSBAR_KILL_SEED={SEED} {load}"

    async def finish(self) -> None:
        """Work off all orders and look at the outcome."""
        self.begin(self.transfers, self.deliveries)
        async with await MessagingFactory.connect(self._server.connection_string) as factory:
            deadline = time.monotonic() + 60
            left = [1]
            while any(left):
                assert time.monotonic() < deadline, (f"BUSBAR_KILL_SEED={SEED}", left, *map(str, self.loads))
                await asyncio.sleep(0.2)
                left = [await self.transfers.open_orders(factory), await self.deliveries.open_orders(factory)]
        await self.end()
        await self.check()
        print(*map(str, self.loads), sep="\n")
        assert all(load.rolled_back for load in self.loads)


def test_transactions_are_whole_although_the_process_is_killed(tmp_path: Path) -> None:
    print(f"BUSBAR_KILL_SEED={SEED}")
    server = Busbar(tmp_path / "data", config_text(QUEUES, LIMITS))
    bank = Bank(server, random.Random(SEED))

    async def round_of_load() -> None:
        bank.begin()
        await bank.progress()
        await asyncio.to_thread(server.kill)
        await bank.end()

    server.start()
    asyncio.run(bank.open_accounts())
    for _ in range(ROUNDS):
        asyncio.run(round_of_load())
        server.start()
        asyncio.run(bank.check())
    try:
        asyncio.run(bank.finish())
    finally:
        assert server.stop() == 0, server.error_text


def test_transactions_are_whole_although_brokers_are_killed(tmp_path: Path) -> None:
    """Each of four brokers in its turn, while the others go on."""
    print(f"BUSBAR_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    server = Busbar(tmp_path / "data", config_text(QUEUES, LIMITS), arguments=("--brokers", "4")).start()
    bank = Bank(server, chance)

    def are_all_open() -> bool:
        try:
            stores = Operator(server).ask("GET", "stores")
        except CommandFailure:  # the broker that was killed had the connection
            return False
        return len(brokers_of(server)) == 4 and all(store["state"] == "open" for store in stores)

    async def load_and_kill() -> None:
        await bank.open_accounts()
        bank.begin()
        for _ in range(5 if DEEP else 1):
            for name in chance.sample(sorted(brokers_of(server)), 4):
                await bank.progress()
                os.kill(brokers_of(server)[name], signal.SIGKILL)
                await until(are_all_open, seconds=60, pause=0.1)
        await bank.end()
        await bank.finish()

    try:
        asyncio.run(load_and_kill())
    finally:
        server.stop()
