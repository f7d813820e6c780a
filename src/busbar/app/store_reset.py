"""Discards a store while Busbar does not run. It is the way out if Busbar cannot start because all of its stores are lost.

The namespace is opened as for serving, but also without any store, and without listeners. The store is re-created, as by an
operator's `reset` in a running instance, and all stores are closed again. The entities are those of the catalogue.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from busbar.app.data_directory import DataDirectory
from busbar.app.store_places import StorePlaces
from busbar.broker.store_host import LocalStoreHost
from busbar.catalogue.catalogue import Catalogue
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.local_broker import LocalBroker
from busbar.catalogue.store_set import StoreSet
from busbar.clock import wall_clock
from busbar.model.api import StoreView
from busbar.model.limits import Limits


async def reset_store(data: Path, name: str) -> StoreView:
    """Re-create a store, empty, in a data directory that no process serves. Raises DataDirectoryError, StoreError,
    BusbarError."""
    directory = DataDirectory(data)
    try:
        return await _reset(directory.path, name)
    finally:
        directory.release()


async def _reset(path: Path, name: str) -> StoreView:
    port = LocalBroker()
    loop = asyncio.get_running_loop()
    nonces = itertools.count(1)

    places = StorePlaces(path)

    def make_host(name: str) -> LocalStoreHost:
        place = places.at(name)
        return LocalStoreHost(
            name, place.open, loop, wall_clock, lambda: next(nonces), port.dispatch, place=place.place
        )

    stores = StoreSet([make_host(name) for name in await asyncio.to_thread(places.names)], make_host)
    stores.needs_one = False
    catalogue = Catalogue(stores, CatalogueHome(places.catalogue(), loop), Limits())
    port.serve(stores, catalogue)
    try:
        await catalogue.load()
        return await stores.change(name, "reset")
    finally:
        await catalogue.close()
        await stores.close(drain=5)
