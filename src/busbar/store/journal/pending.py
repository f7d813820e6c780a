"""What is in the journal and not in SQLite yet, as little of it as has to be written there.

A message that is put and deleted while it is pending leaves nothing. Edits and keeps change a pending message in place. An
edit, keep or delete that names another lane than that of a pending message does nothing, as it would in SQLite. Ids that are
forgotten while they are pending leave nothing, and neither do events. Of a head, of a tap and of a session's state, the last
one counts. All else is kept in its order, as it came.

SQLite performs puts, then edits, keeps and deletes. That is the order in which they come for one message, nearly always. If
it is not, the net so far is sealed, and a new one begins: `groups` has all of them, in order.

There are generations (generations.py). An older one gets no further changes, but a delete in the younger one takes a message
out of it. SQLite then never has the message, although `applied` may include its put. The delete is in a later record, and
that record is durable.

Reads are answered from nets and SQLite together (pending_reads.py). For them, a net has the order of its numbers. It also
has what it changes in SQLite: deleted numbers by lane, the lanes of edits and keeps, the highest number of all these.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.changes import Changes, Head, Keep
from busbar.model.effects import MessageEvent
from busbar.model.message import Record

ROW_COST: Final = 200
"""What a pending row counts beside its bytes."""
DELETE_COST: Final = 16
ANY_NUMBER: Final = (1 << 63) - 1
"""No number is above it."""
STALE: Final = 1_000
"""Numbers that are gone and still in the order of a net, beside as many as there are messages."""


@final
class FragmentNet:
    """The net of one fragment's changes."""

    def __init__(self, fragment: i64, last_before: i64, older: FragmentNet | None = None) -> None:
        """No number above `last_before` was given before. `older` is the net of the older generation; None also if a net of
        this generation was sealed."""
        self.fragment = fragment
        self.last_before = last_before
        self.older = older
        self.puts: dict[int, tuple[int, Record]] = {}  # by number: lane and message
        self.ids: dict[tuple[int, bytes], tuple[int, int]] = {}
        self.changes = Changes(fragment)  # edits, keeps, ids_upto, taps, events, states and head
        self.others: list[Changes] = []
        self.deleted: dict[int, set[int]] = {}  # of SQLite, by lane
        self.lanes_changed: set[int] = set()  # of SQLite, by edits and keeps
        self.last_changed: i64 = 0  # the highest number of SQLite that is edited, kept or deleted
        self.has_low_puts = False  # one is not above all numbers of SQLite
        self._edited: set[int] = set()
        self._kept: set[int] = set()
        self._sessions: dict[str, dict[int, None]] = {}  # by session: the numbers of its puts
        self._order: list[int] = []  # of the puts, with some that are gone
        self._is_rising = True
        self.bytes: i64 = 0

    def fits(self, changes: Changes) -> bool:
        """Whether these changes can be added: none concerns a message that a later step of this net has."""
        if self.last_changed == 0:
            return True
        for edit in changes.edits:
            if edit.n in self._kept or self._is_deleted(edit.n):
                return False
        for keep in changes.keeps:
            for n in keep.numbers:
                if self._is_deleted(n):
                    return False
        for records in changes.puts.values():
            for record in records:
                n = record.n
                if n <= self.last_changed and (n in self._kept or n in self._edited or self._is_deleted(n)):
                    return False
        return True

    def _is_deleted(self, n: int) -> bool:
        return any(n in numbers for numbers in self.deleted.values())

    def add(self, changes: Changes) -> None:
        for lane, records in changes.puts.items():
            self._put(lane, records)
        for edit in changes.edits:
            found = self.puts.get(edit.n)
            if found is None:
                self.changes.edits.append(edit)
                self._edited.add(edit.n)
                self._note(edit.lane, edit.to, edit.n)
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
            if (segment, id) not in self.ids:
                self.bytes += ROW_COST
            self.ids[(segment, id)] = (at, n)
        head = changes.head
        if head is not None:
            self.changes.head = head.copy()
        self._add_for_taps(changes)
        for session, state in changes.states.items():
            self._add_state(session, state)
        self._add_others(changes)

    def _note(self, lane: int, to: int, n: i64) -> None:
        """Note that a message of SQLite is edited or kept."""
        self.lanes_changed.add(lane)
        self.lanes_changed.add(to)
        if n > self.last_changed:
            self.last_changed = n

    def _put(self, lane: int, records: list[Record]) -> None:
        puts, order = self.puts, self._order
        highest: i64 = order[-1] if order else 0
        size: i64 = 0
        for record in records:
            n = record.n
            if n <= highest:
                self._is_rising = False
            highest = n
            if n <= self.last_before:
                self.has_low_puts = True
            number: int = n
            order.append(number)
            puts[number] = (lane, record)
            if record.session_id is not None:
                self._note_session(record.session_id, number)
            content = record.content
            size += ROW_COST
            if content is not None:
                size += len(content)
        self.bytes += size
        if len(order) > 2 * len(puts) + STALE:
            self._order = [each for each in order if each in puts]

    def _note_session(self, session: str, n: int) -> None:
        numbers = self._sessions.get(session)
        if numbers is None:
            numbers = self._sessions[session] = {}
        numbers[n] = None

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
            self._note(keep.lane, keep.to, max(elsewhere))
            self.bytes += ROW_COST * len(elsewhere)

    def _delete(self, lane: int, numbers: list[int]) -> None:
        puts, elsewhere, older = self.puts, self.deleted.get(lane), self.older
        for n in numbers:
            if puts and n in puts:
                self.cancel(lane, n)
            elif older is None or not self._is_untouched(n) or not older.cancel(lane, n):
                if elsewhere is None:
                    elsewhere = self.deleted[lane] = set()
                if n not in elsewhere:
                    elsewhere.add(n)
                    self.bytes += DELETE_COST
                if n > self.last_changed:
                    self.last_changed = n

    def _is_untouched(self, n: int) -> bool:
        return n not in self._edited and n not in self._kept

    def cancel(self, lane: int, n: int) -> bool:
        """Take a message out that was deleted from its lane. False if it is not there."""
        found = self.puts.pop(n, None)
        if found is None:
            return False
        if found[0] != lane:
            self.puts[n] = found
            return False
        session = found[1].session_id
        if session is not None:
            numbers = self._sessions[session]
            del numbers[n]
            if not numbers:
                del self._sessions[session]
        content = found[1].content
        self.bytes -= ROW_COST + (0 if content is None else len(content))
        return True

    def early_deletes(self, lane: int) -> list[int]:
        """The numbers to be deleted that are neither edited nor kept before."""
        return [n for n in self.deleted[lane] if self._is_untouched(n)]

    def rest(self) -> Changes:
        """What is left of `messages` without puts, ids and early deletes."""
        net, changes = self.changes, Changes(self.fragment)
        changes.edits, changes.keeps, changes.head = net.edits, net.keeps, net.head
        changes.taps, changes.events, changes.events_upto = net.taps, net.events, net.events_upto
        changes.states = net.states
        for lane, numbers in self.deleted.items():
            changes.deletes[lane] = [n for n in numbers if not self._is_untouched(n)]
        return changes

    def rows(self) -> int:
        deletes = sum([len(numbers) for numbers in self.deleted.values()])
        return len(self.puts) + len(self.ids) + deletes

    def _forget_ids(self, upto: tuple[int, bytes]) -> None:
        before = self.changes.ids_upto
        if before is None or before < upto:
            self.changes.ids_upto = upto
        for key in [key for key in self.ids if key <= upto]:
            del self.ids[key]
            self.bytes -= ROW_COST

    def _add_for_taps(self, changes: Changes) -> None:
        """Of a tap, the last row counts. Positions of events rise, so the events that are left are the last ones."""
        net = self.changes
        for tap, row in changes.taps.items():
            if tap not in net.taps:
                self.bytes += ROW_COST
            net.taps[tap] = None if row is None else row.copy()
        if changes.events:
            net.events += changes.events
            self.bytes += ROW_COST * len(changes.events)
        if changes.events_upto > net.events_upto:
            net.events_upto = changes.events_upto
            gone = bisect_right(net.events, int(changes.events_upto), key=_position)
            if gone:
                del net.events[:gone]
                self.bytes -= ROW_COST * gone

    def _add_state(self, session: str, state: tuple[int, bytes | None]) -> None:
        states = self.changes.states
        before = states.get(session)
        if before is None:
            self.bytes += ROW_COST
        elif before[1] is not None:
            self.bytes -= len(before[1])
        if state[1] is not None:
            self.bytes += len(state[1])
        states[session] = state

    def _add_others(self, changes: Changes) -> None:
        if not (changes.sessions or changes.holds or changes.outbox or changes.written or changes.writers):
            return
        other = Changes(self.fragment)
        other.sessions, other.outbox, other.holds = changes.sessions, changes.outbox, changes.holds
        other.written, other.writers = changes.written, changes.writers
        self.others.append(other)
        rows = len(other.sessions) + len(other.holds) + len(other.outbox)
        rows += len(other.written) + len(other.writers)
        self.bytes += ROW_COST * rows

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
        changes.deletes = {lane: list(numbers) for lane, numbers in self.deleted.items()}
        changes.ids = [(segment, id, at, n) for (segment, id), (at, n) in self.ids.items()]
        return changes

    def deleted_of(self, lane: int) -> set[int]:
        """The numbers of SQLite that are deleted in a lane."""
        found = self.deleted.get(lane)
        return set() if found is None else found

    def between(self, lanes: list[int], after: i64, upto: i64, limit: i64) -> list[tuple[int, Record]]:
        """The first pending messages of these lanes behind a number, up to another, up to a count: their lanes and
        themselves."""
        if not self._is_rising:
            self._order = sorted(self.puts)
            self._is_rising = True
        found: list[tuple[int, Record]] = []
        order, puts = self._order, self.puts
        for place in range(bisect_right(order, int(after)), len(order)):
            n = order[place]
            if n > upto or len(found) >= limit:
                break
            entry = puts.get(n)
            if entry is not None and entry[0] in lanes:
                found.append(entry)
        return found

    def of_session(self, session: str, lane: int, after: i64, upto: i64) -> list[Record]:
        """The messages of a session in a lane behind a number, up to another."""
        found: list[Record] = []
        numbers = self._sessions.get(session)
        if numbers is not None:
            for n in sorted(numbers):
                entry = self.puts[n]
                if n > after and n <= upto and entry[0] == lane:
                    found.append(entry[1])
        return found

    def events_between(self, after: i64, upto: i64, limit: i64) -> list[MessageEvent]:
        """The first pending events behind a position, up to another, up to a count."""
        events = self.changes.events
        first = bisect_right(events, int(after), key=_position)
        last = bisect_right(events, int(upto), key=_position)
        return events[first : min(last, first + int(limit))]


def _position(event: MessageEvent) -> int:
    return event.at


@final
class Pending:
    """The nets of all fragments of a store, of one generation."""

    def __init__(self, older: Pending | None = None) -> None:
        self._older = older
        self._sealed: list[FragmentNet] = []
        self._nets: dict[int, FragmentNet] = {}
        self._has_sealed: set[int] = set()  # fragments
        self._bytes: i64 = 0

    def is_empty(self) -> bool:
        return not self._nets and not self._sealed

    def bytes(self) -> int:
        return int(self._bytes)

    def contains(self, fragment: int, lane: int, n: int) -> bool:
        """Whether a message is pending in a lane."""
        nets = [self._nets[fragment]] if fragment in self._nets else []
        if fragment in self._has_sealed:
            nets += [net for net in self._sealed if net.fragment == fragment]
        for net in nets:
            found = net.puts.get(n)
            if found is not None and found[0] == lane:
                return True
        return False

    def net(self, fragment: int) -> FragmentNet | None:
        """The net of a fragment to which changes are added; None if there is none."""
        return self._nets.get(fragment)

    def has_sealed(self, fragment: int) -> bool:
        """Whether a fragment has other nets before the one to which changes are added."""
        return fragment in self._has_sealed

    def nets(self) -> list[FragmentNet]:
        return list(self._nets.values())

    def heads(self) -> dict[int, Head]:
        """The pending counters, by fragment."""
        heads: dict[int, Head] = {}
        for net in [*self._sealed, *self._nets.values()]:
            head = net.changes.head
            if head is not None:
                heads[int(net.fragment)] = head.copy()
        return heads

    def add(self, batches: Sequence[Changes], last: dict[int, int]) -> None:
        """Add a group commit. `last` has the highest number of each fragment before it."""
        for changes in batches:
            key = int(changes.fragment)
            net = self._nets.get(key)
            is_sealed = net is not None and not net.fits(changes)
            if net is not None and is_sealed:
                self._sealed.append(net)
                self._has_sealed.add(key)
                net = None
            if net is None:
                older = None if self._older is None or is_sealed else self._older.net(key)
                net = self._nets[key] = FragmentNet(changes.fragment, last.get(key, ANY_NUMBER), older)
            before = net.bytes
            before_older: i64 = 0 if net.older is None else net.older.bytes
            net.add(changes)
            self._bytes += net.bytes - before
            if net.older is not None and self._older is not None:
                self._older._bytes += net.older.bytes - before_older

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
