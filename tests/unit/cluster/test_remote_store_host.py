"""A broker process ends, and another one takes its stores: what those hear who waited for something."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from busbar.broker import reopening
from busbar.broker.host_api import StoreState
from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.local_broker import LocalBroker
from busbar.catalogue.store_set import StoreSet
from busbar.cluster.controller_connection import Emit
from busbar.cluster.remote_store_host import RemoteStoreHost
from busbar.model.commands import (
    COMPLETE,
    AcceptSession,
    AwaitSession,
    CancelAwait,
    Command,
    Demand,
    Send,
    Settle,
)
from busbar.model.effects import (
    Delivered,
    Drained,
    Effect,
    Refused,
    Sent,
    SessionAccepted,
    SessionLost,
    SessionOffered,
)
from busbar.model.entities import QueueDescription
from busbar.model.errors import ServerBusy, SessionCannotBeLocked
from busbar.model.limits import Limits
from busbar.model.message import ACTIVE, Draft
from busbar.store.contract import StoreError, StoreFull
from busbar.store.location import StoreMissing
from harness.memory_catalogue import CatalogueDisk
from harness.memory_store import Disk
from harness.waiting import until
from tests.conformance.port_process import channel_to, clock
from tests.unit.broker.hosting import GatedStore


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reopening, "MIN_BACKOFF", 10)
    monkeypatch.setattr(reopening, "MAX_BACKOFF", 40)
    yield


class Namespace:
    """A store at the other end of a channel, which can be cut."""

    def __init__(self) -> None:
        self.port = LocalBroker()
        self.disk = Disk()
        self.gate = threading.Event()
        self.gate.set()
        self.problem: Exception | None = None
        self.heard: list[Effect] = []
        self.origin = self.port.connect(self.heard.extend)
        self._loop = asyncio.get_running_loop()
        self._nonce = 0
        self._owners: list[LocalStoreHost] = []
        self.host = RemoteStoreHost("store-0", "broker-0", self._loop, clock, self.port.dispatch)
        self.stores = StoreSet([self.host])
        home = CatalogueHome(CatalogueDisk().location, self._loop)
        self.catalogue = Catalogue(self.stores, home, Limits(min_lock_duration=50))
        self.port.serve(self.stores, self.catalogue)

    def _open(self) -> GatedStore:
        if self.problem is not None:
            raise self.problem
        return GatedStore(self.disk, self.gate)

    def _nonces(self) -> int:
        self._nonce += 1
        return self._nonce

    def _owner(self, name: str, emit: Emit, fenced: Callable[[], None]) -> LocalStoreHost:
        self._owners.append(LocalStoreHost(name, self._open, self._loop, clock, self._nonces, emit, fenced))
        return self._owners[-1]

    @property
    def owner(self) -> LocalStoreHost:
        return self._owners[-1]

    async def begin(self) -> None:
        self.channel = await channel_to(self.host, self._owner)

    async def kill(self) -> None:
        """What the other end knew is of no use any more."""
        assert self.channel._transport is not None
        self.channel._transport.abort()
        await self.until(lambda: self.host.state is StoreState.UNAVAILABLE)

    async def end(self) -> None:
        self.gate.set()
        await self.catalogue.close()
        await self.host.close()
        for owner in self._owners:
            await owner.close()
        self.channel.close()

    def submit(self, *commands: Command) -> None:
        self.port.submit([*commands])

    async def until(self, true: Callable[[], object]) -> None:
        await until(true, lambda: [type(effect).__name__ for effect in self.heard])

    async def answer(self, request: int) -> Effect:
        await self.until(lambda: any(effect.request == request for effect in self.heard))
        (answer,) = (effect for effect in self.heard if effect.request == request)
        return answer

    def lost(self) -> list[int]:
        return [effect.consumer for effect in self.heard if isinstance(effect, SessionLost)]

    def bodies(self) -> list[bytes | None]:
        return [r.content for effect in self.heard if isinstance(effect, Delivered) for r in effect.records]


@asynccontextmanager
async def namespace() -> AsyncIterator[Namespace]:
    here = Namespace()
    await here.begin()
    await here.catalogue.load()
    try:
        yield here
    finally:
        await here.end()


def send(here: Namespace, fragment: int, request: int, body: bytes, session: str | None = None) -> Send:
    return Send(fragment, here.origin, request, [Draft(body, str(request), session, None, 0, 0)], True)


async def test_who_waits_hears_that_it_is_unknown_and_what_consumers_want_is_asked_again() -> None:
    async with namespace() as here:
        (fragment,) = (await here.catalogue.create("q", QueueDescription())).fragments
        here.submit(Demand(fragment, here.origin, 1, ACTIVE, 3, False, False))
        here.submit(send(here, fragment, 1, b"first"))
        assert isinstance(await here.answer(1), Sent)
        await here.until(lambda: here.bodies() == [b"first"])
        here.gate.clear()
        here.submit(send(here, fragment, 2, b"held up"))
        await asyncio.sleep(0.02)
        await here.kill()
        unknown = await here.answer(2)
        assert isinstance(unknown, Refused) and not unknown.certain and "may or may not" in unknown.text
        here.submit(send(here, fragment, 3, b"refused"))
        refused = await here.answer(3)
        assert isinstance(refused, Refused) and refused.certain
        assert refused.condition == ServerBusy.condition
        here.submit(Demand(fragment, here.origin, 2, ACTIVE, 5, True, False))
        await here.until(lambda: any(isinstance(effect, Drained) for effect in here.heard))
        with pytest.raises(ServerBusy):
            await here.catalogue.create("other", QueueDescription())
        here.gate.set()

        here.heard.clear()
        await here.begin()
        await here.until(lambda: here.host.state is StoreState.OPEN)
        here.submit(send(here, fragment, 4, b"a"), send(here, fragment, 5, b"b"))
        await here.until(lambda: len(here.bodies()) >= 2)
        await asyncio.sleep(0.02)
        assert len(here.bodies()) == 2, "the credit that was left, and not more"
        assert here.bodies()[0] == b"first", "its lock ended with its broker"
        assert (await here.catalogue.create("other", QueueDescription())).fragments


async def test_a_session_that_was_granted_to_the_controller_is_lost_with_its_broker() -> None:
    """Its lock is not durable, since no client is connected to the controller. So it cannot be resumed."""
    async with namespace() as here:
        queue = QueueDescription(requires_session=True, lock_duration=60_000)
        (fragment,) = (await here.catalogue.create("q", queue)).fragments
        here.submit(send(here, fragment, 1, b"m", "s"))
        here.submit(AcceptSession(fragment, here.origin, 2, 7, "s"))
        assert isinstance(await here.answer(2), SessionAccepted)
        here.submit(Demand(fragment, here.origin, 7, ACTIVE, 5, False, False))
        await here.until(lambda: here.bodies() == [b"m"])
        await here.kill()
        await here.begin()
        await here.until(lambda: here.lost() == [7])
        here.submit(AwaitSession(fragment, here.origin, 5), AwaitSession(fragment, here.origin, 6))
        here.submit(CancelAwait(fragment, here.origin, 6))
        assert isinstance(await here.answer(5), SessionOffered)
        here.submit(AcceptSession(fragment, here.origin, 7, 8, "s"))
        assert isinstance(await here.answer(7), SessionAccepted)
        assert not any(effect.request == 6 for effect in here.heard)


@pytest.mark.parametrize("lives", [True, False])
async def test_locks_of_holders_at_gateways_that_live_are_loaded_and_others_deleted(lives: bool) -> None:
    async with namespace() as here:
        queue = QueueDescription(requires_session=True, lock_duration=60_000)
        (fragment,) = (await here.catalogue.create("q", queue)).fragments
        here.submit(AcceptSession(fragment, here.origin, 1, 7, "s", "broker-9.1 5 6"))
        assert isinstance(await here.answer(1), SessionAccepted)
        assert [*here.disk.fragments[fragment].holds] == ["s"]
        here.host.gateways = lambda: ["broker-9.1"] if lives else ["broker-9.2"]
        await here.kill()
        await here.begin()
        await here.until(lambda: here.host.state is StoreState.OPEN)
        here.submit(AcceptSession(fragment, here.origin, 2, 8, "s"))
        answer = await here.answer(2)
        if lives:
            assert isinstance(answer, Refused) and answer.condition == SessionCannotBeLocked.condition
            here.owner.gateway_ended("broker-9.1")
            here.submit(AcceptSession(fragment, here.origin, 3, 8, "s"))
            answer = await here.answer(3)
        assert isinstance(answer, SessionAccepted)
        assert not here.disk.fragments[fragment].holds


async def test_a_store_that_comes_back_without_a_death_has_its_sessions_at_once() -> None:
    async with namespace() as here:
        queue = QueueDescription(requires_session=True)
        (fragment,) = (await here.catalogue.create("q", queue)).fragments
        here.submit(AcceptSession(fragment, here.origin, 1, 7, "s"))
        assert isinstance(await here.answer(1), SessionAccepted)
        await here.stores.change("store-0", "offline")
        await here.stores.change("store-0", "online")
        here.submit(AcceptSession(fragment, here.origin, 2, 8, "other"))
        assert isinstance(await here.answer(2), SessionAccepted)
        assert here.lost() == []


async def test_a_store_that_is_offline_stays_so_and_one_that_cannot_be_opened_is_tried_again() -> None:
    async with namespace() as here:
        (fragment,) = (await here.catalogue.create("q", QueueDescription())).fragments
        assert (await here.stores.change("store-0", "offline")).state == "unavailable"
        await here.kill()
        await here.begin()
        await asyncio.sleep(0.05)
        assert here.host.reason == "taken offline by an operator"
        here.problem = StoreMissing("it is not there")
        here.host.bring_online()
        await here.until(lambda: here.host.reason == "it is not there")
        here.problem = None
        view = await here.stores.change("store-0", "online")
        assert (view.state, view.broker) == ("open", "broker-0")
        here.submit(send(here, fragment, 1, b"m"))
        assert isinstance(await here.answer(1), Sent)


async def test_errors_are_raised_where_they_are_heard() -> None:
    async with namespace() as here:
        await here.host.mark_unavailable("for a while")
        assert (here.host.state, here.host.reason) == (StoreState.UNAVAILABLE, "for a while")
        for problem in (StoreFull("no room"), StoreError("odd"), OSError("no such disk")):
            here.problem = problem
            with pytest.raises(StoreError, match=str(problem)) as raised:
                await here.host.open()
            assert isinstance(raised.value, type(problem)) or isinstance(problem, OSError)
        with pytest.raises(ServerBusy, match="store-0 is unavailable"):
            await here.host.write_definitions({"a": b"b"})
        await here.kill()
        with pytest.raises(StoreError, match="broker process ended"):
            await here.host.read_definitions()


async def test_messages_are_settled_and_their_use_is_known() -> None:
    async with namespace() as here:
        (fragment,) = (await here.catalogue.create("q", QueueDescription())).fragments
        here.submit(send(here, fragment, 1, b"m"))
        here.submit(Demand(fragment, here.origin, 1, ACTIVE, 1, False, False))
        await here.until(lambda: here.bodies())
        (delivered,) = (effect for effect in here.heard if isinstance(effect, Delivered))
        numbers = [record.n for record in delivered.records]
        here.submit(Settle(fragment, here.origin, 2, COMPLETE, numbers, [delivered.nonce], None, False))
        await here.answer(2)
        assert (await here.port.runtime("q")).active == 0
        assert here.catalogue.usage.last_used(here.catalogue.find("q")) > 0
