"""Holds the machine of a fragment with taps against the model, with readers of the taps.

What is checked beyond a queue: a page of a tap shows every message that was ever there in its span, exactly once,
in order and with its bytes, whatever became of it, or it is refused. A reader goes on where it was, through crashes of the
fragment. The truth about the dead-letter queue's order is what the store was told; which messages are in it is the model's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from busbar.broker.fragment_loading import DurableState
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, DEFERRED, KEPT, KEPT_DEAD
from busbar.model.settings import FragmentSettings, TapSettings
from tests.pages import shown
from tests.simulation.queue_checker import QueueChecker
from tests.simulation.queue_model import Message, Model
from tests.simulation.store_world import StoreWorld

TRUNCATED = "busbar:tap-truncated"
FINAL = {e.COMPLETED, e.RECEIVED_AND_DELETED, e.EXPIRED, e.PURGED}


class TapModel(Model):
    """Remembers what was ever active, and what was ever dead-lettered."""

    def __init__(self) -> None:
        super().__init__()
        self.born: dict[int, bytes] = {}
        self.buried: set[int] = set()

    def snapshot(self) -> TapModel:
        other = super().snapshot()
        assert isinstance(other, TapModel)
        other.born = dict(self.born)
        other.buried = set(self.buried)
        return other

    def _put(self, message: Message) -> None:
        super()._put(message)
        if message.lane == ACTIVE:
            self.born[message.n] = message.content

    def _set(self, message: Message) -> None:
        if message.lane == DEAD and self.messages[message.n].lane in (ACTIVE, DEFERRED):
            self.buried.add(message.n)
        super()._set(message)


@dataclass
class Reader:
    """Whoever reads a tap: it keeps its own checkpoint."""

    tap: TapSettings
    at: int | None = None  # read up to here; not known before it was shown the tap
    event_at: int = 0
    end: int = 0
    event_end: int = 0
    asked: int = 0  # it may be that the tap has passed all up to here
    event_asked: int = 0
    complete: bool = True  # nothing was lost
    was_lost: bool = False  # with the store
    events: dict[int, e.MessageEvent] = field(default_factory=dict)
    truncated: int = 0

    @property
    def limited(self) -> bool:
        return self.tap.max_age_ms > 0 or self.tap.max_bytes > 0


class TapChecker(QueueChecker):
    model_of = TapModel
    model: TapModel

    def __init__(self, world: StoreWorld, settings: FragmentSettings, fragment: int = 1) -> None:
        super().__init__(world, settings, fragment)
        self.readers: dict[int, Reader] = {tap.id: Reader(tap) for tap in settings.taps}
        self.asked: dict[int, tuple[Reader, c.Command]] = {}

    # ---- readers ----

    def _ask(self, reader: Reader, command: c.Command) -> None:
        self.ticks = 0
        self.world.request(command)
        self.asked[int(command.request)] = (reader, command)
        self.world.submit(command)

    def show(self, reader: Reader) -> None:
        self._ask(reader, c.ShowTaps(self.fragment, self.fragment, 1))

    def read(self, reader: Reader, count: int, size: int, again: bool = False) -> None:
        if reader.at is None:
            return
        # Again: from as early as it is sure that the tap has not passed it.
        after = min(reader.at, max(reader.asked, 0)) if again else reader.at
        tap = reader.tap
        self._ask(
            reader,
            c.ReadTap(
                self.fragment, self.fragment, 1, tap.id, tap.sub, c.MESSAGES, after, reader.end, count, size
            ),
        )

    def read_events(self, reader: Reader, count: int) -> None:
        if reader.at is None:
            return
        tap = reader.tap
        self._ask(
            reader,
            c.ReadTap(
                self.fragment,
                self.fragment,
                1,
                tap.id,
                tap.sub,
                c.EVENTS,
                reader.event_at,
                reader.event_end,
                count,
                1_000_000,
            ),
        )

    def advance(self, reader: Reader, share: float) -> None:
        if reader.at is None:
            return
        position = round(reader.asked + (reader.at - reader.asked) * share)
        reader.asked = max(reader.asked, position)
        self._ask(
            reader,
            c.AdvanceTap(
                self.fragment, self.fragment, 1, reader.tap.id, c.MESSAGES, position, reader.tap.owner
            ),
        )

    def advance_events(self, reader: Reader, share: float) -> None:
        if reader.at is None:
            return
        position = round(reader.event_asked + (reader.event_at - reader.event_asked) * share)
        reader.event_asked = max(reader.event_asked, position)
        self._ask(
            reader,
            c.AdvanceTap(
                self.fragment, self.fragment, 1, reader.tap.id, c.EVENTS, position, reader.tap.owner
            ),
        )

    def resume(self, reader: Reader) -> None:
        self._ask(reader, c.ResumeTap(self.fragment, self.fragment, 1, reader.tap.id, reader.tap.owner))

    def catch_up(self, reader: Reader) -> None:
        """Read to the end and pass it."""
        for _ in range(3):
            self.show(reader)
            self.settle_down()
        for _ in range(1_000):
            if reader.at == reader.end:
                break
            self.read(reader, 50, 5_000)
            self.settle_down()
        self.advance(reader, 1)
        if reader.tap.events:
            for _ in range(1_000):
                if reader.event_at == reader.event_end:
                    break
                self.read_events(reader, 50)
                self.settle_down()
            self.advance_events(reader, 1)
        self.settle_down()

    def finish(self, reader: Reader) -> None:
        """Read all that happened, also while it was read."""
        self.resume(reader)
        self.settle_down()
        for _ in range(20):
            self.catch_up(reader)
            if not (reader.complete and reader.tap.events):
                return
            if reader.event_at == self.machine.head().last_event:
                self.check_events(reader)
                return
        raise AssertionError("it never catches up")

    def settle_down(self) -> None:
        self.world.drain()

    def retap(self, settings: FragmentSettings) -> None:
        """The entity has other taps from now on."""
        wanted = {tap.id: tap for tap in settings.taps}
        self.readers = {id: self.readers.get(id) or Reader(tap, complete=False) for id, tap in wanted.items()}
        self.change(settings)

    # ---- the truth ----

    def _span(self, reader: Reader, after: int, upto: int) -> list[tuple[int, int]]:
        """Positions and numbers of all that was ever there."""
        if reader.tap.sub == ACTIVE:
            return [(n, n) for n in sorted(self.model.born) if after < n <= upto]
        there = {
            record.dead_letter_number: record.n
            for lane in self.stored.lanes
            for record in lane.records.values()
            if record.dead_letter_number
        }
        return [
            (dead, n) for dead, n in sorted({**self.buried_order, **there}.items()) if after < dead <= upto
        ]

    @property
    def buried_order(self) -> dict[int, int]:
        """By Record.dead, as the store was told."""
        return self.stored.buried

    def _follow(self, command: c.Command, effects: list[e.Effect]) -> None:
        super()._follow(command, effects)
        if isinstance(command, c.ReadTap):
            self._check_page(command, effects[0])
        elif isinstance(command, c.AdvanceTap):
            reader, _ = self.asked[command.request]
            assert isinstance(effects[0], e.Done) or reader.was_lost or self._is_deleted(reader)

    def _is_deleted(self, reader: Reader) -> bool:
        """The tap, while the command waited."""
        return reader.tap.id not in self.readers

    def _check_page(self, command: c.ReadTap, answer: e.Effect) -> None:
        reader, _ = self.asked[command.request]
        if isinstance(answer, e.Refused):
            if self._is_deleted(reader):
                return
            assert answer.condition == TRUNCATED, answer.text
            assert reader.limited or reader.was_lost
            return
        if isinstance(answer, e.EventPage):
            ats = [event.at for event in answer.events]
            assert ats == list(range(command.after + 1, answer.upto + 1)), "no event is missing"
            return
        assert isinstance(answer, e.TapPage)
        assert command.after <= answer.upto <= max(command.upto, command.after)
        expected = self._span(reader, command.after, answer.upto)
        messages = shown(answer)
        assert [(r.n if reader.tap.sub == ACTIVE else r.dead, r.n) for r in messages] == expected
        for record in messages:
            assert record.content == self.model.born[record.n]
            message = self.model.messages.get(record.n)
            if message is None:
                assert record.lane in (KEPT, KEPT_DEAD)
        if command.upto > command.after and command.count > 0:
            assert answer.upto > command.after, "it goes on"

    def performed(self, effect: e.Effect) -> None:
        super().performed(effect)
        asked = self.asked.pop(effect.request, None)
        if asked is None:
            return
        reader, command = asked
        if isinstance(effect, e.TapStates):
            self._heard_states(reader, command, effect)
        elif isinstance(effect, e.TapPage):
            assert reader.at is not None
            reader.at = max(reader.at, effect.upto)
        elif isinstance(effect, e.EventPage):
            for event in effect.events:
                assert reader.events.setdefault(event.at, event).n == event.n
            reader.event_at = max(reader.event_at, effect.upto)
        elif isinstance(effect, e.Refused) and effect.condition == TRUNCATED:
            reader.complete = False
            reader.truncated += 1

    def _store_lost(self, durable: DurableState) -> None:
        """Readers are told so."""
        super()._store_lost(durable)
        for reader in self.readers.values():
            reader.complete, reader.was_lost = False, True

    def _heard_states(self, reader: Reader, command: c.Command, effect: e.TapStates) -> None:
        for state in effect.taps:
            if state.id != reader.tap.id:
                continue
            if reader.at is None:
                reader.at = reader.asked = state.position
                reader.event_at = reader.event_asked = state.event_position
                reader.complete = reader.complete and state.position == state.event_position == 0
            if isinstance(command, c.ResumeTap):
                if state.position > reader.at or state.event_position > reader.event_at:
                    reader.complete = False
                reader.at = max(reader.at, state.position)
                reader.asked = max(reader.asked, state.position)
                reader.event_at = max(reader.event_at, state.event_position)
                reader.event_asked = max(reader.event_asked, state.event_position)
            assert state.position <= reader.asked, "only its reader moves a tap"
            end = effect.end if reader.tap.sub == ACTIVE else effect.dead_end
            assert reader.end <= end and reader.event_end <= effect.event_end, "the end never goes back"
            reader.end, reader.event_end = end, effect.event_end

    def _check_store(self) -> None:
        super()._check_store()
        store = self.stored
        wanted = {tap.id: tap for tap in self.settings.taps}
        assert set(store.taps) == set(wanted)
        holding = [(row, wanted[id]) for id, row in store.taps.items() if not row.truncated]
        low = min((row.position for row, tap in holding if tap.sub == ACTIVE), default=1 << 62)
        low_dead = min((row.position for row, tap in holding if tap.sub == DEAD), default=1 << 62)
        low_event = min((row.event_position for row, tap in holding if tap.events), default=1 << 62)
        assert all(n > low for n in self.lane(KEPT)), "nothing is kept for nobody"
        assert all(record.dead_letter_number > low_dead for record in self.lane(KEPT_DEAD).values())
        assert all(event.at > low_event for event in store.events)
        for row, tap in holding:
            kept = self.lane(KEPT if tap.sub == ACTIVE else KEPT_DEAD)
            positions = {(r.n if tap.sub == ACTIVE else r.dead_letter_number): r for r in kept.values()}
            mine = sorted(p for p in positions if p > row.position)
            slowest = row.position == (low if tap.sub == ACTIVE else low_dead)
            if mine and tap.max_bytes and slowest:
                assert sum(r.size for r in kept.values()) <= tap.max_bytes
            if mine and tap.max_age_ms and slowest:
                assert positions[mine[0]].enqueued + tap.max_age_ms > self.model.now

    def check_events(self, reader: Reader) -> None:
        """What the events of a reader that lost none say is what has become of the messages."""
        final = [event.n for event in reader.events.values() if event.outcome in FINAL]
        assert len(set(final)) == len(final)
        assert set(final) == set(self.model.born) - set(self.model.messages)
        dead = [event.n for event in reader.events.values() if event.outcome == e.DEAD_LETTERED]
        assert sorted(dead) == sorted(self.model.buried)
        dropped = [ev for ev in reader.events.values() if ev.outcome == e.DUPLICATE_DROPPED]
        assert len(dropped) >= self.model.dropped
