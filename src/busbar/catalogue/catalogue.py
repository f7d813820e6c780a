"""The entities of a namespace: by path in any case, with the fragments that they are made of and the stores of these.

Rules:
1. A path is found in any case and keeps the spelling it was created with.
2. A fragment id is given once and never again, also when its entity is deleted. The counter is part of the catalogue, and
   ids that a store has count too.
3. A change is planned as a value (planning.py). It is made when the home of the catalogue has it (home.py). Then it is
   brought to the stores and brokers. Only then is it in force here, and watchers are notified. A change that has begun is
   carried to its end, also when the client that asked for it is gone (change_runner.py).
4. A creation needs the stores of its fragments. If one of them fails in the middle, the opposite change is made. No other
   change needs a store: one that is unavailable gets settings and definitions when it is back.
5. A deletion removes the entries of all that goes in one write. The same write has a note of the fragments still to be
   emptied, which a restart finds.
6. admission.py decides what may be created and changed.
7. An entity with AutoDeleteOnIdle is deleted when it was not used for that long and no link is attached to it. The time
   begins with its last change or the start of the broker (idleness.py).
8. An entity is there as long as the catalogue has it, whether its stores are or not.
9. Taps are part of their entity's entry, and a change of one is a change like others.
10. The fragments of a topic get other settings in the same change as its subscriptions and their rules. The fragments of an
   entity that forwards get them in the same change as its target (fragment_settings.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import msgspec

from busbar.broker.host_api import Rows, StoreHost
from busbar.catalogue.bootstrap import StoreBootstrap
from busbar.catalogue.change import (
    EMPTYING,
    ENTITY,
    FRAGMENT_COUNTER,
    TAP_COUNTER,
    CatalogueChange,
)
from busbar.catalogue.change_runner import ChangeRunner
from busbar.catalogue.definition import decode_definition
from busbar.catalogue.fragment_settings import FragmentSettingsBuilder, SettingsPlan
from busbar.catalogue.freezing import freeze_together, thaw_all
from busbar.catalogue.home import CatalogueHome
from busbar.catalogue.idleness import IdleWatch
from busbar.catalogue.mark_cleaner import MarkCleaner
from busbar.catalogue.planning import ChangePlanner, IdCounters
from busbar.catalogue.purging import FragmentPurger
from busbar.catalogue.reading import CatalogueReader
from busbar.catalogue.staged_index import StagedIndex
from busbar.catalogue.store_definitions import StoreDefinitions
from busbar.catalogue.store_list import StoreList
from busbar.catalogue.store_set import StoreSet
from busbar.model.access import AccessChange
from busbar.model.api import EntityView, NamedRule, NamespaceProperties, RuleChange
from busbar.model.entities import Description, Tier
from busbar.model.errors import BusbarError, InvalidOperation, ServerBusy
from busbar.model.limits import Limits
from busbar.model.names import NAMESPACE_ENTRY, key_of
from busbar.model.settings import FragmentSettings
from busbar.model.taps import TapChange, TapDescription
from busbar.store.contract import StoreError

NAMESPACE = "namespace"
RECOVERY_SECONDS = 1.0
"""The pause between two attempts to open a home again that failed."""

T = TypeVar("T")
_namespaces = msgspec.json.Decoder(NamespaceProperties)
_log = logging.getLogger(__name__)


class Catalogue(CatalogueReader):
    """The entities of a namespace."""

    def __init__(
        self,
        stores: StoreSet,
        home: CatalogueHome,
        limits: Limits,
        tier: Tier = Tier.STANDARD,
        name: str = "busbar",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.properties = NamespaceProperties(name, tier, 0, 0)
        self.version = 0
        """The number of the last change that is in force."""
        self.usage = IdleWatch(self._entries, stores, limits.min_auto_delete_on_idle, monotonic)
        self._stores = stores
        self._home = home
        self._definitions = StoreDefinitions(home, self._entries)
        self._assembly = StoreBootstrap(stores, home, self._definitions)
        self._limits = limits
        self._tier = tier
        self._ids = IdCounters()
        self._settings = FragmentSettingsBuilder(limits)
        self._changes = ChangeRunner()
        self._moving: StoreHost | None = None
        """The store that goes to another broker now. It is admitted in the turn of that."""
        self._moving_turn = asyncio.Lock()
        self._under_way: dict[str, asyncio.Event] = {}
        """The keys of all entries in the change that is being carried out, and what is set when it is decided."""
        self._purger = FragmentPurger(stores, self._forget_purged)
        self.store_list = StoreList(stores, home, self._purger.stores, self.entities)
        self._marks = MarkCleaner(self._entries, stores, self._ids)
        self._idler: asyncio.Task[None] | None = None
        self._unfinished: CatalogueChange | None = None
        """The change whose outcome is unknown. If it was made, it is still to be put in force."""
        self._recovery: asyncio.Task[None] | None = None

    # ---- opening and closing ----

    async def load(self, wanted: Sequence[str] = ()) -> None:
        """Open the catalogue and the stores, and take the fragments into service. Stores of `wanted` that are not there yet
        are made. Raises StoreError if the namespace cannot be served."""
        entries = await self._assembly.open_all(wanted)
        self._read(entries)
        changes = self._load_properties(entries.get(NAMESPACE))
        if changes:
            await self._home.write(changes)
        self.version = self._home.version
        await self._assembly.bring_up_to_date()
        for host in self._stores.hosts:
            host.admit = self._admit
        await self._take_into_service()
        for host in self._stores.hosts:
            host.start_reopening()
        self._purger.start()
        self._marks.start()
        self._idler = asyncio.get_running_loop().create_task(self._delete_idle())

    def _read(self, entries: dict[str, bytes]) -> None:
        """Take over the entries of the catalogue. Raises StoreError if one cannot be read."""
        for key, value in entries.items():
            if key == FRAGMENT_COUNTER:
                self._ids.fragment = max(self._ids.fragment, int(value))
            elif key == TAP_COUNTER:
                self._ids.tap = max(self._ids.tap, int(value))
            elif key.startswith(EMPTYING):
                self._purger.add({int(key.removeprefix(EMPTYING)): value.decode()})
            elif key.startswith(ENTITY):
                self._entries.put(_readable(key, value))

    async def _take_into_service(self) -> None:
        for view in self._entries:
            self._stores.assign(view.fragments, view.stores)
        here = [host for host in self._stores.hosts if host.is_open]
        adding = [host.add_fragments(self._fragments_in(host.name)) for host in here]
        for outcome in await asyncio.gather(*adding, return_exceptions=True):
            # A store that failed is unavailable now; its fragments follow when it comes back.
            if isinstance(outcome, BaseException) and not isinstance(outcome, BusbarError):
                raise outcome

    def _fragments_in(self, store: str) -> dict[int, FragmentSettings]:
        return self._settings.in_store(store, self._entries, self._entries)

    async def _admit(self, host: StoreHost, anew: bool) -> None:
        """Check a store that comes back: it must be that store, gets what is in force, and serves its fragments.

        One that was re-created gets its fragments first, with the numbers that they go on from. Without an identity it is
        kept out at the next start. So if the process ends here, no fragment begins at 1 again."""
        async with self._moving_turn if host is self._moving else self._changes.turn:
            if anew:
                await host.add_fragments(self._fragments_in(host.name))
            await self._assembly.admit(host, anew)
            await host.add_fragments(self._fragments_in(host.name))
        self._purger.start()

    async def readmit(self, host: StoreHost) -> None:
        """Bring a store up to date that stayed open while its broker had no controller. Raises StoreError, BusbarError."""
        async with self._changes.turn:
            await self._assembly.admit(host, anew=False)
            fragments = self._fragments_in(host.name)
            await host.add_fragments(fragments)
            host.change_fragments(fragments)
        self._purger.start()

    @contextlib.asynccontextmanager
    async def unchanged(self, moving: StoreHost) -> AsyncIterator[None]:
        """No entity changes inside: this store goes from one broker to another, which has it admitted meanwhile."""
        async with self._changes.turn:
            self._moving = moving
            try:
                yield
            finally:
                async with self._moving_turn:
                    self._moving = None

    def _load_properties(self, encoded: bytes | None) -> Rows:
        now = self._stores.clock()
        asked = self.properties
        known = (
            NamespaceProperties("", asked.tier, now, now) if encoded is None else _namespaces.decode(encoded)
        )
        if (known.name, known.tier) == (asked.name, asked.tier):
            self.properties = known
            return {}
        self.properties = replace(asked, created=known.created, modified=now)
        return {NAMESPACE: msgspec.json.encode(self.properties)}

    @property
    def notes(self) -> list[str]:
        """What an operator should know of the stores that were found."""
        return self._assembly.notes

    async def close(self) -> None:
        """Finish the change under way, and stop emptying deleted fragments; the next start goes on with it."""
        await self._purger.close()
        await self._marks.close()
        for task in (self._idler, self._recovery):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._changes.close()
        await self._home.close()

    # ---- changing ----

    async def create(
        self, path: str, description: Description, default_rule: NamedRule | None = None
    ) -> EntityView:
        return await self._change(lambda plan: plan.create(path, description, default_rule))

    async def update(self, path: str, description: Description) -> EntityView:
        return await self._change(lambda plan: plan.update(path, description))

    async def delete(self, path: str) -> None:
        await self._change(lambda plan: plan.delete(path))

    async def change_access(self, path: str, name: str, change: AccessChange) -> EntityView:
        return await self._change(lambda plan: plan.change_access(path or NAMESPACE_ENTRY, name, change))

    async def change_rules(self, changes: Sequence[RuleChange]) -> None:
        await self._change(lambda plan: plan.change_rules(changes))

    def check_rules(self, changes: Sequence[RuleChange]) -> None:
        """Raise what `change_rules` would raise now."""
        self._new_plan().change_rules(changes)

    async def change_store_list(self, name: str, to: str) -> None:
        """Drain a store, or remove it. Raises ArgumentError, InvalidOperation, ServerBusy."""
        await self._changes.run(lambda: self.store_list.change(name, to))

    async def create_tap(self, path: str, tap: TapDescription) -> EntityView:
        return await self._change(lambda plan: plan.create_tap(path, tap))

    async def change_tap(self, path: str, name: str, dead_letter: bool, change: TapChange) -> EntityView:
        return await self._change(lambda plan: plan.change_tap(path, name, dead_letter, change))

    async def freeze(self, seconds: float) -> list[str]:
        """Freeze the files of all stores and of the catalogue at one moment (freezing.py). Returns the names of the stores.
        Raises InvalidOperation, ServerBusy."""
        unavailable = sorted(self._stores.unavailable())
        if unavailable:
            raise InvalidOperation(f"A backup needs all stores; {', '.join(unavailable)} cannot be used now.")
        async with self._changes.turn:
            await freeze_together([*self._stores.hosts, self._home], seconds)
            return [host.name for host in self._stores.hosts]

    async def thaw(self) -> bool:
        """Let the files change again; whether all of them stayed as they were."""
        return await thaw_all([*self._stores.hosts, self._home])

    @contextlib.asynccontextmanager
    async def batch(self) -> AsyncIterator[ChangePlanner]:
        """Make all that is planned inside in one change, at the end."""
        async with self._changes.turn:
            plan = self._new_plan()
            yield plan
            await self._carry_out(plan)

    async def _change(self, planned: Callable[[ChangePlanner], T]) -> T:
        """Plan a change when it is its turn, and carry it out. Returns what the planning returned."""

        async def change() -> T:
            plan = self._new_plan()
            result = planned(plan)
            await self._carry_out(plan)
            return result

        return await self._changes.run(change)

    def _new_plan(self) -> ChangePlanner:
        self._ids.fragment = max(self._ids.fragment, self._assembly.last_fragment)
        return ChangePlanner(
            self._entries,
            self._limits,
            self._tier,
            self._ids,
            self.store_list.names(),
            self._stores.unavailable(),
            self._stores.clock(),
        )

    async def _carry_out(self, plan: ChangePlanner) -> None:
        """Make a planned change, then put it in force. Raises a BusbarError if it was not made."""
        change = plan.change
        rows = change.rows()
        if not rows:
            return
        decided = asyncio.Event()
        self._under_way = {key_of(path): decided for path, _ in change.entities}
        try:
            await self._write(rows, change)
            await self._distribute(change)
        finally:
            self._under_way = {}
            decided.set()
            self._purger.start()

    async def _write(self, rows: Rows, change: CatalogueChange | None = None) -> None:
        """Make a change in the home. `change` is what is to be put in force then. Raises ServerBusy."""
        was_known = not self._home.is_unknown
        try:
            await self._home.write(rows)
        except BusbarError:
            if was_known and self._home.is_unknown:
                self._unfinished = change
                if self._recovery is None or self._recovery.done():
                    self._recovery = asyncio.get_running_loop().create_task(self._recover())
            raise

    async def _distribute(self, change: CatalogueChange) -> None:
        """Bring a change that is made to stores and brokers, and put it in force. Raises ServerBusy if it created fragments
        in a store that failed: then the opposite change was made."""
        settings, failed = await self._apply(change)
        lost = {*change.new_fragments.values()} & (failed.keys() | self._stores.unavailable())
        if lost:
            await self._take_back(change, settings)
            store = min(lost)
            raise ServerBusy(
                f"The messaging store {store} failed, and the change was taken back. Retry later."
            ) from failed.get(store)
        self._settings.adopt(settings)
        self._put_in_force(change)

    async def _apply(self, change: CatalogueChange) -> tuple[SettingsPlan, dict[str, Exception]]:
        """Bring a change that is made to stores and brokers. Returns the settings that follow from it, and the stores that
        failed, with the reason."""
        after = StagedIndex(self._entries)
        for view in change.gone:
            after.remove(view.path)
        for view in change.after:
            after.put(view)
        settings = self._settings.plan(change, after)
        here = [host.name for host in self._stores.hosts if host.is_open]
        rows = self._definitions.rows_for(change, after, here)
        number = self._home.version
        failed = await self._stores.apply(number, rows, settings.update, change.deleted_fragments)
        for store in rows.keys() - failed.keys():
            self._definitions.written(store)
        return settings, failed

    async def _take_back(self, change: CatalogueChange, settings: SettingsPlan) -> None:
        """Make the opposite of a creation, since a store of it failed. Raises ServerBusy if that cannot be made now. Then
        the change is in force."""
        opposite = change.inverse
        try:
            await self._write(opposite.rows(), opposite)
        except BusbarError as error:
            error.certain = False
            self._settings.adopt(settings)
            self._put_in_force(change)
            raise
        await self._apply(opposite)
        self.version = self._home.version
        self._purger.add(change.new_fragments)

    async def _recover(self) -> None:
        """Find out whether a change was made whose outcome is unknown, and put it in force then."""
        while self._home.is_unknown:
            await asyncio.sleep(RECOVERY_SECONDS)
            async with self._changes.turn:
                is_made = await self._home.recover()
                if is_made is None:
                    continue
                change, self._unfinished = self._unfinished, None
                if is_made and change is not None:
                    with contextlib.suppress(BusbarError):  # it was taken back
                        await self._distribute(change)

    async def changes_decided(self) -> None:
        """Wait for the change that is under way, if there is one."""
        for decided in [*self._under_way.values()][:1]:
            await decided.wait()

    async def find_decided(self, path: str) -> EntityView:
        """Find an entry as `find` does, after the change of it that is under way, if any. Raises EntityNotFound."""
        while (decided := self._under_way.get(key_of(path))) is not None:
            await decided.wait()
        return self.find(path)

    def _put_in_force(self, change: CatalogueChange) -> None:
        self.version = self._home.version
        self._marks.changed(change)
        deleted = change.deleted_fragments
        self._purger.add(deleted)
        self._stores.routes.remove(deleted)
        for view in change.gone:
            self._entries.remove(view.path)
            self.usage.changed(view)
        for view in change.gone:
            self.usage.deleted(view)
        for view in change.after:
            self._stores.assign(view.fragments, view.stores)
            self._entries.put(view)
            self.usage.changed(view)
        for path, entry in change.entities:
            self._watchers.tell(path, entry)

    async def _forget_purged(self, fragments: Mapping[int, str]) -> None:
        rows: Rows = {f"{EMPTYING}{fragment}": None for fragment in fragments}
        await self._changes.run(lambda: self._write(rows))
        self._definitions.purged(fragments)

    # ---- idle entities ----

    async def _delete_idle(self) -> None:
        """Delete the entities that have been idle for their AutoDeleteOnIdle."""
        while True:
            await asyncio.sleep(self.usage.pause)
            try:
                idle = await self.usage.look()
            except BusbarError as error:
                _log.warning("idle entities could not be looked for: %s", error)
                continue
            for view in idle:
                try:
                    await self._changes.run(partial(self._delete_if_idle, view.path))
                except BusbarError as error:
                    _log.warning("'%s' is idle and could not be deleted yet: %s", view.path, error)

    async def _delete_if_idle(self, path: str) -> None:
        view = self._entries.get(path)
        if view is not None and await self.usage.confirms(view):
            _log.info("'%s' was idle for too long and is deleted", path)
            plan = self._new_plan()
            plan.delete(path)
            await self._carry_out(plan)


def _readable(key: str, encoded: bytes) -> EntityView:
    try:
        view = decode_definition(encoded)
    except msgspec.DecodeError as error:
        raise StoreError(f"the catalogue's entry '{key}' cannot be read: {error}") from None
    if len(view.stores) != len(view.fragments):
        raise StoreError(
            f"the catalogue's entry '{key}' names {len(view.stores)} stores for {len(view.fragments)} fragments; "
            "each fragment has one"
        )
    return view
