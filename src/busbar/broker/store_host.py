"""Hosting of the fragments of one messaging store: opening, closing, and life with a store that fails or is unavailable.

Rules of failure:
1. A group that was refused for certain (the store is full, or a machine of a topic failed) is undone, with all that was
   applied after it. Locks and credit come back, and whoever waits for an answer is told to retry. For a while after a store
   was full, new messages are refused at once and those that are due wait, so that settlements can drain it.
2. After an unknown outcome the store is closed and never written again: it is unavailable. So it is when it cannot be
   opened at the start, and when an operator takes it offline (what was under way is finished then). It is opened anew,
   with growing pauses or when the operator says so.
3. While a store is unavailable, commands that have an answer are refused at once, and it is certain that they changed
   nothing; what consumers asked for is kept (offline_buffer.py). When the store is back the undo is done against what it
   really has, and locks of messages that are not there any more are forgotten. If another owner had it meanwhile, all is
   read anew.
4. A store whose file is gone is not made again silently. If that happened while it was served, it is re-created empty, after
   MISSING_FILE_GRACE, and what was lost is reported by count; otherwise only when an operator resets it. Numbers go on from
   where they were, or, if nobody knows, from the time in ms, which no fragment has reached by counting. Taps are told that
   they lost what was before.
5. A store that another owner has claimed is not ours: the host stops and refuses everything.
6. What consumers asked for survives every failure: the machines get credit and drains back, and are ticked to serve them.
7. A store whose disk does not answer is unavailable too (rule 2), after a patience. The outcome of what its thread was
   given is unknown; what had not been given to it certainly did not take place. The store is opened anew when the call
   that hung has returned, and not before: only then does anybody know what it did, and only one thread touches a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar
from uuid import uuid4

from busbar.broker.commit_loop import GROUP_FAILED, CommitLoop, GroupFailed, RolledBack
from busbar.broker.fragment_loading import (
    DurableState,
    LastKnownNumbers,
    load,
    lost_locks,
    open_store,
    predecessor_of,
    read_catalogue,
    reload,
    save_locks,
    slices,
)
from busbar.broker.host_api import Admit, Rows, StoreState
from busbar.broker.offline_buffer import OfflineBuffer
from busbar.broker.refusals import (
    OFFLINE,
    STORE_FAILED,
    STORE_FENCED,
    STORE_FULL,
    STORE_UNAVAILABLE,
    busy,
    refusals,
)
from busbar.broker.reopening import FileWatch, ReopenLoop
from busbar.broker.slot import Slot
from busbar.broker.store_thread import HOWEVER_LONG, LONG, PATIENCE, StoreHung, StoreThread, never_began
from busbar.fragment.machine import Fragment
from busbar.model.commands import Command, Tick
from busbar.model.effects import Effect
from busbar.model.errors import BusbarError, ServerBusy
from busbar.model.message import KEPT
from busbar.model.settings import FragmentSettings
from busbar.rules.selection import RuleCompiler
from busbar.store.contract import Fenced, Store, StoreError, StoreFull
from busbar.store.location import StoreLocation, StoreLoss, StoreTakenOffline

FULL_PAUSE = 1.0
DROP_SLICE = 1_000

T = TypeVar("T")
_log = logging.getLogger(__name__)


class LocalStoreHost:
    """The fragments of one store. Everything but the store's own work happens on the event loop."""

    def __init__(
        self,
        name: str,
        factory: Callable[[], Store],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        nonces: Callable[[], int],
        emit: Callable[[list[Effect]], None],
        fenced: Callable[[], None] | None = None,
        place: StoreLocation | None = None,
        patience: float = PATIENCE,
        rules: RuleCompiler | None = None,
    ) -> None:
        """`factory` opens the store (on the store's own thread), `clock` gives ms since 1970, `nonces` a number for the
        locks of each command, `emit` performs effects; `fenced` hears that another owner took the store. Without a
        `place`, a store that is not there is made by the factory. `patience` is in seconds (rule 7). Hosts with the
        same `rules` compile those of a topic once for all of them."""
        self.name = name
        self.broker = ""
        self.place = place
        self.state = StoreState.CLOSED
        self.since = 0
        """When it came into this state, in ms."""
        self.reason = ""
        """Why it is unavailable."""
        self.loss: StoreLoss | None = None
        self.admit: Admit | None = None
        self.shown: Callable[[], None] | None = None
        """Hears that the state, the reason or the loss is another one."""
        self.clock = clock
        self._factory = factory
        self._loop = loop
        self._fenced = fenced
        self._thread = StoreThread(f"busbar-{name}", loop, patience)
        self._turns = CommitLoop(
            loop, self._thread, clock, nonces, emit, self._failed, rules or RuleCompiler(uuid4)
        )
        self._parking = OfflineBuffer()
        self._full_pause: asyncio.TimerHandle | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._epoch = 0
        self._claims = 0
        """Since that epoch."""
        self._has_served = False
        self._reopening = ReopenLoop(loop)
        self._thread.returned = self._reopening.try_now
        self._watch: FileWatch | None = None
        self._predecessor: Callable[[int], LastKnownNumbers] | None = None

    # ---- opening and closing ----

    async def open(self) -> None:
        """Claim the store. Raises what the store raises."""
        await self._open(self._factory)

    async def create(self) -> None:
        """Claim a new store in a place where none should be."""
        assert self.place is not None
        await self._open(self.place.create)

    async def _open(self, factory: Callable[[], Store]) -> None:
        opened = await self._thread.call(
            lambda: open_store(factory), LONG, unwanted=lambda opened: opened[0].close()
        )
        self._turns.store, self._epoch = opened
        self._enter(StoreState.OPEN)
        self._turns.resume()

    async def mark_unavailable(self, reason: str) -> None:
        """Do not serve it for now: it could not be opened, or is not what should be there."""
        self._has_served = False
        self._turns.pause()
        self._enter(StoreState.UNAVAILABLE, reason)
        await self._shut()

    def start_reopening(self) -> None:
        """Open it when that is possible."""
        if self.state is StoreState.UNAVAILABLE and self._recovering is None:
            self._recovering = self._loop.create_task(self._guarded(self._reopen_until_open([])))

    def _enter(self, state: StoreState, reason: str = "") -> None:
        if state is not self.state:
            self.since = self.clock()
        self.state, self.reason = state, reason
        if state is StoreState.OPEN:
            self._has_served = True
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if state is StoreState.OPEN and self.place is not None:
            self._watch = FileWatch(self._loop, self.place, self._thread, self._failed)
        self._show()

    def _show(self) -> None:
        if self.shown is not None:
            self.shown()

    async def add_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None:
        """Take fragments into service; those that the store does not know are created empty."""
        missing = {key: of for key, of in fragments.items() if key not in self._turns.slots}
        if not missing:
            return
        before = self._predecessor
        run = self.on_store if self.state is StoreState.OPEN else self._on_store
        loaded: dict[int, DurableState] = {}
        for some in slices(missing):
            loaded.update(await run(partial(load, fragments=some, predecessor=before)))
        added = []
        for fragment, durable in loaded.items():
            machine = Fragment(
                fragment,
                missing[fragment],
                durable.head,
                durable.next_due,
                durable.locks,
                segments=durable.segments,
                taps=durable.taps,
                writers=durable.writers,
            )
            added.append(Slot(fragment, machine))
            self._turns.add(added[-1])
        for slot in added:
            if slot.machine.settings.topic is not None:
                self._turns.link_topic(slot)

    def change_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None:
        """Other settings from now on."""
        for fragment, settings in fragments.items():
            slot = self._turns.slots.get(fragment)
            if slot is not None:
                slot.machine.settings = settings
                if settings.topic is not None:
                    self._turns.link_topic(slot)
                self._turns.tick(slot)

    async def remove_fragment(self, fragment: int) -> None:
        """Take a fragment out of service and delete its messages, in slices between the commits of others."""
        slot = self._turns.remove(fragment)
        self._parking.drop(fragment)
        while slot is not None and slot.is_committing:
            await self.on_store(lambda store: None)
        while not await self.on_store(lambda store: store.drop(fragment, DROP_SLICE)):
            pass

    async def on_store(self, work: Callable[[Store], T]) -> T:
        """Do something with the store on its thread, in order with the commits. Raises ServerBusy if the store is
        unavailable or fails; what fails here starts the recovery as a failed commit does."""
        if not self.is_open:
            raise ServerBusy(self._unavailable_text)
        try:
            return await self._on_store(work)
        except StoreFull as error:
            raise ServerBusy(STORE_FULL) from error
        except StoreError as error:
            if not self._turns.job_under_way:  # a job that comes after this one fails too, and says so
                self._failed(error)
            certain = never_began(error)
            failure = ServerBusy(self._unavailable_text if certain else STORE_FAILED)
            failure.certain = certain
            raise failure from error

    async def write_catalogue(self, rows: Rows) -> None:
        await self.on_store(lambda store: store.write_catalogue(rows))

    async def read_catalogue(self) -> tuple[dict[str, bytes], int]:
        """Its copy, and the highest id of its fragments. This and `repair_catalogue` are for the one who admits the store,
        also while it is being opened: they raise what the store raises."""
        return await self._on_store(read_catalogue, LONG)

    async def repair_catalogue(self, rows: Rows) -> None:
        await self._on_store(lambda store: store.write_catalogue(rows), LONG)

    async def _on_store(self, work: Callable[[Store], T], patiences: int = 1) -> T:
        store = self._turns.store
        if store is None:
            raise ServerBusy(STORE_UNAVAILABLE)
        return await self._thread.call(lambda: work(store), patiences)

    @property
    def is_open(self) -> bool:
        return self.state is StoreState.OPEN or self.state is StoreState.ROLLING_BACK

    @property
    def fragments(self) -> int:
        """In service, or waiting for the store."""
        return len(self._turns.slots)

    def last_used(self, fragment: int) -> int:
        slot = self._turns.slots.get(fragment)
        return 0 if slot is None else slot.last_used

    async def refresh_last_used(self, fragments: Sequence[int]) -> None:
        """All of it is known here."""

    def __contains__(self, fragment: int) -> bool:
        return fragment in self._turns.slots

    def stop_timers(self) -> None:
        """The end is near: a million messages that are due now must not keep it from coming."""
        self._turns.stop_timers()

    async def drain(self, timeout: float) -> bool:
        """Wait until all that was submitted is durable and answered; False if that takes too long."""
        deadline = self._loop.time() + timeout
        while self.is_open and not self._turns.idle:
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(0.002)
        return True

    async def close(self) -> None:
        """Keep the message locks for the next owner, give the store up and end the thread. Drain first: locks of a
        fragment that still has changes under way are not kept, since they rest on what may never be durable."""
        clean = self.state is StoreState.OPEN
        self._stop(ServerBusy(STORE_UNAVAILABLE))
        if self._recovering is not None:
            self._recovering.cancel()
            await asyncio.gather(self._recovering, return_exceptions=True)
        try:
            if clean:
                await self._give_up()
        except StoreError as error:
            _log.error("store %s: message locks could not be kept: %s", self.name, error)
        finally:
            await self._shut()
            if not await self._thread.stop():
                _log.error("store %s is left as it is, as after a crash: its disk does not answer", self.name)

    async def _give_up(self) -> None:
        unchanged = [s for s in self._turns.slots.values() if not (s.broken or s.dirty or s.is_committing)]
        for fragment, held in [(slot.id, slot.machine.locks()) for slot in unchanged]:
            if held:
                await self._on_store(partial(save_locks, fragment=fragment, held=held))
        await self._on_store(lambda store: store.release(), LONG)

    def _stop(self, error: BusbarError) -> None:
        self._enter(StoreState.CLOSED)
        self._turns.stop()
        self._turns.refuse_queued(error)

    # ---- commands ----

    def submit(self, commands: Iterable[Command]) -> None:
        """Every command with an answer gets it: its effect, or Refused."""
        if self.state is StoreState.OPEN or self.state is StoreState.ROLLING_BACK:
            self._turns.submit(commands)
            return
        out = self.state is StoreState.UNAVAILABLE
        text = self._unavailable_text if out else STORE_FENCED
        for command in commands:
            if command.request > 0:
                self._turns.emit([busy(command.origin, command.request, text)])
            elif out:
                self._buffer(command)

    @property
    def _unavailable_text(self) -> str:
        """For clients: where the store lies and what exactly is wrong with it is for operators."""
        return f"{STORE_UNAVAILABLE} ({self.name} is unavailable.)"

    def _buffer(self, command: Command) -> None:
        if not isinstance(command, Tick):
            drained = self._parking.add(command)
            if drained is not None:
                self._turns.emit([drained])

    # ---- what operators say ----

    async def take_offline(self) -> None:
        """Leave the store alone until `bring_online`: what was given to it is finished, and the file closed."""
        self._reopening.take_offline()
        while self._reopening.offline and self.is_open:
            self._turns.pause()
            if not self._turns.job_under_way:
                self._failed(StoreTakenOffline())
            await asyncio.sleep(0.002)
        if self._reopening.offline and self.state is StoreState.UNAVAILABLE:
            self.reason = OFFLINE
            self._show()

    def bring_online(self) -> None:
        """Open the store now."""
        self._reopening.bring_online()

    def reset(self) -> None:
        """Make an empty store in place of one that is unavailable; what is there is renamed."""
        self._reopening.reset()

    # ---- failures ----

    def _failed(self, error: BaseException) -> None:
        """A job failed: apply nothing more until all that was not durable is undone."""
        if not self.is_open or (self._recovering is not None and not self._recovering.done()):
            return
        self._turns.pause()
        self._recovering = self._loop.create_task(self._guarded(self._recover(error)))

    async def _guarded(self, recovery: Awaitable[None]) -> None:
        try:
            await recovery
        except Exception:
            _log.exception("store %s: the recovery failed; its fragments are out of service", self.name)
            self._stop(ServerBusy(STORE_UNAVAILABLE))

    async def _recover(self, error: BaseException) -> None:
        discarded = self._turns.roll_back()
        if isinstance(error, StoreTakenOffline):
            await self._go_offline(discarded)
            return
        if isinstance(error, StoreFull | GroupFailed):
            try:
                await self._undo_refused(discarded, full=isinstance(error, StoreFull))
                return
            except StoreError as worse:
                error = worse
        _log.error("store %s: %s: %s", self.name, type(error).__name__, error)
        if isinstance(error, Fenced):
            self._stop_fenced(discarded)
        else:
            self._become_unavailable(discarded, str(error), certain=never_began(error))
            await self._reopen_until_open(discarded)

    async def _undo_refused(self, discarded: list[RolledBack], *, full: bool) -> None:
        """Undo a group that the store certainly did not commit, and refuse its commands."""
        self._enter(StoreState.ROLLING_BACK)
        durable = await self._on_store(lambda store: reload(store, [d.slot.id for d in discarded]))
        if full:
            self._pause_after_full()
        self._refuse(discarded, STORE_FULL if full else GROUP_FAILED, certain=True)
        self._undo(discarded, durable)
        self._enter(StoreState.OPEN)
        self._turns.resume()

    def _pause_after_full(self) -> None:
        if self._full_pause is not None:
            self._full_pause.cancel()
        self._full_pause = self._loop.call_later(FULL_PAUSE, self._turns.take_in, None)
        self._turns.take_in(ServerBusy(STORE_FULL))

    def _become_unavailable(self, discarded: list[RolledBack], reason: str, *, certain: bool) -> None:
        """Nobody waits for the store to come back: answers are given at once (rule 3). Is it `certain` that nothing of what
        was given to the store took place?"""
        self._enter(StoreState.UNAVAILABLE, reason)
        self._refuse(discarded, self._unavailable_text, certain=certain)
        for slot in self._turns.slots.values():
            if not slot.broken:
                self._parking.seed(slot.id, slot.machine.demands(), slot.machine.awaits())
        for command in self._turns.take_queued(ServerBusy(self._unavailable_text)):
            self._buffer(command)

    async def _go_offline(self, discarded: list[RolledBack]) -> None:
        """What was gathered and not given to the store certainly did not take place."""
        _log.warning("store %s was taken offline", self.name)
        self._become_unavailable(discarded, OFFLINE, certain=True)
        with contextlib.suppress(StoreError, BusbarError):  # then it is closed like a broken one
            await self._on_store(lambda store: store.release(), LONG)
        await self._shut()
        await self._reopen_until_open(discarded)

    async def _reopen_until_open(self, discarded: list[RolledBack]) -> None:
        """Open the store as soon as it can be, and as the operator wants it."""
        replaces = self._has_served and self.place is not None
        if not await self._reopening.run(
            lambda: self._reopen_same(discarded),
            lambda: self._recreate_empty(discarded),
            self._reopen_failed,
            replaces=replaces,
        ):
            self._stop_fenced(discarded)
            return
        _log.warning("store %s is back", self.name)
        self._predecessor = None
        self._enter(StoreState.OPEN)
        self._turns.submit(self._parking.replay())
        self._turns.resume()

    def _reopen_failed(self, error: Exception) -> bool:
        """Whether it is worth another attempt."""
        if isinstance(error, Fenced):
            return False
        reason = str(error) or type(error).__name__
        if reason != self.reason:
            _log.error("store %s is still unavailable: %s: %s", self.name, type(error).__name__, reason)
            self.reason = reason
            self._show()
        if not isinstance(error, StoreError | BusbarError | OSError):
            _log.debug("store %s: this was not expected", self.name, exc_info=error)
        return True

    async def _reopen_same(self, discarded: list[RolledBack]) -> None:
        """The same store again (rule 3)."""
        durable, epoch = await self._reopen([item.slot.id for item in discarded])
        if self._reopening.offline:  # said while it was being opened
            await self._shut()
            raise StoreTakenOffline(OFFLINE)
        if self._turns.slots and epoch != self._epoch + self._claims:
            _log.warning("store %s was changed by another owner; all is read anew", self.name)
            self._replace_machines(discarded)
        if self.admit is not None:
            await self.admit(self, False)
        self._epoch, self._claims = epoch, 0
        self._undo(discarded, durable)
        discarded.clear()
        await self._forget_lost_locks()

    async def _recreate_empty(self, discarded: list[RolledBack]) -> None:
        """Create an empty store in place of one that is lost, and go on with it."""
        assert self.place is not None, "a store without a place is made by its factory"
        make = self.place.create
        heads = {slot.id: slot.machine.head() for slot in self._turns.slots.values() if not slot.broken}
        started = self.clock()
        self._predecessor = lambda fragment: predecessor_of(heads.get(fragment), started)
        await self._close_broken()
        self._turns.store, epoch = await self._thread.call(lambda: open_store(make), HOWEVER_LONG)
        self._epoch, self._claims = epoch, 0
        self._replace_machines(discarded)
        if self.admit is not None:
            await self.admit(self, True)
        known = bool(heads) or self._has_served
        messages = sum(sum(head.counts[:KEPT]) for head in heads.values()) if known else -1
        self.loss = StoreLoss(started, messages, sum(head.size for head in heads.values()))
        if known:
            _log.error(
                "store %s was re-created empty: %d messages (%d bytes) were lost with the old one",
                self.name,
                messages,
                self.loss.size,
            )
        else:
            _log.error("store %s was re-created empty; what the old one held is not known", self.name)

    def _replace_machines(self, discarded: list[RolledBack]) -> None:
        """New machines will be loaded; what consumers wait for is asked of them again, and with it what was on its way."""
        unknown = {
            item.slot.id: DurableState(item.slot.machine.head(), 0, [], [], [], {}) for item in discarded
        }
        self._undo(discarded, unknown)
        discarded.clear()
        for slot in self._turns.slots.values():
            if not slot.broken:
                machine = slot.machine
                out = self._unavailable_text
                self._turns.emit([busy(one.origin, one.request, out) for one in machine.awaits()])
                self._turns.emit(self._parking.reset(slot.id, machine.demands()))
        self._turns.clear()

    async def _close_broken(self) -> None:
        if self._thread.hangs:  # rule 7; the reopening is told when it has returned
            raise StoreHung(self._thread.patience, began=False)
        await self._shut()

    async def _shut(self) -> None:
        """Close the store; one that hangs when it has returned. It may be broken, and is forgotten in any case."""
        store, self._turns.store = self._turns.store, None
        if store is None:
            return
        if self._thread.hangs:
            self._thread.post(store.close, lambda result, error: None, HOWEVER_LONG)
            return
        with contextlib.suppress(Exception):
            await self._thread.call(store.close)

    async def _reopen(self, fragments: list[int]) -> tuple[dict[int, DurableState], int]:
        await self._close_broken()

        def work() -> tuple[Store, int, dict[int, DurableState]]:
            store, epoch = open_store(self._factory)
            self._claims += 1
            try:
                return store, epoch, reload(store, fragments)
            except BaseException:
                store.close()
                raise

        self._turns.store, epoch, durable = await self._thread.call(work, HOWEVER_LONG)
        return durable, epoch

    async def _forget_lost_locks(self) -> None:
        """A commit of unknown outcome may have removed what we hold locks of."""
        held = {slot.id: slot.machine.locks() for slot in self._turns.slots.values() if not slot.broken}
        lost = await self._on_store(lambda store: lost_locks(store, held), HOWEVER_LONG)
        for fragment, numbers in lost.items():
            self._turns.slots[fragment].machine.forget_locks(numbers)

    def _undo(self, discarded: list[RolledBack], durable: Mapping[int, DurableState]) -> None:
        """Bring the machines back to what is durable; then let them serve their consumers again."""
        for item in discarded:
            slot = item.slot
            if not slot.broken:
                known = durable[slot.id]
                try:
                    slot.machine.undo(
                        item.batches,
                        item.effects,
                        known.head,
                        known.next_due,
                        known.taps,
                        known.writers,
                    )
                except Exception:
                    self._turns.quarantine(slot)
                else:
                    slot.tick()

    def _refuse(self, discarded: list[RolledBack], text: str, *, certain: bool) -> None:
        for item in discarded:
            self._turns.emit(refusals(item, text, certain=certain))

    def _stop_fenced(self, discarded: list[RolledBack]) -> None:
        """Another owner has claimed the store. Refuse all pending commands and stop."""
        self._refuse(discarded, STORE_FENCED, certain=True)
        self._stop(ServerBusy(STORE_FENCED))
        if self._fenced is not None:
            self._fenced()
