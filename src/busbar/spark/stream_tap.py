"""The tap of a stream: how a query acquires it, resumes with it, and advances it.

Owner. A tap belongs to one checkpoint. A reader has no access to its checkpoint, but Spark gives it back what it wrote
there. So a query that begins uses a new name as the owner (or the option `owner`), and its offsets contain it. If a query
begins with a tap that has an owner already, it is refused, unless `takeOver` confirms that the other query is gone. (If a
query dies after it took the tap and before Spark wrote its first offset, it needs that too; with `owner` it does not.)

Beginning. Spark requests the beginning again when it repeats the first batch. So the beginning is made durable twice: as the
tap's position, and as `from` in the first offset.

Advancing. A tap is advanced to the end of a batch when Spark reports that the batch is committed, which it does when it
requests the next one. The listener (listener.py) closes the gap after the last batch.

Losses. A tap may have been truncated at its limits or deleted, an entity may have been deleted and created again, and a
checkpoint may be older than the tap's position. Each is an error that states what is missing. With failOnDataLoss=false it
is a warning, and the stream continues with what exists.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from busbar.client import AlreadyExists, BusbarClientError, ConnectionLost, FragmentTap, NotFound, TapView
from busbar.client.blocking import BlockingTaps
from busbar.spark.connection import client_errors, data_loss, entity_label, log, taps_of
from busbar.spark.errors import OptionError, SourceError
from busbar.spark.offsets import Offset
from busbar.spark.options import EVENTS, LATEST, SourceOptions

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The position of a stream: what it has read, and the end of the entity, by fragment."""

    entity: str
    """As the broker spells it."""
    incarnation: str
    tap: str
    owner: str
    positions: Mapping[int, int]
    ends: Mapping[int, int]
    """Fragments whose store is unavailable are missing."""
    view: TapView


def new_tap_name() -> str:
    return f"spark-{uuid.uuid4().hex[:12]}"


def new_owner() -> str:
    return f"spark-{uuid.uuid4().hex}"


class StreamTap:
    """Created in each process; the connection behind it is kept (connection.py)."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._advanced: dict[int, int] = {}
        self._incarnation = ""  # of the entity, as last seen

    def start(self, name: str = "", owner: str = "") -> StreamPosition:
        """Begin with an entity that the checkpoint does not have: take the tap, or create it. The names of tap and owner are
        those of the options, else the given ones, else new ones."""
        options = self._options
        name = options.tap or name or new_tap_name()
        owner = options.owner or owner or new_owner()
        with client_errors(options):
            taps = taps_of(options)
            view = self._complete(taps, self._acquire(taps, name, owner))
            positions = self._check_loss(taps, view, self._beginning(taps, view), owner)
            self._move(taps, name, owner, positions)
            return self._standing(taps, view, owner, positions)

    def resume(self, offset: Offset) -> StreamPosition:
        """Resume a query that has read up to an offset."""
        options = self._options
        with client_errors(options):
            taps = taps_of(options)
            view = self._find_tap(taps, offset.tap)
            if view is None or view.incarnation != offset.incarnation:
                view, positions = self._handle_lost_tap(taps, view, offset)
            else:
                positions = dict(offset.positions)
            if view.owner != offset.owner:
                view = taps.own(offset.tap, offset.owner, take_over=options.take_over)
            self._check_kind(view)
            positions = self._check_loss(taps, view, positions, offset.owner)
            return self._standing(taps, view, offset.owner, positions)

    def advance(self, offset: Offset) -> None:
        """Advance the tap to the end of a committed batch. Positions of another incarnation of the entity are ignored."""
        if offset.incarnation != self._incarnation:
            return
        with client_errors(self._options):
            self._move(taps_of(self._options), offset.tap, offset.owner, offset.positions)

    def ends(self) -> dict[int, int]:
        """The ends of the entity now."""
        with client_errors(self._options):
            found = taps_of(self._options).ends()
        if self._options.stream == EVENTS:
            return found.event_ends
        return found.dead_ends if self._options.sub_queue else found.ends

    # ---- taking ----------------------------------------------------------------------------------

    def _acquire(self, taps: BlockingTaps, name: str, owner: str) -> TapView:
        """The tap, with this query as its owner."""
        options = self._options
        patience = time.monotonic() + options.wait
        while True:
            view = self._find_tap(taps, name)
            if view is not None:
                self._check_kind(view)
                if view.owner == owner:
                    return view
                return taps.own(name, owner, take_over=options.take_over)
            try:
                return taps.create(
                    name,
                    events=options.stream == EVENTS,
                    consumes=options.consume,
                    from_earliest=options.start.word != LATEST,
                    owner=owner,
                    max_age=options.tap_max_age,
                    max_size=options.tap_max_size,
                    lease=options.lease,
                )
            except (AlreadyExists, ConnectionLost) as error:
                # Another process created it, or this one did and the answer was lost: look again.
                if time.monotonic() > patience:
                    raise error

    def _find_tap(self, taps: BlockingTaps, name: str) -> TapView | None:
        """The tap, or None if the entity has none of this name. Raises NotFound if there is no entity."""
        try:
            return taps.show(name)
        except NotFound:
            taps.ends()
            return None

    def _check_kind(self, view: TapView) -> None:
        options = self._options
        if view.consumes != options.consume:
            kind = "consumes" if view.consumes else "does not consume"
            raise OptionError(
                "mode", f"does not fit: the tap {view.name!r} of {entity_label(options)!r} {kind}."
            )
        if options.stream == EVENTS and not view.events:
            raise OptionError("stream", f"is 'events', which the tap {view.name!r} does not record.")

    def _complete(self, taps: BlockingTaps, view: TapView) -> TapView:
        """The tap when all fragments report their positions, which a stream needs to begin."""
        patience = time.monotonic() + self._options.wait
        while not all(fragment.available for fragment in view.fragments):
            if time.monotonic() > patience:
                out = [fragment.index for fragment in view.fragments if not fragment.available]
                raise SourceError(
                    "BUSBAR_UNAVAILABLE",
                    f"Fragments {out} of {entity_label(self._options)!r} were not available for {self._options.wait:g} s "
                    "(option 'waitForBroker'); a stream cannot begin without knowing where they are.",
                )
            time.sleep(POLL_SECONDS)
            view = taps.show(view.name)
        return view

    def _beginning(self, taps: BlockingTaps, view: TapView) -> dict[int, int]:
        """The position in each fragment behind which a query begins: a time and numbers never go back behind the tap's."""
        start = self._options.start
        positions = {fragment.index: self._position(fragment) for fragment in view.fragments}
        wanted: dict[int, int] = {}
        if start.time is not None:
            wanted = taps.find_time(start.time)
        elif start.numbers:
            wanted = {index: number - 1 for index, number in start.numbers}
        ends = {fragment.index: self._end(fragment) for fragment in view.fragments}
        return {
            index: max(position, min(wanted.get(index, 0), ends[index]))
            for index, position in positions.items()
        }

    # ---- losses ----------------------------------------------------------------------------------

    def _handle_lost_tap(
        self, taps: BlockingTaps, view: TapView | None, offset: Offset
    ) -> tuple[TapView, dict[int, int]]:
        """Handle a tap that is gone, or that belongs to another entity of the same name."""
        options = self._options
        incarnation = view.incarnation if view is not None else taps.ends().incarnation
        if incarnation != offset.incarnation:
            text = (
                f"The entity {entity_label(options)!r} was deleted and made again since the checkpoint was written: "
                f"what it held behind the positions {dict(offset.positions)} is gone."
            )
        else:
            text = (
                f"The tap {offset.tap!r} of {entity_label(options)!r} was deleted: what it kept behind the positions "
                f"{dict(offset.positions)} may be gone."
            )
        if options.fail_on_loss:
            raise data_loss(text)
        log.warning("%s Going on, as failOnDataLoss is false.", text)
        if view is None:
            view = taps.create(
                offset.tap,
                events=options.stream == EVENTS,
                consumes=options.consume,
                from_earliest=True,
                owner=offset.owner,
                max_age=options.tap_max_age,
                max_size=options.tap_max_size,
                lease=options.lease,
            )
        view = self._complete(taps, view)
        self._advanced = {}
        if incarnation == offset.incarnation:
            return view, dict(offset.positions)
        return view, {fragment.index: self._position(fragment) for fragment in view.fragments}

    def _check_loss(
        self, taps: BlockingTaps, view: TapView, positions: dict[int, int], owner: str
    ) -> dict[int, int]:
        """The positions, moved behind the loss if the options allow it."""
        losses: list[str] = []
        moved = dict(positions)
        for fragment in view.fragments:
            if not fragment.available:
                continue
            position = positions.get(fragment.index, 0)
            lost = fragment.event_lost if self._options.stream == EVENTS else fragment.lost
            passed = self._position(fragment)
            if position < lost:
                losses.append(f"fragment {fragment.index}: {position + 1} to {lost} (the tap was truncated)")
            elif position < passed:
                losses.append(
                    f"fragment {fragment.index}: {position + 1} to {passed} (the tap has passed them)"
                )
            moved[fragment.index] = max(position, lost, passed)
        if losses:
            text = (
                f"The tap {view.name!r} of {entity_label(self._options)!r} no longer keeps all that the query has not read. "
                f"Lost are messages among {'; '.join(losses)}."
            )
            if self._options.fail_on_loss:
                raise data_loss(text)
            log.warning("%s Going on, as failOnDataLoss is false.", text)
        if view.truncated:
            taps.resume(view.name, owner)
        return moved

    # ---- positions -------------------------------------------------------------------------------

    def _standing(
        self, taps: BlockingTaps, view: TapView, owner: str, positions: Mapping[int, int]
    ) -> StreamPosition:
        if self._options.consume:
            # A read renews the lease. Only with it no receiver can reach below the end.
            for fragment in view.fragments:
                position = positions.get(fragment.index, 0)
                if fragment.available and fragment.end > position:
                    taps.read(view.name, fragment.index, position, fragment.end, count=1)
            view = taps.show(view.name)
        ends = {
            fragment.index: max(self._end(fragment), positions.get(fragment.index, 0))
            for fragment in view.fragments
            if fragment.available
        }
        if self._options.stream == EVENTS and not self._options.owner:
            self._pass_messages(taps, view, owner)
        self._incarnation = view.incarnation
        return StreamPosition(view.entity, view.incarnation, view.name, owner, positions, ends, view)

    def _move(self, taps: BlockingTaps, name: str, owner: str, positions: Mapping[int, int]) -> None:
        further = {
            index: position
            for index, position in positions.items()
            if position > self._advanced.get(index, 0)
        }
        if not further:
            return
        try:
            taps.advance(name, owner, further, stream=self._options.stream)
        except BusbarClientError as error:
            if not error.retryable:
                raise
            # A store that is unavailable for longer than the wait: the next batch tries again, and nothing is lost by it.
            log.warning("The tap %r could not be advanced: %s", name, error)
            return
        self._advanced |= further

    def _pass_messages(self, taps: BlockingTaps, view: TapView, owner: str) -> None:
        """Pass the messages of a tap for events, which keeps messages too. This checkpoint owns the tap, so no other query
        reads them; with an `owner` another query of that name may."""
        behind = {
            each.index: each.end for each in view.fragments if each.available and each.end > each.position
        }
        if behind:
            taps.advance(view.name, owner, behind)

    def _position(self, fragment: FragmentTap) -> int:
        return fragment.event_position if self._options.stream == EVENTS else fragment.position

    def _end(self, fragment: FragmentTap) -> int:
        return fragment.event_end if self._options.stream == EVENTS else fragment.end
