"""Who owns a store, or a catalogue: the claim in the row `owner`, which every commit checks.

- A claim draws a random number and raises the epoch. A commit of an earlier claim finds another number and writes nothing,
  however late it arrives.
- The row names the session that the owner writes with. If that session has ended, the store is free.
- While the session lives, the owner shows that it works: by its commits, and by `beat` when it has none. If neither is seen
  for LEASE seconds, the owner hangs: its session is ended, and the store is claimed. Clocks are not compared.
- An owner that has lost its connection claims again for itself (`reclaim`). From then on its old session can change nothing.
  The epoch stays.
- A process may hold several handles one after the other. A claim that one of them drew is no other owner's.
- A claim waits for the commit of another session at most LOCK_WAIT, then it ends that session.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from typing import Any, NamedTuple

import asyncpg

from busbar.store.contract import Fenced, StoreInUse
from busbar.store.location import OwnerSilence
from busbar.store.postgresql.address import DatabaseAddress
from busbar.store.postgresql.connection import DatabaseConnection

LEASE = 6.0
LOCK_WAIT = 1.0
PAUSES = 3
"""Of a lease, this part counts at most between two looks at an owner."""
_LOOK = 0.02  # seconds between looks at an owner that may be about to end

_OWNER = (
    "SELECT epoch, claim, holder, beat, ({progress}), EXISTS(SELECT FROM pg_stat_activity AS a"
    " WHERE a.pid = owner.pid AND a.backend_start = owner.pid_started) FROM owner"
)
COMMITS = "SELECT max(commit) FROM journal"
"""How far a store's owner has come."""
_END = (
    "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a, owner"
    " WHERE a.pid = owner.pid AND a.backend_start = owner.pid_started AND a.pid <> pg_backend_pid()"
    " AND owner.claim = ANY($1::bigint[])"
)
_TAKE = (
    "UPDATE owner SET epoch = $1, claim = $2, holder = $3, pid = pg_backend_pid(), beat = clock_timestamp(), pid_started ="
    " (SELECT backend_start FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid()) WHERE claim = ANY($4::bigint[])"
    " RETURNING epoch"
)
_FREE = "UPDATE owner SET pid = 0, pid_started = NULL, beat = clock_timestamp() WHERE claim = $1"
_BEAT = "UPDATE owner SET beat = clock_timestamp() WHERE claim = $1 RETURNING claim"


def boot_time() -> float:
    """Seconds of a clock that goes on while the process, or the machine, is suspended."""
    return time.clock_gettime(
        time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
    )


class OwnerRow(NamedTuple):
    """The owner's row at one time."""

    epoch: int
    claim: int
    holder: str
    beat: object
    progress: int | None
    is_alive: bool
    """Whether the session lives that the owner writes with."""

    @property
    def sign_of_life(self) -> str:
        return f"{self.claim} {self.beat} {self.progress}"


class LeaseWatch:
    """Decides whether an owner has lost its lease, by the clock of the one that watches. Pure.

    Rules:
    1. The silence of an owner is the time between looks that found the same sign of life. It is counted from the answer to
       one look to the question of the next. So an answer that was late, or was read late, counts for nothing.
    2. Between two looks not more than a part of the lease counts. If the one that watches was stopped for a while, that is
       not blamed on the owner: it may have been stopped, too, or have worked since.
    """

    def __init__(self, lease: float, longest_pause: float = 0.0) -> None:
        """`longest_pause` is what counts between two looks, in seconds (0: a third of the lease)."""
        self.silence = 0.0
        """For how many seconds nothing was seen of the owner."""
        self.has_moved = False
        """Whether the owner has shown that it works since the watch began."""
        self.sign = ""
        """The last sign of life."""
        self._lease = lease
        self._longest_pause = longest_pause or lease / PAUSES
        self._answered: float | None = None

    def resume(self, seen: OwnerSilence) -> None:
        """Go on from what another process has seen."""
        self.sign, self.silence = seen.sign, seen.seconds

    def is_free(self, row: OwnerRow, asked: float, answered: float) -> bool:
        """Whether anyone may claim: the owner's session has ended, or nothing was seen of it for the whole lease. The times
        are those before and after the look that has found the row."""
        if not row.is_alive:
            return True
        if self.sign != row.sign_of_life:
            self.has_moved = bool(self.sign)
            self.sign, self.silence = row.sign_of_life, 0.0
        elif self._answered is not None:
            self.silence += min(max(asked - self._answered, 0.0), self._longest_pause)
        self._answered = answered
        return self.silence >= self._lease


class Ownership:
    """The claim of one handle."""

    def __init__(
        self,
        connection: DatabaseConnection,
        address: DatabaseAddress,
        progress: str = COMMITS,
        drawn: list[int] | None = None,
        holder: str = "",
        lease: float = 0.0,
    ) -> None:
        """`progress` selects a number that rises as the owner works. `drawn` is shared by the handles of a process; `holder`
        names the owner for people. `lease` is in seconds (0: LEASE)."""
        self.epoch = 0
        self.claim = 0
        self._connection = connection
        self._where = address.shown
        self._lease = lease
        self._owner = _OWNER.format(progress=progress)
        self._holder = holder or f"process {os.getpid()} on {socket.gethostname()}"
        self._drawn: list[int] = [] if drawn is None else drawn
        """All claims of this handle. A server that has lost commits may have an earlier one: it is no other owner's."""

    def was_replaced(self) -> bool:
        """Whether this handle, or an earlier one of this process, was the owner, did not free it, and another one is now."""
        return bool(self._drawn) and self.row().claim not in self._drawn

    def row(self) -> OwnerRow:
        return OwnerRow(*self._connection.fetch(self._owner)[0])

    def take(self, least_epoch: int, stale: int | None = None, seen: OwnerSilence | None = None) -> None:
        """Become the owner, with an epoch above the present one, and not below `least_epoch`. Raises StoreInUse.

        A claim that was drawn here is replaced at once, and so is `stale`, whose lease is over. The lease of others counts
        from what another process has `seen`."""
        row = self._wait_until_free(stale, seen)
        if not self._write(max(row.epoch + 1, least_epoch), [row.claim]):
            raise StoreInUse(f"{self._where} was claimed by another process at the same time")

    def _wait_until_free(self, stale: int | None, seen: OwnerSilence | None) -> OwnerRow:
        watch = LeaseWatch(self._lease or LEASE)
        if seen is not None:
            watch.resume(seen)
        while True:
            asked = boot_time()
            row = self.row()
            if row.claim == stale or row.claim in self._drawn or watch.is_free(row, asked, boot_time()):
                if row.is_alive:
                    self._connection.fetch(_END, [row.claim])
                return row
            if watch.has_moved:
                raise StoreInUse(f"{self._where} is in use by {row.holder}")
            time.sleep(_LOOK)

    def retake(self) -> None:
        """Claim again after the connection was lost. Raises Fenced if another owner has claimed the store."""
        self._connection.fetch(_END, self._drawn)
        if not self._write(self.epoch, list(self._drawn)):
            raise Fenced(f"another owner has claimed {self._where}")

    def _write(self, epoch: int, known: list[int]) -> bool:
        """Write a new claim in place of one of these. If the answer is lost, the row may have the new one."""
        claim = secrets.randbits(63) or 1
        self._drawn.append(claim)
        self._connection.execute(f"SET lock_timeout = {int(LOCK_WAIT * 1000)}")
        taken: list[Any] = []
        while True:
            try:
                taken = self._connection.fetch(_TAKE, epoch, claim, self._holder, known)
                break
            except asyncpg.LockNotAvailableError:
                self._connection.fetch(_END, known)
        self._connection.execute("SET lock_timeout = 0")
        if not taken:
            return False
        self.epoch, self.claim = epoch, claim
        return True

    def beat(self) -> None:
        """Show that the owner works. Raises Fenced."""
        if not self._connection.fetch(_BEAT, self.claim):
            raise Fenced(f"another owner has claimed {self._where}")

    def free(self) -> None:
        """Leave the store to the next owner."""
        self._connection.fetch(_FREE, self.claim)
        self._drawn.clear()
