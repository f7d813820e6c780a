"""Brokers are restarted one after the other: each is empty before it ends, and load is even in the end."""

from __future__ import annotations

import asyncio

import pytest

from busbar.cluster import rolling_restart
from busbar.cluster.claims import StoreClaims
from busbar.cluster.rolling_restart import RollingRestart
from busbar.cluster.store_moves import StoreMoves
from busbar.model.api import ANY_BROKER
from busbar.model.errors import ArgumentError, InvalidOperation, ServerBusy
from harness.waiting import until

BROKERS = ["broker-0", "broker-1", "broker-2"]


class Namespace:
    """The decisions of the controller, over brokers that do what they are told."""

    def __init__(self, settle: float = 3_600.0) -> None:
        self.claims = StoreClaims(BROKERS)
        self.members = {*BROKERS}
        self.log: list[str] = []
        self.refuses: set[str] = set()
        """Stores that cannot be handed over now."""
        for broker in BROKERS:
            self.claims.begin(broker)
        for number in range(6):
            self.claims.add(f"store-{number}")
        self.moves = StoreMoves(self.claims, lambda: self.members, self._hand_over, settle)
        self.rolling = RollingRestart(BROKERS, self.moves)
        self.rolling.retire = self.members.discard
        self.rolling.replace = self._replace

    async def _hand_over(self, store: str, to: str) -> None:
        await asyncio.sleep(0)
        if store in self.refuses:
            raise ServerBusy(f"{store} is unavailable")
        self.claims.move(store, to)
        self.log.append(f"{store} to {to}")

    async def _replace(self, broker: str) -> None:
        assert self.members == {*BROKERS} - {broker}, "the others serve"
        self.log.append(f"{broker} ends with {len(self.claims.stores_of(broker))}")
        await asyncio.sleep(0)
        self.members.add(broker)

    async def restarted(self) -> None:
        assert await self.rolling.start() == BROKERS
        task = self.rolling._under_way
        assert task is not None
        await task

    @property
    def loads(self) -> list[int]:
        return [len(self.claims.stores_of(broker)) for broker in BROKERS]


async def test_each_broker_is_empty_before_it_ends_and_load_is_even_in_the_end() -> None:
    here = Namespace()
    await here.restarted()
    assert [line for line in here.log if "ends" in line] == [f"{broker} ends with 0" for broker in BROKERS]
    assert here.loads == [2, 2, 2]


async def test_a_store_that_cannot_be_handed_over_does_not_stop_the_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rolling_restart, "TRY_SECONDS", 0.001)
    here = Namespace()
    here.refuses = {"store-1"}
    await here.restarted()
    assert [line for line in here.log if "ends" in line] == [
        "broker-0 ends with 0",
        "broker-1 ends with 1",
        "broker-2 ends with 0",
    ]


async def test_a_broker_that_does_not_come_back_ends_the_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling_restart, "START_SECONDS", 0.01)
    here = Namespace()

    async def replace(broker: str) -> None:
        here.log.append(broker)
        await asyncio.sleep(3_600)

    here.rolling.replace = replace
    await here.restarted()
    assert [line for line in here.log if line in BROKERS] == ["broker-0"], "the others are left as they are"


async def test_one_restart_at_a_time_and_only_of_several() -> None:
    here = Namespace()
    await here.rolling.start()
    with pytest.raises(InvalidOperation, match="already"):
        await here.rolling.start()
    await here.rolling.stop()
    with pytest.raises(InvalidOperation, match="one broker"):
        await RollingRestart(BROKERS[:1], here.moves).start()


async def test_stores_are_moved_for_balance_when_members_have_settled() -> None:
    here = Namespace(settle=0.02)
    here.members.discard("broker-2")
    here.claims.end("broker-2")
    here.claims.begin("broker-2")
    here.members.add("broker-2")
    here.moves.members_changed()
    await asyncio.sleep(0.001)
    assert here.log == [], "not at once"
    await until(lambda: here.loads == [2, 2, 2])
    assert len(here.log) == 2
    await here.moves.stop()


async def test_a_move_that_fails_is_tried_again() -> None:
    here = Namespace(settle=0.005)
    here.claims.move("store-0", "broker-1")
    here.refuses = {f"store-{number}" for number in range(6)}
    here.moves.members_changed()
    await asyncio.sleep(0.02)
    here.refuses.clear()
    await until(lambda: here.loads == [2, 2, 2])
    await here.moves.stop()


async def test_what_an_operator_moves_stays_until_it_may_be_anywhere() -> None:
    here = Namespace(settle=0.005)
    for store in ("store-0", "store-3"):
        await here.moves.move(store, "broker-1")
    await until(lambda: here.loads == [2, 2, 2])
    assert {"store-0", "store-3"} <= {*here.claims.stores_of("broker-1")}
    await here.moves.move("store-0", ANY_BROKER)
    assert here.claims.pins == {"store-3": "broker-1"}
    with pytest.raises(
        ArgumentError, match="There is no broker 'broker-9'; there are broker-0, broker-1, broker-2"
    ):
        await here.moves.move("store-0", "broker-9")
    with pytest.raises(ArgumentError, match="There is no store 'store-9'; there are store-0"):
        await here.moves.move("store-9", "broker-0")
    here.members.discard("broker-2")
    with pytest.raises(ServerBusy, match="'broker-2' is being started"):
        await here.moves.move("store-0", "broker-2")
    await here.moves.stop()
