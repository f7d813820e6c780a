"""A namespace over several stores in memory, whose disks a test can break, take away and look into."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import pytest

from busbar.broker import file_watch, reopening
from busbar.broker.store_host import LocalStoreHost
from busbar.broker.store_thread import PATIENCE
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.local_broker import LocalBroker
from busbar.catalogue.store_set import StoreSet
from busbar.fragment.changes import Changes
from busbar.model.commands import Command
from busbar.model.effects import Effect
from busbar.model.limits import Limits
from busbar.store.contract import OutcomeUnknown, Store, StoreError, StoreFull
from busbar.store.location import StoreLocation, StoreMissing
from harness.memory_catalogue import CatalogueDisk
from harness.memory_store import Disk
from tests.unit.broker.hanging import HangingStore, Hangs
from tests.unit.broker.hosting import clock

NAMES = ["store-0", "store-1", "store-2", "store-3"]


class Disks:
    """What lies on the disks, from one start to the next."""

    def __init__(self) -> None:
        self.there: dict[str, Disk] = {}
        self.catalogue = CatalogueDisk()
        self.refusing: dict[str, str] = {}
        """Stores that cannot be opened, with the reason."""
        self.failing: set[str] = set()
        """Stores whose next write of definitions fails."""
        self.stuck_definitions: set[str] = set()
        """The same, at every write."""
        self.full: set[str] = set()
        """Stores that have no space for their next definitions."""
        self.written: Callable[[], None] | None = None
        """Called after every write to any store, on the thread of that store and on no other one meanwhile."""
        self.writing = threading.Lock()
        self.hanging: dict[str, Hangs] = {}
        self.patience = PATIENCE
        self.free = threading.Event()
        self.free.set()

    def entry(self, store: str, name: str) -> bytes | None:
        return self.there[store].definitions.get(name)


class FailingStore(HangingStore):
    def __init__(self, name: str, disks: Disks) -> None:
        super().__init__(disks.there[name], disks.free, disks.hanging.setdefault(name, Hangs()))
        self._name = name
        self._disks = disks

    def write_definitions(self, entries: dict[str, bytes | None]) -> None:
        if self._name in self._disks.failing or self._name in self._disks.stuck_definitions:
            self._disks.failing.discard(self._name)
            self.close()
            raise OutcomeUnknown("the definitions could not be written (injected)")
        if self._name in self._disks.full:
            self._disks.full.discard(self._name)
            raise StoreFull("no space (injected)")
        with self._noted():
            super().write_definitions(entries)

    def commit(self, batches: Sequence[Changes]) -> None:
        with self._noted():
            super().commit(batches)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        written = self._disks.written
        if written is None:
            yield
            return
        with self._disks.writing:
            yield
            written()


class Namespace:
    def __init__(self, disks: Disks) -> None:
        self.disks = disks
        self.port = LocalBroker()
        self.said: list[Effect] = []
        self.origin = self.port.connect(self.said.extend)
        self._nonces = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self.stores = StoreSet([self._host(name) for name in sorted(disks.there)], self._host)
        home = CatalogueHome(disks.catalogue.location, self._loop, disks.patience)
        self.catalogue = Catalogue(self.stores, home, Limits())
        self.port.serve(self.stores, self.catalogue)

    def _host(self, name: str) -> LocalStoreHost:
        disks = self.disks

        def open_it() -> Store:
            if name in disks.refusing:
                raise StoreError(disks.refusing[name])
            if name not in disks.there:
                raise StoreMissing(f"{name} is missing")
            return FailingStore(name, disks)

        def make() -> Store:
            disks.there[name] = Disk()
            return FailingStore(name, disks)

        place = StoreLocation(f"memory:{name}", make, lambda: 0, lambda: id(disks.there.get(name)))
        emit = self.port.dispatch
        return LocalStoreHost(
            name,
            open_it,
            self._loop,
            clock,
            lambda: next(self._nonces),
            emit,
            place=place,
            patience=disks.patience,
        )

    def host(self, name: str) -> LocalStoreHost:
        found = self.stores.host(name)
        assert isinstance(found, LocalStoreHost)
        return found

    async def ask(self, command: Command) -> Effect:
        """The answer to a command; its request must be new."""
        self.port.submit([command])
        async with asyncio.timeout(5):
            while True:
                found = [effect for effect in self.said if effect.request == command.request]
                if found:
                    return found[0]
                await asyncio.sleep(0.002)

    async def until_open(self, *names: str) -> None:
        async with asyncio.timeout(5):
            while self.stores.unavailable() & {*(names or self.stores.names)}:
                await asyncio.sleep(0.002)


@asynccontextmanager
async def started(disks: Disks, wanted: Iterable[str] = NAMES) -> AsyncIterator[Namespace]:
    here = Namespace(disks)
    try:
        await here.catalogue.load(list(wanted))
        yield here
    finally:
        await here.catalogue.close()
        await here.stores.close(1)


def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is over as soon as its cause is."""
    monkeypatch.setattr(reopening, "MIN_BACKOFF", 10)
    monkeypatch.setattr(reopening, "MAX_BACKOFF", 20)
    monkeypatch.setattr(reopening, "MISSING_FILE_GRACE", 100)
    monkeypatch.setattr(file_watch, "WATCH_INTERVAL", 20)
