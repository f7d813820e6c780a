"""Where each message is, by what is durable in all stores. It checks messages that move, copies of topics, and transactions.

A message has a name and a trail. Each subscription adds its letter to the trail of its copy, so every copy has a name too.
What holds after every step:

1. Each accepted message, and each copy, is in one place: a lane of one fragment, completed, expired, published by a topic,
   or dropped as a duplicate. A record of an outbox whose number is not above the mark of its target is no place.
2. Marks never fall, and no mark exceeds the last number of its source. A record never changes its target.
3. Messages of one outbox arrive at their target in the order of their numbers. What a mark passes has arrived.
4. A topic gives a message to all its subscriptions in one commit.
5. A page of a tap shows every message that was in the queue in its span, under the number that it had there, and nothing
   that was sent via the queue.
6. Of each transaction everything is there or nothing; all of it if it was answered as done, nothing if it was refused for
   certain. What was refused for certain never appears.

CheckedFragment checks counters, rows of the outbox, rising numbers, and hops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from busbar.fragment.changes import Changes
from busbar.fragment.writers import FENCE, MARK, mark_name, mark_source
from busbar.message.compose import compose
from busbar.message.content import application_properties
from busbar.message.parsing import parse_message
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, KEPT, KEPT_DEAD, LANES, OUTBOX, Draft, Record
from harness.checked_fragment import CheckedFragment
from harness.memory_fragment import MemoryFragment
from tests.pages import shown

Place = tuple[int, int, int, int]
"""Fragment, lane, target and number."""


def make_draft(
    name: str, session: str | None = None, key: str | None = None, ttl: int = 0, due: int = 0
) -> Draft:
    named: dict[str, object] = {"name": name, "trail": ""}
    raw = compose(
        b"x",
        message_id=name,
        session_id=session,
        partition_key=key,
        time_to_live=ttl,
        scheduled_enqueue_time=due,
        application_properties=named,
    )
    return parse_message(raw, 0, len(raw), "fresh", 128)


@lru_cache(maxsize=20_000)
def name_in(content: bytes) -> str:
    properties = application_properties(content)
    return f"{properties['name']}:{properties['trail']}"


def name_of(record: Record) -> str:
    assert record.content is not None
    return name_in(record.content)


def base_of(name: str) -> str:
    return name.split(":")[0]


@dataclass
class Transaction:
    sent: list[str]
    completed: list[str]
    outcome: str = "open"  # done, refused or unknown


@dataclass
class CommittedPart:
    """The changes of one fragment in a commit, and the records that it deleted."""

    fragment: int
    changes: Changes
    deleted: list[tuple[int, Record]]
    """With their lanes."""


def watched_fragments(parts: list[CommittedPart]) -> type[MemoryFragment]:
    """The class of fragments whose commits are added to `parts`."""

    class WatchedFragment(CheckedFragment):
        def perform(self, changes: Changes) -> None:
            lanes = [
                *[(lane, n) for lane, numbers in changes.deletes.items() for n in numbers],
                *[(keep.lane, n) for keep in changes.keeps for n in keep.numbers],
            ]
            found = [
                (lane, self.lanes[lane].records[n]) for lane, n in lanes if n in self.lanes[lane].records
            ]
            super().perform(changes)
            parts.append(CommittedPart(int(changes.fragment), changes, found))

    return WatchedFragment


@dataclass
class MoveChecker:
    letters: Mapping[int, str]
    """Of the subscriptions, by fragment."""
    topic_of: Callable[[int], int]
    """The fragment of a subscription's topic; of others the fragment itself."""
    accepted: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    maybe_ended: set[str] = field(default_factory=set)
    doubled: set[str] = field(default_factory=set)
    """Taken by a fragment that was deleted before its source removed them: the source may keep them as dead letters."""
    appeared: set[str] = field(default_factory=set)
    never: set[str] = field(default_factory=set)
    mortal: dict[str, int] = field(default_factory=dict)
    """By the base names of messages with a time to live: when they may have expired. One that expires in the group in which
    it came is never durable."""
    transactions: list[Transaction] = field(default_factory=list)
    marks: dict[tuple[int, int], int] = field(default_factory=dict)
    checks: int = 0
    born: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """By fragment, by number: the messages that were in the queue, and dead letters that came back from its outbox."""
    shown: int = 0
    """Messages in pages of taps."""
    arrived: int = 0
    """Records that marks have passed."""
    published: int = 0
    _targets: dict[tuple[int, int], int] = field(default_factory=dict)
    _left: dict[tuple[int, int], dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    _ids: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))

    # ---- commits ----

    def committed(self, parts: list[CommittedPart], now: int) -> None:
        """A store has made these changes, all in one commit."""
        arriving: dict[str, list[Place]] = defaultdict(list)
        kept: set[str] = set()
        for part in parts:
            for lane, records in part.changes.puts.items():
                for record in records:
                    name = name_of(record)
                    if lane in (ACTIVE, DEAD, KEPT):
                        self.born[part.fragment][int(record.n)] = name
                    if lane in (KEPT, KEPT_DEAD):
                        kept.add(name)
                        continue
                    arriving[name].append((part.fragment, lane, int(record.target), int(record.n)))
                    if lane == OUTBOX:
                        self._left[part.fragment, int(record.target)][name] = int(record.n)
                        self._targets[part.fragment, int(record.n)] = int(record.target)
        for part in parts:
            if part.changes.ids:
                self._remember_ids(part.fragment, arriving)
        published = self._copies_born(arriving, now)
        for part in parts:
            self._marks_rise(part, arriving, published, now)
            expired = {
                name_of(record) for lane, record in part.deleted if lane != OUTBOX and record.expired(now)
            }
            self.maybe_ended |= expired - arriving.keys()
            self._records_removed(part)
        self._check_kept(kept - arriving.keys(), now)
        self.appeared |= arriving.keys() | published.keys() | kept

    def _check_kept(self, names: set[str], now: int) -> None:
        """These came for a tap alone: they expired in the group in which they came."""
        for name in names:
            assert self._may_have_expired(name, now), f"{name} is there for a tap alone"
        self.maybe_ended |= names

    def _records_removed(self, part: CommittedPart) -> None:
        for lane, record in part.deleted:
            if lane == OUTBOX:
                left = self._left[part.fragment, int(record.target)]
                name = name_of(record)
                if left.get(name) == record.n:  # else it has come back, and left again
                    del left[name]

    def _remember_ids(self, fragment: int, arriving: Mapping[str, list[Place]]) -> None:
        for name, places in arriving.items():
            if any(self.topic_of(place[0]) == fragment or place[0] == fragment for place in places):
                self._ids[fragment].add(base_of(name))

    def _copies_born(self, arriving: Mapping[str, list[Place]], now: int) -> dict[str, set[str]]:
        """The messages that a topic publishes in this commit, with the letters of their copies."""
        published: dict[str, set[str]] = defaultdict(set)
        for name, places in arriving.items():
            for fragment, *_ in places:
                letter = self.letters.get(fragment)
                if letter is not None and name not in self.appeared:
                    assert name[-1] == letter, f"{name} is in the wrong subscription"
                    published[name[:-1]].add(letter)
                    self.accepted.add(name)
        for name, letters in published.items():
            missing = set(self.letters.values()) - letters
            assert not missing or self._may_have_expired(name, now), f"only {letters} have a copy of {name}"
            self.maybe_ended.update(name + letter for letter in missing)
            assert name not in self.ended, f"{name} is published again"
            self.ended.add(name)
            self.published += 1
        return published

    def _marks_rise(
        self, part: CommittedPart, arriving: Mapping[str, list[Place]], published: Iterable[str], now: int
    ) -> None:
        for writer, row in part.changes.writers.items():
            if not writer.startswith(MARK) or writer.startswith(FENCE) or row is None:
                continue
            source = int(mark_source(writer))
            before = self.marks.get((source, part.fragment), 0)
            assert row[0] >= before, "a mark never falls"
            self.marks[source, part.fragment] = int(row[0])
            left = self._left[source, part.fragment]
            moved = sorted((n, name) for name, n in left.items() if before < n <= row[0])
            self.arrived += len(moved)
            numbers: dict[tuple[int, int, int], list[int]] = defaultdict(list)
            for _, name in moved:
                names = [name] if name not in published else [name + one for one in self.letters.values()]
                found = [place for each in names for place in arriving.get(each, [])]
                for fragment, lane, target, n in found:
                    numbers[fragment, lane, target].append(n)
                if not found:
                    self._dropped(part.fragment, name, now)
            for given in numbers.values():
                assert given == sorted(given), "they arrive in their order"

    def _dropped(self, fragment: int, name: str, now: int) -> None:
        is_duplicate = base_of(name) in self._ids[fragment]
        assert is_duplicate or self._may_have_expired(name, now), f"{name} was taken and is not there"
        self.maybe_ended.add(name)

    def _may_have_expired(self, name: str, now: int) -> bool:
        return 0 < self.mortal.get(base_of(name), 0) <= now

    # ---- what clients are told ----

    def transacted(self, one: Transaction, answer: e.Effect | None) -> None:
        """None: the process ended, and no answer came."""
        if isinstance(answer, e.Done):
            one.outcome = "done"
            self.accepted.update(one.sent)
            self.ended.update(one.completed)
        elif isinstance(answer, e.Refused) and answer.certain:
            one.outcome = "refused"
            self.never.update(one.sent)
        else:
            one.outcome = "unknown"
            self.maybe_ended.update(one.completed)

    def tap_read(self, command: c.ReadTap, page: e.TapPage) -> None:
        messages = shown(page)
        there = {
            n: name for n, name in self.born[int(command.fragment)].items() if command.after < n <= page.upto
        }
        assert {message.n: name_in(message.content) for message in messages} == there
        assert [message.n for message in messages] == sorted(there)
        self.shown += len(messages)

    # ---- what is durable ----

    def places(self, stores: Mapping[int, MemoryFragment]) -> dict[str, list[tuple[int, int]]]:
        """Where each message is: fragment and lane."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for fragment, store in stores.items():
            for lane in range(LANES):
                if lane in (KEPT, KEPT_DEAD):
                    continue
                for record in store.lanes[lane].records.values():
                    if lane == OUTBOX:
                        target = int(record.target)
                        assert self._targets[fragment, record.n] == target, "a record keeps its target"
                        if target in stores and record.n <= self.marks.get((fragment, target), 0):
                            continue
                    found[name_of(record)].append((fragment, lane))
        return found

    def check(self, stores: Mapping[int, MemoryFragment], now: int) -> None:
        """Hold all stores against what clients were told."""
        self.checks += 1
        places = self.places(stores)
        for name, where in places.items():
            if name not in self.doubled:
                assert len(where) <= 1, f"{name} is in {where}"
                assert name not in self.ended, f"{name} has ended and is in {where}"
        for name in self.accepted - self.ended - self.maybe_ended:
            never_durable = name not in self.appeared and self._may_have_expired(name, now)
            assert never_durable or name in places, f"{name} is lost"
        assert not self.never & self.appeared, "what was refused for certain is there"
        for (source, target), n in self.marks.items():
            if source in stores:
                assert n <= stores[source].head.last
            if target in stores:
                assert n == stores[target].writers.get(mark_name(source), (0, 0))[0]
        for one in self.transactions:
            self._check_transaction(one, places)

    def _check_transaction(self, one: Transaction, places: Mapping[str, object]) -> None:
        lasting = [name for name in one.sent if base_of(name) not in self.mortal]
        there = [name in self.appeared for name in lasting]
        assert all(there) or not any(there), "a transaction is there in full or not at all"
        if one.outcome == "done":
            assert all(there)
        if one.outcome == "refused":
            assert not any(there)
        if there and all(there):
            for name in one.completed:
                assert name in self.doubled or name not in places, "it was completed in the same commit"

    def deleted(self, fragment: int, stores: Mapping[int, MemoryFragment]) -> None:
        """The fragment is about to be deleted with all that it holds."""
        for lane in stores[fragment].lanes:
            self.maybe_ended.update(name_of(record) for record in lane.records.values())
        for source, store in stores.items():
            for record in store.lanes[OUTBOX].records.values():
                if record.target == fragment and record.n <= self.marks.get((source, fragment), 0):
                    self.doubled.add(name_of(record))
        # Targets keep the marks of a deleted source: what it had sent may still arrive.
        self.marks = {pair: n for pair, n in self.marks.items() if pair[1] != fragment}
