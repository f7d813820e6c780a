"""Hosting of the fragments of one messaging store: opening, closing, and what happens when a commit fails.

Rules of failure:
1. A group that was refused for certain (the store is full) is undone, with all that was applied after it. Locks and credit
   come back, whoever waits for an answer is told to retry, and for a while new messages are refused at once so that
   settlements can drain the store.
2. After an unknown outcome the store is closed and never written again; it is opened anew, with growing pauses. Until then
   commands that have an answer are refused; what consumers asked for stays. Then the undo is done against what the store
   really has, and locks of messages that are not there any more are forgotten.
3. A store that another owner has claimed is not ours: the host stops and refuses everything.
4. What consumers asked for survives every failure: the machines get credit and drains back, and are ticked to serve them.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from busbar.broker.slot import Slot
from busbar.broker.store_thread import StoreThread
from busbar.broker.store_work import Durable, load, lost_locks, open_store, reload
from busbar.broker.turns import Discarded, Turns
from busbar.fragment.changes import Lock
from busbar.fragment.machine import Fragment
from busbar.model.commands import Command
from busbar.model.effects import Effect, Refused
from busbar.model.errors import BusbarError, ServerBusy
from busbar.model.settings import FragmentSettings
from busbar.store.contract import Fenced, Store, StoreError, StoreFull

FULL_PAUSE = 1.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
DROP_SLICE = 1_000

STORE_FULL = "The messaging store is full; nothing was changed. Retry later: completing messages makes room."
STORE_FAILED = (
    "The messaging store failed during the operation, which may or may not have taken place. Retry."
)
STORE_OUT = "The messaging store is unavailable for the moment. Retry later."
STORE_LOST = "The messaging store belongs to another broker now. Retry later."

T = TypeVar("T")
_log = logging.getLogger(__name__)


class HostState(enum.Enum):
    OPEN = "open"
    UNDOING = "undoing"  # a group was refused; commands wait until it is undone
    OUT = "out"  # the store is being opened again
    STOPPED = "stopped"  # not opened yet, closed, or taken by another owner


class StoreHost:
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
    ) -> None:
        """`factory` opens the store (on the store's own thread), `clock` gives ms since 1970, `nonces` a number for the
        locks of each command, `emit` performs effects; `fenced` hears that another owner took the store."""
        self.name = name
        self.state = HostState.STOPPED
        self.clock = clock
        self._factory = factory
        self._loop = loop
        self._fenced = fenced
        self._thread = StoreThread(f"busbar-{name}", loop)
        self._turns = Turns(loop, self._thread, clock, nonces, emit, self._failed)
        self._full_until = 0.0
        self._recovering: asyncio.Task[None] | None = None

    # ---- opening and closing ----

    async def open(self) -> None:
        """Claim the store. Raises what the store raises."""
        self._turns.store = await self._thread.call(lambda: open_store(self._factory))
        self.state = HostState.OPEN
        self._turns.resume()

    async def add(self, fragments: Mapping[int, FragmentSettings]) -> None:
        """Take fragments into service; those that the store does not know are created empty."""
        loaded = await self.on_store(lambda store: load(store, fragments))
        for fragment, durable in loaded.items():
            machine = Fragment(
                fragment,
                fragments[fragment],
                durable.head,
                durable.next_due,
                durable.locks,
                shelves=durable.shelves,
            )
            self._turns.add(Slot(fragment, machine))

    def change(self, fragment: int, settings: FragmentSettings) -> None:
        """Other settings from now on."""
        slot = self._turns.slots[fragment]
        slot.machine.settings = settings
        self._turns.tick(slot)

    async def remove(self, fragment: int) -> None:
        """Take a fragment out of service and delete its messages, in slices between the commits of others."""
        slot = self._turns.remove(fragment)
        while slot is not None and slot.in_flight:
            await self.on_store(lambda store: None)
        while not await self.on_store(lambda store: store.drop(fragment, DROP_SLICE)):
            pass

    async def on_store(self, work: Callable[[Store], T]) -> T:
        """Do something with the store on its thread, in order with the commits. Raises ServerBusy if the store fails:
        if it is broken by that, the next commit finds out and starts the recovery."""
        try:
            return await self._on_store(work)
        except StoreFull as error:
            raise ServerBusy(STORE_FULL) from error
        except StoreError as error:
            raise ServerBusy(f"{STORE_FAILED} ({error})") from error

    async def _on_store(self, work: Callable[[Store], T]) -> T:
        store = self._turns.store
        if store is None:
            raise ServerBusy(STORE_OUT)
        return await self._thread.call(lambda: work(store))

    def active(self, fragment: int) -> int:
        """When a gateway last did something with the fragment, in ms (0: not since it was taken into service)."""
        slot = self._turns.slots.get(fragment)
        return 0 if slot is None else slot.active

    def __contains__(self, fragment: int) -> bool:
        return fragment in self._turns.slots

    def wind_down(self) -> None:
        """The end is near: a million messages that are due now must not keep it from coming."""
        self._turns.wind_down()

    async def drain(self, timeout: float) -> bool:
        """Wait until all that was submitted is durable and answered; False if that takes too long."""
        deadline = self._loop.time() + timeout
        while self.state is not HostState.STOPPED and not self._turns.idle:
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(0.002)
        return True

    async def close(self) -> None:
        """Keep the message locks for the next owner, give the store up and end the thread. Drain first."""
        clean = self.state is HostState.OPEN
        self._stop(ServerBusy(STORE_OUT))
        if self._recovering is not None:
            self._recovering.cancel()
            await asyncio.gather(self._recovering, return_exceptions=True)
        store, self._turns.store = self._turns.store, None
        try:
            if store is not None:
                slots = self._turns.slots.values() if clean else ()
                locks = {slot.id: slot.machine.locks() for slot in slots if not slot.broken}
                await self._thread.call(lambda: _give_up(store, clean, locks))
        finally:
            await self._thread.stop()

    def _stop(self, error: BusbarError) -> None:
        self.state = HostState.STOPPED
        self._turns.stop()
        self._turns.refuse_waiting(error)

    # ---- commands ----

    def submit(self, commands: Iterable[Command]) -> None:
        """Every command with an answer gets it: its effect, or Refused."""
        if self.state is HostState.OPEN or self.state is HostState.UNDOING:
            self._turns.submit(commands)
            return
        text = STORE_OUT if self.state is HostState.OUT else STORE_LOST
        kept = []
        for command in commands:
            if command.request > 0:
                self._turns.answer([_busy(command.origin, command.request, text)])
            else:
                kept.append(command)
        if self.state is HostState.OUT:
            self._turns.submit(kept)  # halted: they wait in the inboxes

    # ---- failures ----

    def _failed(self, error: BaseException) -> None:
        """A job failed: apply nothing more until all that was not durable is undone."""
        if self.state is HostState.STOPPED:
            return
        self._turns.halt()
        self._recovering = self._loop.create_task(self._recover_or_stop(error))

    async def _recover_or_stop(self, error: BaseException) -> None:
        try:
            await self._recover(error)
        except Exception:
            _log.exception("store %s: the recovery failed; its fragments are out of service", self.name)
            self._stop(ServerBusy(STORE_OUT))

    async def _recover(self, error: BaseException) -> None:
        discarded = self._turns.discard()
        if isinstance(error, StoreFull):
            try:
                await self._undo_refused(discarded)
                return
            except StoreError as worse:
                error = worse
        _log.error("store %s: %s: %s", self.name, type(error).__name__, error)
        if isinstance(error, Fenced):
            self._lose(discarded)
        else:
            await self._start_over(discarded)

    async def _undo_refused(self, discarded: list[Discarded]) -> None:
        """Rule 1."""
        self.state = HostState.UNDOING
        durable = await self._on_store(lambda store: reload(store, [d.slot.id for d in discarded]))
        self._full_until = self._loop.time() + FULL_PAUSE
        self._turns.sends_refused = self._refuse_while_full
        self._refuse(discarded, STORE_FULL)
        self._undo(discarded, durable)
        self.state = HostState.OPEN
        self._turns.resume()

    def _refuse_while_full(self) -> BusbarError | None:
        if self._loop.time() < self._full_until:
            return ServerBusy(STORE_FULL)
        self._turns.sends_refused = None
        return None

    async def _start_over(self, discarded: list[Discarded]) -> None:
        """Rule 2. Nobody waits for the store to come back: answers are given at once."""
        self.state = HostState.OUT
        self._refuse(discarded, STORE_FAILED, certain=False)
        self._turns.refuse_waiting(ServerBusy(STORE_OUT))
        pause = FIRST_PAUSE
        while True:
            try:
                durable = await self._reopen([d.slot.id for d in discarded])
                self._undo(discarded, durable)
                discarded = []
                await self._forget_lost_locks()
                break
            except Fenced:
                self._lose(discarded)
                return
            except Exception as error:
                _log.error("store %s is still out: %s: %s", self.name, type(error).__name__, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        _log.warning("store %s is back", self.name)
        self.state = HostState.OPEN
        self._turns.resume()

    async def _reopen(self, fragments: list[int]) -> dict[int, Durable]:
        broken, self._turns.store = self._turns.store, None

        def work() -> tuple[Store, dict[int, Durable]]:
            if broken is not None:
                with contextlib.suppress(Exception):  # it is broken, and forgotten in any case
                    broken.close()
            store = open_store(self._factory)
            try:
                return store, reload(store, fragments)
            except BaseException:
                store.close()
                raise

        self._turns.store, durable = await self._thread.call(work)
        return durable

    async def _forget_lost_locks(self) -> None:
        """A commit of unknown outcome may have removed what we hold locks of."""
        held = {slot.id: slot.machine.locks() for slot in self._turns.slots.values() if not slot.broken}
        lost = await self._on_store(lambda store: lost_locks(store, held))
        for fragment, numbers in lost.items():
            self._turns.slots[fragment].machine.forget_locks(numbers)

    def _undo(self, discarded: list[Discarded], durable: Mapping[int, Durable]) -> None:
        """Bring the machines back to what is durable; then let them serve their consumers again."""
        for item in discarded:
            slot = item.slot
            if not slot.broken:
                known = durable[slot.id]
                try:
                    slot.machine.undo(item.batches, item.effects, known.head, known.next_due)
                except Exception:
                    self._turns.give_up(slot)
                else:
                    slot.tick()

    def _refuse(self, discarded: list[Discarded], text: str, *, certain: bool = True) -> None:
        """Tell everyone whose answer was discarded. Each command with an answer had exactly one effect with its request."""
        for item in discarded:
            self._turns.answer(
                [
                    _busy(effect.origin, effect.request, text, certain)
                    for effect in item.effects
                    if effect.request > 0
                ]
            )

    def _lose(self, discarded: list[Discarded]) -> None:
        """Rule 3."""
        self._refuse(discarded, STORE_LOST)
        self._stop(ServerBusy(STORE_LOST))
        if self._fenced is not None:
            self._fenced()


def _busy(origin: int, request: int, text: str, certain: bool = True) -> Refused:
    return Refused(origin, request, ServerBusy.condition, text, certain)


def _give_up(store: Store, clean: bool, locks: Mapping[int, list[Lock]]) -> None:
    try:
        if clean:
            for fragment, held in locks.items():
                if held:
                    store.save_locks(fragment, held)
            store.release()
    finally:
        store.close()
