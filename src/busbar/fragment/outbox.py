"""The outbox of a fragment: messages on their way to other fragments.

Rules
- A record of the outbox has a number of its own and a target, the fragment that it goes to. The commit that puts it fixes
  both. Records of one target are moved in the order of their numbers.
- An OutboxReady goes to the mover for each target that has records: when the first one comes, when the fragment is opened,
  and after an undo. How records leave again is in moving.py.
- In memory is one batch for each target, its first records. The rest is in the store. `count` has all of them.
- The outbox counts in the size of the entity. No receiver, tap or clock reaches it.
- Which fragment of a partitioned target a message goes to follows from its key. Messages without a key go to all of them in
  turn, Bounds.outbox_run to one before the next. Those that the mover named (AvoidTargets) are left out, unless all are.

`destination_of` decides where a refused record goes, by the kind of the move and the cause:

    cause                   FORWARD              DEAD_FORWARD              VIA
    too many hops           dead-letter queue    transfer dead-letter      -
    target missing          dead-letter queue    back                      transfer dead-letter
    target disabled         dead-letter queue    back                      transfer dead-letter
    target full             dead-letter queue    waits                     transfer dead-letter
    not acceptable there    dead-letter queue    transfer dead-letter      transfer dead-letter
    not known now           waits                waits                     waits

Before that, records wait for a full target (moving.py). "Back" is the dead-letter queue from which it came, as it was.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import OutboxRow
from busbar.fragment.ledger import Ledger
from busbar.model.errors import (
    EntityDisabled,
    EntityNotFound,
    InternalError,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
)
from busbar.model.message import DEAD, DEAD_FORWARD, FORWARD, OUTBOX, TRANSFER_DEAD, VIA, Record
from busbar.model.partitioning import index_of_key
from busbar.model.settings import ForwardSettings

HOPS: Final = 0
MISSING: Final = 1
DISABLED: Final = 2
FULL: Final = 3
UNACCEPTABLE: Final = 4
UNTOLD: Final = 5

WAITS: Final = OUTBOX
BACK: Final = -1

_DESTINATIONS: Final[dict[int, tuple[int, int, int, int, int, int]]] = {
    FORWARD: (DEAD, DEAD, DEAD, DEAD, DEAD, WAITS),
    DEAD_FORWARD: (TRANSFER_DEAD, BACK, BACK, WAITS, TRANSFER_DEAD, WAITS),
    VIA: (TRANSFER_DEAD, TRANSFER_DEAD, TRANSFER_DEAD, TRANSFER_DEAD, TRANSFER_DEAD, WAITS),
}
_CAUSES: Final[dict[str, int]] = {
    EntityNotFound.condition: MISSING,
    EntityDisabled.condition: DISABLED,
    QuotaExceeded.condition: FULL,
    ServerBusy.condition: UNTOLD,
    OperationTimeout.condition: UNTOLD,
    InternalError.condition: UNTOLD,
}


def destination_of(kind: i64, cause: i64) -> i64:
    """Where a record goes that cannot be moved: a lane, BACK or WAITS."""
    found: i64 = _DESTINATIONS[kind][cause]
    return found


def cause_of(condition: str) -> i64:
    """Why a target has refused a record, by the condition that it gave."""
    found: i64 = _CAUSES.get(condition, UNACCEPTABLE)
    return found


@final
class OutboxPair:
    """The records for one target."""

    def __init__(self, target: i64, path: str, count: i64) -> None:
        self.target = target
        self.path = path  # of the target's entity
        self.count = count  # of all its records
        self.ready: list[Record] = []  # the first of them
        self.bytes: i64 = 0  # of those
        self.full_since: i64 = 0  # when the target was first full, and nothing was taken since; 0: it is not

    def absorb(self, records: list[Record]) -> None:
        """Take in the first records, as the store has them."""
        self.ready = records
        self.bytes = 0
        for record in records:
            self.bytes += record.size

    def add(self, record: Record, bounds: Bounds) -> None:
        count: i64 = len(self.ready)
        if count == self.count and count < bounds.outbox_records and self.bytes < bounds.outbox_bytes:
            self.ready.append(record)
            self.bytes += record.size
        self.count += 1

    def takes_more(self, bounds: Bounds) -> bool:
        """Whether all records are in memory, and so few that more may be forwarded to a single target."""
        count: i64 = len(self.ready)
        return (
            count == self.count and count < bounds.forwarded_records and self.bytes < bounds.forwarded_bytes
        )


@final
class Outbox:
    def __init__(self, bounds: Bounds, rows: dict[int, OutboxRow]) -> None:
        """`rows` are the store's, by target."""
        self._bounds = bounds
        self.pairs: dict[int, OutboxPair] = {}
        self.unannounced: list[int] = []  # targets for which the mover gets an OutboxReady
        self._avoided: set[int] = set()
        self._at: i64 = 0  # the index of the fragment whose turn it is, for messages without a key
        self._left: i64 = 0  # of its run
        self._take(rows)

    def _take(self, rows: dict[int, OutboxRow]) -> None:
        for target, (path, count) in rows.items():
            self.pairs[target] = OutboxPair(target, path, count)
            self.unannounced.append(target)

    def rows(self) -> dict[int, OutboxRow]:
        return {target: (pair.path, int(pair.count)) for target, pair in self.pairs.items()}

    def undo(self, rows: dict[int, OutboxRow]) -> None:
        """Return to the rows of the store. Records in memory are read again, and all targets are announced to the mover."""
        old = self.pairs
        self.pairs = {}
        self.unannounced = []
        self._take(rows)
        for target, pair in self.pairs.items():
            before = old.get(target)
            if before is not None:
                pair.full_since = before.full_since

    # ---- records come and go ----

    def add(self, ledger: Ledger, records: list[Record], size: i64, path: str) -> None:
        """Put records with new numbers, ascending; they have their targets, all of the entity `path`."""
        if not records:
            return
        ledger.put(OUTBOX, records, size)
        for record in records:
            target: int = record.target
            pair = self.pairs.get(target)
            if pair is None:
                pair = OutboxPair(target, path, 0)
                self.pairs[target] = pair
                self.unannounced.append(target)
            pair.add(record, self._bounds)
            ledger.count_outbox(target, pair.path, 1)

    def remove(self, ledger: Ledger, pair: OutboxPair, count: i64) -> list[Record]:
        """Take out the first `count` records of a target, which are in memory."""
        gone = pair.ready[:count]
        if not gone:
            return gone
        del pair.ready[:count]
        numbers: list[int] = []
        size: i64 = 0
        for record in gone:
            numbers.append(record.n)
            size += record.size
        pair.bytes -= size
        pair.count -= len(gone)
        ledger.delete(OUTBOX, numbers, size)
        ledger.count_outbox(pair.target, pair.path, -len(gone))
        if pair.count <= 0:
            del self.pairs[pair.target]
        return gone

    # ---- choosing a target ----

    def avoid(self, targets: list[int]) -> None:
        self._avoided = set(targets)

    def has_room(self, forward: ForwardSettings) -> bool:
        """Whether more may be forwarded now. With a single target, messages beyond a batch stay in the entity, from where
        they can still be forwarded elsewhere. With several targets, one that cannot be reached must not stop the others."""
        fragments = forward.fragments
        if len(fragments) != 1:
            return True
        pair = self.pairs.get(fragments[0])
        return pair is None or pair.takes_more(self._bounds)

    def choose(self, forward: ForwardSettings, key: str | None) -> i64:
        """The fragment that a message goes to."""
        fragments = forward.fragments
        count: i64 = len(fragments)
        if count == 1:
            return fragments[0]
        if key is not None:
            return fragments[index_of_key(key, int(count))]
        if self._at >= count:
            self._at = 0
        if self._left <= 0 or fragments[self._at] in self._avoided:
            self._next_run(fragments)
        self._left -= 1
        return fragments[self._at]

    def _next_run(self, fragments: list[int]) -> None:
        self._left = self._bounds.outbox_run
        for _ in fragments:
            self._at += 1
            if self._at >= len(fragments):
                self._at = 0
            if fragments[self._at] not in self._avoided:
                return
