"""Where the messaging stores of a namespace are: SQLite files in the data directory, and schemas of PostgreSQL databases.

A SQLite store is found by its file, store-N.db. For stores elsewhere, DIR/stores.json has name, address and identity. An
address may have a password, so the file is private. The identity is drawn when the address is first given. It distinguishes
the store from one that another namespace may have in the same database.

The catalogue is a SQLite file in the data directory, or a schema of a database. In that case the same file has its address.

`busbar serve --stores` names the stores that the namespace should have: a number of SQLite files, and addresses. All stores
that are there are used, also if they are not named again. An address that is named twice is two stores, in two schemas.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from busbar.app.config import ConfigError
from busbar.app.private_files import STORES_FILE, write_file
from busbar.store.catalogue_contract import CatalogueLocation
from busbar.store.contract import Store, StoreError
from busbar.store.journal.directory import DEFAULT_STORES, EmbeddedLocation, store_names, stores_in
from busbar.store.location import StoreLocation
from busbar.store.postgresql.address import is_postgresql, parse_address
from busbar.store.sqlite.catalogue import catalogue_in

if TYPE_CHECKING:
    from busbar.store.postgresql.location import PostgresqlLocation

MOST_STORES = 64


class StorePlace(Protocol):
    """Where one store is, and how it is opened there."""

    @property
    def place(self) -> StoreLocation: ...

    def open(self) -> Store: ...


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store that is not in the data directory."""

    name: str
    url: str
    identity: str

    def location(self, lease: float = 0.0) -> PostgresqlLocation:
        """Where it is. `lease` is in seconds (0: the usual one)."""
        from busbar.store.postgresql.location import (
            PostgresqlLocation,
        )  # its driver costs a namespace without it nothing

        return PostgresqlLocation(self.url, self.name, self.identity, lease)


@dataclass(frozen=True, slots=True)
class WantedStores:
    """What `--stores` asks for."""

    files: int = DEFAULT_STORES
    urls: tuple[str, ...] = ()


def parse_stores(words: Sequence[str]) -> WantedStores:
    """Read the words of `--stores`: at most one number, and addresses. Raises ConfigError."""
    numbers = [word for word in words if word.isdecimal()]
    urls = tuple(word for word in words if not word.isdecimal())
    for url in urls:
        _check(url, "--stores", "a number and addresses")
    if len(numbers) > 1:
        raise ConfigError("--stores takes one number: of the SQLite files in the data directory.")
    files = int(numbers[0]) if numbers else (0 if urls else DEFAULT_STORES)
    if not 1 <= files + len(urls) <= MOST_STORES:
        raise ConfigError(f"--stores: a namespace has 1 to {MOST_STORES} stores.")
    return WantedStores(files, urls)


def _check(url: str, option: str, takes: str) -> None:
    """Raise ConfigError if this is not the address of a database."""
    if not is_postgresql(url):
        raise ConfigError(f"{option} takes {takes} like postgresql://user@host/database, not {url!r}.")
    try:
        parse_address(url, "store")
    except StoreError as error:
        raise ConfigError(f"{option}: {error}.") from None


class StorePlaces:
    """The places of the stores of one data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        known = read_addresses(directory)
        self._remote = {store.name: store for store in known.stores}
        self._catalogue = known.catalogue

    def at(self, name: str) -> StorePlace:
        """The place of a store, whether it is there or not."""
        remote = self._remote.get(name)
        return EmbeddedLocation(self._directory, name) if remote is None else remote.location()

    def names(self) -> list[str]:
        """The stores that are there, in the order of their numbers. One that cannot be reached counts."""
        found = [*stores_in(self._directory)]
        found += [store.name for store in self._remote.values() if store.location().may_exist()]
        return sorted(set(found), key=_number)

    def add(self, wanted: WantedStores) -> list[str]:
        """The names of the stores that are asked for. Addresses that are new get a name, which is kept."""
        files = [name for name in stores_in(self._directory) if name not in self._remote]
        asked = files[: wanted.files]
        taken = {*files, *self._remote}
        free = (name for name in store_names(2 * MOST_STORES) if name not in taken)
        while len(asked) < wanted.files:
            asked.append(next(free))
        known = Counter(store.url for store in self._remote.values())
        fresh = []
        for url, count in Counter(wanted.urls).items():
            fresh += [StoreAddress(next(free), url, secrets.token_hex(16)) for _ in range(count - known[url])]
        if fresh:
            self._remote |= {store.name: store for store in fresh}
            self._write()
        asked += [store.name for store in self._remote.values() if store.url in wanted.urls]
        return sorted(asked, key=_number)

    def catalogue(self, url: str = "") -> CatalogueLocation:
        """The place of the catalogue: the database of that address, else the one that was named last, else the data
        directory. Raises ConfigError."""
        if url and url != self._catalogue:
            _check(url, "--catalogue", "an address")
            self._catalogue = url
            self._write()
        if not self._catalogue:
            return catalogue_in(self._directory)
        from busbar.store.postgresql.catalogue import catalogue_at

        return catalogue_at(self._catalogue)

    def _write(self) -> None:
        write_addresses(self._directory, [*self._remote.values()], self._catalogue)


def write_addresses(directory: Path, stores: Sequence[StoreAddress], catalogue: str) -> None:
    """Write down what is not in the data directory. Raises OSError."""
    document: dict[str, object] = {"catalogue": catalogue} if catalogue else {}
    document["stores"] = [asdict(store) for store in stores]
    write_file(directory / STORES_FILE, json.dumps(document, indent=2).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class KnownAddresses:
    """What is not in the data directory."""

    stores: list[StoreAddress]
    catalogue: str = ""
    """The address of the catalogue; empty if it is in the data directory."""


def read_addresses(directory: Path) -> KnownAddresses:
    """The addresses of what is not in the data directory. Raises ConfigError."""
    file = directory / STORES_FILE
    try:
        document = json.loads(file.read_text("utf-8"))
        stores = [StoreAddress(**store) for store in document["stores"]]
        return KnownAddresses(stores, document.get("catalogue", ""))
    except FileNotFoundError:
        return KnownAddresses([])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


class ListedPlace:
    """The place of a store of a cluster, in a database. The list of stores may get it after this broker was assigned it."""

    def __init__(self, directory: Path, name: str, lease: float) -> None:
        self._directory = directory
        self._name = name
        self._lease = lease
        self._found: PostgresqlLocation | None = None

    def _location(self) -> PostgresqlLocation:
        """Where the store is. Raises StoreError as long as the list does not have it."""
        if self._found is None:
            known = [store for store in read_addresses(self._directory).stores if store.name == self._name]
            if not known:
                raise StoreError(f"the address of {self._name} is not known here yet")
            self._found = known[0].location(self._lease)
        return self._found

    def open(self) -> Store:
        return self._location().open()

    @property
    def place(self) -> StoreLocation:
        return StoreLocation(
            self._name,
            lambda: self._location().make(),
            lambda: self._location().size(),
            lambda: self._location().beat(),
            lambda: self._location().status(),
            lambda: self._location().counters,
            lambda: self._found is None or self._found.may_speak(),
            lambda: self._location().silence(),
            lambda seen: self._location().note_silence(seen),
        )
