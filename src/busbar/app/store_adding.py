"""Adds a store to a cluster that runs: to the list beside its catalogue, where the controller finds it."""

from __future__ import annotations

from pathlib import Path

from busbar.app.config import ConfigError
from busbar.app.store_places import MOST_STORES, parse_stores, read_addresses
from busbar.store.journal.directory import store_names

MOST_NAMES = 4_096
"""Names of stores that were removed are not given again."""


def add_store(directory: Path, url: str) -> str:
    """List one more store, in the database of that address, and return its name. The directory is that of a node. Raises
    ConfigError, StoreError."""
    from busbar.store.postgresql.location import PostgresqlLocation
    from busbar.store.postgresql.members import MemberTable

    wanted = parse_stores([url])
    if not wanted.urls:
        raise ConfigError(
            f"A store is added by its address, like postgresql://user@host/database, not {url!r}."
        )
    catalogue = read_addresses(directory).catalogue
    if not catalogue:
        raise ConfigError(
            f"{directory} is not the data directory of a node: stores of one machine are added by `busbar serve --stores`."
        )
    PostgresqlLocation(url, "store-0", "").check()
    table = MemberTable(catalogue)
    try:
        known = [store.url for store in table.look().stores]
        if len(known) >= MOST_STORES:
            raise ConfigError(f"A namespace has at most {MOST_STORES} stores, and this one has {len(known)}.")
        before = {store.name for store in table.look().stores}
        urls = [url] * (known.count(url) + 1)
        added = [store.name for store in table.add_stores(urls, [*store_names(MOST_NAMES)])]
        return next(name for name in added if name not in before)
    finally:
        table.close()
