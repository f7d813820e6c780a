"""What is in the journal and not in SQLite yet, as little of it as has to be written there.

A message that is put and deleted while it is pending leaves nothing. Edits and keeps change a pending message in place. An
edit, keep or delete that names another lane than that of a pending message does nothing, as it would in SQLite. Ids that are
forgotten while they are pending leave nothing, and of heads the last one counts. All else is kept in its order, as it came.

SQLite performs puts, then edits, keeps and deletes. That is the order in which they come for one message, nearly always. If
it is not, the net so far is sealed, and a new one begins: `groups` has all of them, in order.

There are two generations. The older one gets no further changes, but a delete in the younger one takes a message out of it.
SQLite then never has the message, although `applied` may include its put. The delete is in a later record, and that
record is durable.
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

    def __init__(self, fragment: i64, older: FragmentNet | None) -> None:
        self.fragment = fragment
        self.older = older  # of the older generation; None also if a net of this generation was sealed
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
        older = self.older
        for n in numbers:
            found = puts.get(n)
            if found is None:
                if older is not None and self._is_untouched(n) and older.cancel(lane, n):
                    continue
                if elsewhere is None:
                    elsewhere = self.changes.deletes[lane] = []
                elsewhere.append(n)
                self._deleted.add(n)
                self.bytes += DELETE_COST
            else:
                self.cancel(lane, n)

    def _is_untouched(self, n: int) -> bool:
        return n not in self._edited and n not in self._kept

    def cancel(self, lane: int, n: int) -> bool:
        """Take a message out that was deleted from its lane. False if it is not here."""
        found = self.puts.get(n)
        if found is None or found[0] != lane:
            return False
        del self.puts[n]
        content = found[1].content
        self.bytes -= ROW_COST + (0 if content is None else len(content))
        return True

    def early_deletes(self, lane: int) -> list[int]:
        """The numbers to be deleted that are neither edited nor kept before."""
        return [n for n in self.changes.deletes[lane] if self._is_untouched(n)]

    def rest(self) -> Changes:
        """What is left of `messages` without puts, ids and early deletes."""
        changes = Changes(self.fragment)
        changes.edits, changes.keeps, changes.head = (
            self.changes.edits,
            self.changes.keeps,
            self.changes.head,
        )
        for lane, numbers in self.changes.deletes.items():
            changes.deletes[lane] = [n for n in numbers if not self._is_untouched(n)]
        return changes

    def rows(self) -> int:
        deletes = sum([len(numbers) for numbers in self.changes.deletes.values()])
        return len(self.puts) + len(self.ids) + deletes

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
    """The nets of all fragments of a store, of one generation."""

    def __init__(self, older: Pending | None = None) -> None:
        self._older = older
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
        for net in [*self._sealed, *self._nets.values()]:
            if net.fragment == fragment and net.puts.get(n, (-1, None))[0] == lane:
                return True
        return False

    def add(self, batches: Sequence[Changes]) -> None:
        """Add a group commit."""
        for changes in batches:
            key = int(changes.fragment)
            net = self._nets.get(key)
            is_sealed = net is not None and not net.fits(changes)
            if net is not None and is_sealed:
                self._sealed.append(net)
                net = None
            if net is None:
                older = None if self._older is None or is_sealed else self._older.net(key)
                net = self._nets[key] = FragmentNet(changes.fragment, older)
            before = net.bytes
            before_older = 0 if net.older is None else net.older.bytes
            net.add(changes)
            self._bytes += net.bytes - before
            if net.older is not None and self._older is not None:
                self._older._bytes += net.older.bytes - before_older

    def net(self, fragment: int) -> FragmentNet | None:
        return self._nets.get(fragment)

    def nets(self) -> list[FragmentNet]:
        return list(self._nets.values())

    def detach(self) -> None:
        """Drop the older generation, which is being moved, and its memory. This one ages now and gets no more changes."""
        self._older = None
        for net in self._nets.values():
            net.older = None

    def is_plain(self) -> bool:
        """Whether all changes of a message come in the order in which SQLite performs those of a commit."""
        return not self._sealed

    def rows(self) -> int:
        return sum([net.rows() for net in self._nets.values()])

    def rest(self) -> list[list[Changes]]:
        """What is left of `groups` when all slices are moved."""
        groups = [[net.rest() for net in self._nets.values()]]
        for net in self._nets.values():
            groups += [[other] for other in net.others]
        return groups

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
