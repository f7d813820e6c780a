"""The host of one messaging store: it runs jobs and operations on the store's thread, sets one timer, and passes effects on.
The commit loop (commit_loop.py) and the lifecycle of the store (store_lifecycle.py) decide what happens.

Rules:
1. Whatever comes in (commands, the end of a job or an operation, the timer, an operator) is passed to the lifecycle. Then
   the host starts what the lifecycle asks for. If there is a turn to take, it is taken at the end of the event loop's turn.
2. One job is under way at a time. Effects are performed last in a turn, since performing them may submit commands.
3. The timer is set by the wall clock, which may jump: it never sleeps longer than LONGEST_SLEEP.
4. Jobs are done on the thread. If an operator allows it, the event loop commits small groups itself (inline_commits.py). It
   does so only while the thread has nothing to do: one thread at a time uses the store. At most one such commit is made in a
   turn, as its last job, and the effects that rest on it are performed in the same turn.
5. Effects pass a gate, which is closed while another process may have claimed the store (effect_gate.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TypeVar
from uuid import uuid4

from busbar.broker.commit_loop import CommitLoop
from busbar.broker.commit_times import CommitTimes, seconds_of
from busbar.broker.effect_gate import EffectGate
from busbar.broker.fragment_loading import (
    ANY_GATEWAY,
    DurableState,
    build_machine,
    load,
    read_definitions,
    save_locks,
    slices,
)
from busbar.broker.hand_over import keep_sessions, locks_to_keep, take_back
from busbar.broker.host_api import Admit, Rows, StoreState
from busbar.broker.inline_commits import InlineCommits
from busbar.broker.job import Job
from busbar.broker.refusals import (
    STORE_FAILED,
    STORE_FENCED,
    STORE_FULL,
    STORE_UNAVAILABLE,
    StoreHung,
    never_began,
)
from busbar.broker.slot import Slot
from busbar.broker.store_freezing import StoreFreezer
from busbar.broker.store_lifecycle import StoreLifecycle
from busbar.broker.store_operations import Admit as AdmitOperation
from busbar.broker.store_operations import (
    CheckLocks,
    Recreate,
    Release,
    Reopen,
    StoreAccess,
    StoreOpened,
    StoreOperation,
)
from busbar.broker.store_thread import HOWEVER_LONG, LONG, PATIENCE, StoreThread
from busbar.fragment.figures import FiguresOfFragments
from busbar.fragment.history import HistorySwitch
from busbar.model.commands import Command
from busbar.model.effects import Effect
from busbar.model.errors import ServerBusy
from busbar.model.hold_commands import ReleaseHolds
from busbar.model.node_views import StoreFigures
from busbar.model.settings import FragmentSettings
from busbar.rules.selection import RuleCompiler
from busbar.store.contract import Store, StoreError, StoreFull
from busbar.store.location import StoreLocation, StoreLoss

DROP_SLICE = 1_000
LONGEST_SLEEP = 1_000
_PATIENCES: dict[type[StoreOperation], int] = {
    Release: LONG,
    Reopen: HOWEVER_LONG,
    Recreate: HOWEVER_LONG,
    CheckLocks: HOWEVER_LONG,
}
"""How long operations may take; one that is not named has one patience."""

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
        thread: Callable[[str, asyncio.AbstractEventLoop, float], StoreThread] = StoreThread,
        inline_messages: int = 0,
        history: HistorySwitch | None = None,
        fragment_figures: FiguresOfFragments | None = None,
    ) -> None:
        """`factory` opens the store (on the store's own thread), `clock` gives ms since 1970, `nonces` a number for the
        locks of each command, `emit` performs effects. `fenced` is called when another owner took the store. Without a
        `place`, a store that is not there is made by the factory. After `patience` seconds a call hangs. Hosts with the
        same `rules` share what is compiled. `thread` makes the store's thread. Groups of at most `inline_messages` messages
        are small (rule 4). `fragment_figures` counts for this process, and `history` decides what is recorded."""
        self.name = name
        self.broker = ""
        self.place = place
        self.state = StoreState.CLOSED
        self.since = 0
        """When it came into this state, in ms."""
        self.reason = ""
        """Why it is unavailable."""
        self.loss: StoreLoss | None = None
        self.gateways: set[str] = set()
        """Gateways of other processes that live: their clients may resume sessions of fragments that are loaded."""
        self.admit: Admit | None = None
        self.shown: Callable[[], None] | None = None
        """Called when the state, the reason or the loss is another one."""
        self.clock = clock
        self.commit_loop = CommitLoop(nonces, rules or RuleCompiler(uuid4), history)
        self._lifecycle = StoreLifecycle(
            name, self.commit_loop, has_place=place is not None, on_change=self._state_changed
        )
        self._access = StoreAccess(factory, place)
        freezer = StoreFreezer(self.on_store)
        self.freeze, self.thaw = freezer.freeze, freezer.thaw
        self._loop = loop
        self._fenced = fenced
        self._thread = thread(f"busbar-{name}", loop, patience)
        self._thread.returned = self._disk_answers
        self._inline = InlineCommits(inline_messages)
        self._admitting: asyncio.Task[None] | None = None
        self._retired: dict[int, Slot] = {}
        """Deleted fragments whose messages are not deleted yet."""
        self._settled: asyncio.Future[None] | None = None
        """While the store is handed over: done when all that was applied is durable, or the store has failed."""
        self._turn_due = False
        self.commit_times = CommitTimes()
        self._fragment_figures = fragment_figures or FiguresOfFragments()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for = (0, 0)
        self._gate = EffectGate(place, self._thread, self._lifecycle, emit, self._fail)

    # ---- opening and closing ----

    async def open(self) -> None:
        """Claim the store. Raises what the store raises."""
        await self._open(self._access.open)

    async def create(self) -> None:
        """Claim a new store in a place where none should be."""
        await self._open(self._access.create)

    async def _open(self, work: Callable[[], StoreOpened]) -> None:
        opened = await self._thread.call(work, LONG, unwanted=lambda opened: self._access.close())
        self._lifecycle.opened(opened, self._monotonic(), self.clock())
        self._proceed()

    async def mark_unavailable(self, reason: str) -> None:
        """Do not serve the store for now: it could not be opened, or is not what should be there."""
        self._lifecycle.mark_unavailable(reason)
        await self._shut()

    def start_reopening(self) -> None:
        """Open the store when that is possible."""
        self._lifecycle.start_reopening(self._monotonic())
        self._proceed()

    async def drain(self, timeout: float) -> bool:
        """Wait until all that was submitted is durable and answered; False if that takes too long."""
        deadline = self._loop.time() + timeout
        while self.is_open and not self.commit_loop.idle:
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(0.002)
        return True

    async def close(self) -> None:
        """Keep the message locks for the next owner, release the store and end the thread. Drain first: locks of a
        fragment that still has changes to commit are not kept, since they rest on what may never be durable."""
        is_clean = self.state is StoreState.OPEN
        self._lifecycle.stop(ServerBusy(STORE_UNAVAILABLE))
        self._proceed()
        if self._admitting is not None:
            self._admitting.cancel()
            await asyncio.gather(self._admitting, return_exceptions=True)
        try:
            if is_clean:
                await self._release()
        except StoreError as error:
            _log.error("store %s: message locks could not be kept: %s", self.name, error)
        finally:
            await self._shut()
            if self._timer is not None:
                self._timer.cancel()
            if not await self._thread.stop():
                _log.error("store %s is left as it is, as after a crash: its disk does not answer", self.name)

    async def hand_over(self, gateway: str) -> list[Command]:
        """Release the store for another owner. Returns the commands by which clients go on there (hand_over.py). `gateway`
        is the name of this process's gateway. The host takes no commands after that, and is to be closed. Raises ServerBusy
        if the store stays here."""
        if self.state is StoreState.UNAVAILABLE:
            return self._give_up()
        if not self._lifecycle.begin_hand_over():
            raise ServerBusy(f"The store '{self.name}' cannot be handed over now. Retry later.")
        self._settled = self._loop.create_future()
        try:
            keep_sessions(self.commit_loop, gateway, self.clock())
            self._proceed()
            await self._settled
            await self._release()
        except StoreError as error:
            self._lifecycle.fail(error, self._monotonic())
            raise ServerBusy(self._lifecycle.unavailable_text) from error
        except Exception:
            self._lifecycle.stay(self._monotonic(), self.clock())
            raise
        finally:
            self._settled = None
            self._proceed()
        self.shown = None
        commands = take_back(self.commit_loop)
        self._lifecycle.stop(ServerBusy(STORE_FENCED))
        return commands

    def _give_up(self) -> list[Command]:
        """Leave an unavailable store to another owner. What is under way on the thread has no effect any more."""
        commands = self._lifecycle.give_up()
        if commands is None:
            raise ServerBusy(f"The store '{self.name}' was taken offline. Bring it online to move it.")
        self.shown = None
        self._lifecycle.stop(ServerBusy(STORE_FENCED))
        self._proceed()
        return commands

    def _look_whether_settled(self, settled: asyncio.Future[None]) -> None:
        if not settled.done():
            if self.state is not StoreState.MOVING:
                settled.set_exception(ServerBusy(self._lifecycle.unavailable_text))
            elif self.commit_loop.is_settled and self._gate.is_passed:
                settled.set_result(None)

    async def _release(self) -> None:
        for fragment, held in locks_to_keep(self.commit_loop).items():
            if held:
                await self._on_store(partial(save_locks, fragment=fragment, held=held))
        await self._on_store(lambda store: store.release(), LONG)

    async def _shut(self) -> None:
        """Close the store. If its disk does not answer, the thread closes it later, and the host does not wait for that."""
        if self._thread.is_stopped or (self._access.store is None and self._thread.idle):
            return
        closed = asyncio.Event()
        self._thread.post(self._access.close, lambda result, error: closed.set(), HOWEVER_LONG)
        if not self._thread.hangs:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closed.wait(), self._thread.patience)

    # ---- fragments ----

    async def add_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None:
        """Take fragments into service; those that the store does not have are created empty."""
        missing = {key: of for key, of in fragments.items() if key not in self.commit_loop.slots}
        if not missing:
            return
        before = self._lifecycle.predecessor
        run = self.on_store if self.state is StoreState.OPEN else self._on_store
        loaded: dict[int, DurableState] = {}
        for some in slices(missing):
            gateways = frozenset(self.gateways)
            loaded.update(await run(partial(load, fragments=some, predecessor=before, gateways=gateways)))
        added = []
        for fragment, durable in loaded.items():
            figures = self._fragment_figures.of(fragment)
            machine = build_machine(fragment, missing[fragment], durable, figures=figures)
            added.append(Slot(fragment, machine))
            self.commit_loop.add(added[-1])
        for slot in added:
            if slot.machine.settings.topic is not None:
                self.commit_loop.link_topic(slot, self.clock())
        loaded_for = {hold.gateway() for durable in loaded.values() for hold in durable.holds}
        if ANY_GATEWAY not in self.gateways:
            for gateway in loaded_for - self.gateways:  # it has ended meanwhile
                self.release_holds(gateway)
        self._proceed()

    def gateway_ended(self, gateway: str) -> None:
        """Note that a gateway of another process has ended, and the holders of sessions there with it."""
        self.gateways.discard(gateway)
        self.release_holds(gateway)

    def release_holds(self, gateway: str) -> None:
        """Release the sessions of a gateway that were loaded and not resumed: their holders have left."""
        slots = [slot for slot in self.commit_loop.slots.values() if not slot.broken]
        held = [slot.id for slot in slots if slot.machine.has_absent_holders()]
        if held:
            self.submit([ReleaseHolds(fragment, gateway) for fragment in held])

    def change_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None:
        """Use other settings for these fragments from now on."""
        now = self.clock()
        for fragment, settings in fragments.items():
            slot = self.commit_loop.slots.get(fragment)
            if slot is not None:
                slot.machine.settings = settings
                if settings.topic is not None:
                    self.commit_loop.link_topic(slot, now)
        for fragment in fragments:
            slot = self.commit_loop.slots.get(fragment)
            if slot is not None:
                self.commit_loop.tick(slot, now)
        self._proceed()

    def retire_fragments(self, fragments: Sequence[int]) -> None:
        """Take deleted fragments out of service, also while the store is unavailable."""
        for fragment in fragments:
            slot = self.commit_loop.remove(fragment)
            if slot is not None:
                self._retired[fragment] = slot
            self._lifecycle.drop_fragment(fragment)
        self._fragment_figures.forget(fragments)
        self._proceed()

    async def remove_fragment(self, fragment: int) -> None:
        """Take a fragment out of service and delete its messages, in slices between the commits of others."""
        self.retire_fragments([fragment])
        slot = self._retired.pop(fragment, None)
        while slot is not None and slot.is_committing:
            await self.on_store(lambda store: None)
        while not await self.on_store(lambda store: store.drop(fragment, DROP_SLICE)):
            pass

    @property
    def fragments(self) -> int:
        """The number of fragments that are in service or wait for the store."""
        return len(self.commit_loop.slots)

    def last_used(self, fragment: int) -> int:
        slot = self.commit_loop.slots.get(fragment)
        return 0 if slot is None else slot.last_used

    async def refresh_last_used(self, fragments: Sequence[int]) -> None:
        """Return at once: in this process `last_used` is always up to date."""

    def __contains__(self, fragment: int) -> bool:
        return fragment in self.commit_loop.slots

    # ---- other uses of the store ----

    async def on_store(self, work: Callable[[Store], T]) -> T:
        """Do something with the store on its thread, in order with the commits. Raises ServerBusy if the store is
        unavailable or fails; what fails here starts the recovery as a failed commit does."""
        if not self.is_open:
            raise ServerBusy(self._lifecycle.unavailable_text)
        try:
            return await self._on_store(work)
        except StoreFull as error:
            raise ServerBusy(STORE_FULL) from error
        except StoreError as error:
            if not self.commit_loop.job_under_way:  # a job after this one fails too, and reports it
                self._fail(error)
            is_certain = never_began(error)
            failure = ServerBusy(self._lifecycle.unavailable_text if is_certain else STORE_FAILED)
            failure.certain = is_certain
            raise failure from error

    async def write_definitions(self, rows: Rows) -> None:
        await self.on_store(lambda store: store.write_definitions(rows))

    async def read_definitions(self) -> tuple[dict[str, bytes], int]:
        """The definitions that the store has, and the highest id of its fragments.

        The catalogue calls this and `repair_definitions` when it admits the store, also while the store is being opened.
        They raise what the store raises."""
        return await self._on_store(read_definitions, LONG)

    async def repair_definitions(self, rows: Rows) -> None:
        await self._on_store(lambda store: store.write_definitions(rows), LONG)

    async def _on_store(self, work: Callable[[Store], T], patiences: int = 1) -> T:
        if self._access.store is None:
            raise ServerBusy(STORE_UNAVAILABLE)
        return await self._thread.call(lambda: self._access.use(work), patiences)

    @property
    def is_open(self) -> bool:
        return self._lifecycle.is_open

    @property
    def epoch(self) -> int:
        return self._lifecycle.epoch

    @property
    def hanging_for(self) -> float:
        """For how many seconds the thread of the store has been given up; 0 while it answers."""
        return self._loop.time() - self._thread.hung_at if self._thread.hangs else 0.0

    def figures(self) -> StoreFigures:
        """How the store works, for operators."""
        return self.commit_times.figures(self.name, self.epoch, self.place)

    def stop_timers(self) -> None:
        """Begin nothing that no client asked for: a million messages that are due now must not delay the stop."""
        self.commit_loop.stop_timers()
        self._proceed()

    # ---- commands, and what operators ask for ----

    def submit(self, commands: Iterable[Command]) -> None:
        """Pass commands on. Every command with an answer gets it: its effect, or Refused."""
        self._lifecycle.submit(commands, self.clock())
        self._proceed()

    async def take_offline(self) -> None:
        """Ignore the store until `bring_online`: what was given to it is finished, and the file closed."""
        self._lifecycle.take_offline(self._monotonic())
        self._proceed()
        while self._lifecycle.is_offline and self.is_open:
            await asyncio.sleep(0.002)

    def bring_online(self) -> None:
        """Open the store now."""
        self._lifecycle.bring_online(self._monotonic(), self.clock())
        self._proceed()

    def reset(self) -> None:
        """Create an empty store in place of one that is unavailable; what is there is renamed."""
        self._lifecycle.reset(self._monotonic())
        self._proceed()

    def _disk_answers(self) -> None:
        self._lifecycle.disk_answers(self._monotonic())
        self._proceed()

    # ---- running what is asked for ----

    def _monotonic(self) -> int:
        """The time of the lifecycle's clock, in ms. It never goes back."""
        return int(self._loop.time() * 1000)

    def _proceed(self) -> None:
        """Start what the lifecycle asks for, and see to it that a turn is taken (rule 1)."""
        lifecycle = self._lifecycle
        if lifecycle.has_operations:
            for operation in lifecycle.take_operations():
                self._start(operation)
        if not self._turn_due and lifecycle.has_turn:
            self._turn_due = True
            self._loop.call_soon(self._scheduled_turn)
        if self._settled is not None:
            self._look_whether_settled(self._settled)
        wake_at = self.commit_loop.wake_at, lifecycle.wake_at
        if self._timer is None or wake_at != self._timer_for:
            self._set_timer(*wake_at)

    def _scheduled_turn(self) -> None:
        self._turn_due = False
        self._turn()

    def _turn(self) -> None:
        has_more = True
        while has_more:
            step = self._lifecycle.step(self._monotonic(), self.clock())
            effects = step.effects
            has_more = step.has_more
            if step.job is not None and self._run(step.job, is_last=not has_more):
                effects = effects + self.commit_loop.take_effects()
        if effects:
            self._gate.perform(effects)
        self._proceed()

    def _fail(self, error: StoreError) -> None:
        self._lifecycle.fail(error, self._monotonic())
        self._proceed()

    def _run(self, job: Job, *, is_last: bool) -> bool:
        """Give a job to the thread, or do it (rule 4). True if it is done."""
        work = partial(self._access.commit, job)
        if job.batches:
            self.commit_times.begin(sum([batch.weight for batch in job.batches]))
        if not self._inline.is_small(job):
            self._thread.post(work, self._job_returned)
            return False
        now = self._monotonic()
        if (
            is_last
            and self._thread.idle
            and self._inline.is_allowed(now)
            and self._access.commits_at_once(job)
        ):
            self._commit_inline(work, now)
            return True
        self._thread.post(partial(seconds_of, work), self._small_job_returned)
        return False

    def _commit_inline(self, work: Callable[[], None], now: int) -> None:
        error: BaseException | None = None
        began = perf_counter()
        try:
            work()
        except BaseException as raised:  # an outcome, as on the thread
            error = raised
        self._inline.took_loop(perf_counter() - began, now)
        self._job_ended(error)

    def _small_job_returned(self, seconds: object, error: BaseException | None) -> None:
        if isinstance(seconds, float):
            self._inline.took_thread(seconds)
        self._job_returned(None, error)

    def _job_returned(self, _: object, error: BaseException | None) -> None:
        self._job_ended(error)
        self._turn()

    def _job_ended(self, error: BaseException | None) -> None:
        self.commit_times.end(error is None)
        if error is None:
            self._lifecycle.job_done(self._monotonic())
        else:
            self._inline.pause(self._monotonic())
            self._lifecycle.job_failed(error, self._monotonic())

    def _start(self, operation: StoreOperation) -> None:
        if isinstance(operation, AdmitOperation):
            self._admitting = self._loop.create_task(self._admit(operation))
            return
        done = partial(self._operation_returned, operation)
        if isinstance(operation, Reopen | Recreate) and self._thread.hangs:
            self._loop.call_soon(done, None, StoreHung(self._thread.patience, began=False))
            return
        self._thread.post(partial(self._access.perform, operation), done, _PATIENCES.get(type(operation), 1))

    async def _admit(self, operation: AdmitOperation) -> None:
        error: Exception | None = None
        if self.admit is not None:
            try:
                await self.admit(self, operation.recreated)
            except Exception as raised:
                error = raised
        self._operation_returned(operation, None, error)

    def _operation_returned(
        self, operation: StoreOperation, result: object, error: BaseException | None
    ) -> None:
        if error is None:
            self._lifecycle.operation_done(operation, result, self._monotonic(), self.clock())
        elif isinstance(error, Exception):
            self._lifecycle.operation_failed(operation, error, self._monotonic(), self.clock())
        else:
            raise error
        self._proceed()

    def _state_changed(self) -> None:
        now = self._lifecycle
        if now.state is not self.state:
            self.since = self.clock()
        is_fenced = now.is_fenced and self.state is not StoreState.CLOSED
        self.state, self.reason, self.loss = now.state, now.reason, now.loss
        if self.shown is not None:
            self.shown()
        if self.state is StoreState.OPEN:
            self._loop.call_soon(self._gate.confirm)
        self.commit_times.fenced += is_fenced
        if is_fenced and self._fenced is not None:
            self._loop.call_soon(self._fenced)

    # ---- the timer ----

    def _set_timer(self, wake_at: int, lifecycle_at: int) -> None:
        """Set one timer for all that is due. It is set again when something else comes first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_for = (wake_at, lifecycle_at)
        delays = [LONGEST_SLEEP]
        if wake_at:
            delays.append(wake_at - self.clock())
        if lifecycle_at:
            delays.append(lifecycle_at - self._monotonic())
        if len(delays) > 1:
            self._timer = self._loop.call_later(max(min(delays), 0) / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._lifecycle.timer(self._monotonic(), self.clock())
        self._proceed()
