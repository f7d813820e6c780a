"""Makes the catalogue of a data directory from the definitions in its stores, while Busbar does not run.

1. All stores that can be opened are read, and nothing is written to them.
2. A catalogue that is there stays as it is, unless the operator forces the rebuild. Then it is renamed, and
   the new one gets its name.
3. The new catalogue is complete before it gets its name. If the process ends before, the rebuild can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from busbar.app.data_directory import DataDirectory
from busbar.app.store_places import StorePlace, StorePlaces
from busbar.broker.fragment_loading import open_store
from busbar.catalogue.membership import StoreRows, read_rows
from busbar.catalogue.rebuild import RebuildReport, rebuild
from busbar.model.errors import InvalidOperation
from busbar.store.contract import StoreError


@dataclass(frozen=True, slots=True)
class RebuiltCatalogue:
    name: str
    report: RebuildReport
    replaced: str
    """The name that the catalogue has now that was there; empty if there was none."""
    refused: dict[str, str]
    """Stores that could not be read, with the reason."""


def rebuild_catalogue(data: Path, *, force: bool = False, url: str = "") -> RebuiltCatalogue:
    """Make the catalogue of a data directory that no process serves; with `url`, in that database. Raises
    DataDirectoryError, StoreError, OSError, ConfigError, InvalidOperation."""
    directory = DataDirectory(data)
    try:
        return _rebuild(directory.path, force, url)
    finally:
        directory.release()


def _rebuild(path: Path, force: bool, url: str) -> RebuiltCatalogue:
    places = StorePlaces(path)
    place = places.catalogue(url)
    if place.exists() and not force:
        raise InvalidOperation(
            f"There is a catalogue {place.name}. If it is damaged, --force makes another one and renames it."
        )
    found: dict[str, StoreRows] = {}
    fragments: dict[str, dict[int, int]] = {}
    refused: dict[str, str] = {}
    for name in places.names():
        try:
            found[name], fragments[name] = _read(places.at(name))
        except (StoreError, OSError) as error:
            refused[name] = str(error)
    if not found:
        reasons = "; ".join(refused.values()) or "there are none"
        raise StoreError(f"no store of {path} can be read: {reasons}")
    content, report = rebuild(found, fragments)
    replaced = place.set_aside() if place.exists() else ""
    place.create(content)
    return RebuiltCatalogue(place.name, report, replaced, refused)


def _read(place: StorePlace) -> tuple[StoreRows, dict[int, int]]:
    """The definitions of a store, and its fragments with the number of messages in each."""
    store, _ = open_store(place.open)
    try:
        heads = {head.fragment: sum(head.counts) for head in store.heads()}
        found = read_rows((store.definitions(), max(heads, default=0)))
        store.release()
        return found, heads
    finally:
        store.close()
