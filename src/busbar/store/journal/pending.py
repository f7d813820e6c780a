"""What is in the journal and not in SQLite yet, as little of it as has to be written there.

A message that is put and deleted while it is pending leaves nothing. Edits and keeps change a pending message in place. An
edit, keep or delete that names another lane than that of a pending message does nothing, as it would in SQLite. Ids that are
forgotten while they are pending leave nothing, and of heads the last one counts. All else is kept in its order, as it came.

SQLite performs puts, then edits, keeps and deletes. That is the order in which they come for one message, nearly always. If
it is not, the net so far is sealed, and a new one begins: `groups` has all of them, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.changes import Changes, Keep
from busbar.model.message import Record

ROW_COST: Final = 200
"""What a pending row counts beside its bytes."""
DELETE_COST: Final = 16


@final
class FragmentNet:
    """The net of one fragment's changes."""

    def __init__(self, fragment: i64) -> None:
        self.fragment = fragment
        self.puts: dict[int, tuple[int, Record]] = {}  # by number: lane and message
        self.ids: dict[tuple[int, bytes], tuple[int, int]] = {}
        self.changes = Changes(fragment)  # edits, keeps, deletes, ids_upto and head
        self.others: list[Changes] = []
        self._edited: set[int] = set()
        self._kept: set[int] = set()
        self._deleted: set[int] = set()
        self.bytes: i64 = 0

    def fits(self, changes: Changes) -> bool:
        """Whether these changes can be added: none concerns a message that a later step of this net has."""
        if not self._deleted and not self._kept and not self._edited:
            return True
        for edit in changes.edits:
            if edit.n in self._deleted or edit.n in self._kept:
                return False
        for keep in changes.keeps:
            for n in keep.numbers:
                if n in self._deleted:
                    return False
        for records in changes.puts.values():
            for record in records:
                if record.n in self._deleted or record.n in self._kept or record.n in self._edited:
                    return False
        return True

    def add(self, changes: Changes) -> None:
        for lane, records in changes.puts.items():
            for record in records:
                self._put(lane, record)
        for edit in changes.edits:
            found = self.puts.get(edit.n)
            if found is None:
                self.changes.edits.append(edit)
                self._edited.add(edit.n)
                self.bytes += ROW_COST
            elif found[0] == edit.lane:
                self.puts[edit.n] = (edit.to, edit.edited(found[1]))
        for keep in changes.keeps:
            self._keep(keep)
        for lane, numbers in changes.deletes.items():
            self._delete(lane, numbers)
        upto = changes.ids_upto
        if upto is not None:
            self._forget_ids(upto)
        for segment, id, at, n in changes.ids:
            self.ids[(segment, id)] = (at, n)
            self.bytes += ROW_COST
        head = changes.head
        if head is not None:
            self.changes.head = head.copy()
        self._add_others(changes)

    def _put(self, lane: int, record: Record) -> None:
        self.puts[record.n] = (lane, record)
        content = record.content
        self.bytes += ROW_COST + (0 if content is None else len(content))

    def _keep(self, keep: Keep) -> None:
        elsewhere: list[int] = []
        for n in keep.numbers:
            found = self.puts.get(n)
            if found is None:
                elsewhere.append(n)
            elif found[0] == keep.lane:
                self.puts[n] = (keep.to, found[1])
        if elsewhere:
            self.changes.keeps.append(Keep(keep.lane, keep.to, elsewhere))
            self._kept.update(elsewhere)
            self.bytes += ROW_COST * len(elsewhere)

    def _delete(self, lane: int, numbers: list[int]) -> None:
        puts, elsewhere = self.puts, self.changes.deletes.get(lane)
        for n in numbers:
            found = puts.get(n)
            if found is None:
                if elsewhere is None:
                    elsewhere = self.changes.deletes[lane] = []
                elsewhere.append(n)
                self._deleted.add(n)
                self.bytes += DELETE_COST
            elif found[0] == lane:
                del puts[n]
                content = found[1].content
                self.bytes -= ROW_COST + (0 if content is None else len(content))

    def _forget_ids(self, upto: tuple[int, bytes]) -> None:
        before = self.changes.ids_upto
        if before is None or before < upto:
            self.changes.ids_upto = upto
        for key in [key for key in self.ids if key <= upto]:
            del self.ids[key]
            self.bytes -= ROW_COST

    def _add_others(self, changes: Changes) -> None:
        if not (
            changes.sessions
            or changes.states
            or changes.holds
            or changes.outbox
            or changes.taps
            or changes.events
            or changes.events_upto > 0
            or changes.written
            or changes.writers
        ):
            return
        other = Changes(self.fragment)
        other.sessions, other.states, other.outbox = changes.sessions, changes.states, changes.outbox
        other.holds = changes.holds
        other.taps = {tap: None if row is None else row.copy() for tap, row in changes.taps.items()}
        other.events, other.events_upto = changes.events, changes.events_upto
        other.written, other.writers = changes.written, changes.writers
        self.others.append(other)
        rows = (
            len(other.sessions) + len(other.holds) + len(other.outbox) + len(other.taps) + len(other.events)
        )
        rows += len(other.written) + len(other.writers)
        self.bytes += ROW_COST * rows
        for _, state in other.states.values():
            self.bytes += ROW_COST + (0 if state is None else len(state))

    def messages(self) -> Changes:
        """All of it but the others, as changes that SQLite can perform."""
        changes = self.changes
        puts: dict[int, list[Record]] = {}
        for n in sorted(self.puts):
            lane, record = self.puts[n]
            in_lane = puts.get(lane)
            if in_lane is None:
                in_lane = puts[lane] = []
            in_lane.append(record)
        changes.puts = puts
        changes.ids = [(segment, id, at, n) for (segment, id), (at, n) in self.ids.items()]
        return changes


@final
class Pending:
    """The nets of all fragments of a store."""

    def __init__(self) -> None:
        self._sealed: list[FragmentNet] = []
        self._nets: dict[int, FragmentNet] = {}
        self._bytes: i64 = 0

    def is_empty(self) -> bool:
        return not self._nets and not self._sealed

    def bytes(self) -> int:
        return int(self._bytes)

    def has(self, fragment: int) -> bool:
        return fragment in self._nets

    def contains(self, fragment: int, lane: int, n: int) -> bool:
        """Whether a message is pending in a lane."""
        net = self._nets.get(fragment)
        found = None if net is None else net.puts.get(n)
        return found is not None and found[0] == lane

    def add(self, batches: Sequence[Changes]) -> None:
        """Add a group commit."""
        for changes in batches:
            key = int(changes.fragment)
            net = self._nets.get(key)
            if net is not None and not net.fits(changes):
                self._sealed.append(net)
                net = None
            if net is None:
                net = self._nets[key] = FragmentNet(changes.fragment)
            before = net.bytes
            net.add(changes)
            self._bytes += net.bytes - before

    def groups(self) -> list[list[Changes]]:
        """All of it as group commits, in the order in which SQLite has to perform them."""
        groups: list[list[Changes]] = []
        for sealed in self._sealed:
            groups.append([sealed.messages()])
            groups += [[other] for other in sealed.others]
        groups.append([net.messages() for net in self._nets.values()])
        for net in self._nets.values():
            groups += [[other] for other in net.others]
        return groups

    def clear(self) -> None:
        """Nothing is pending any more."""
        self._sealed = []
        self._nets = {}
        self._bytes = 0
