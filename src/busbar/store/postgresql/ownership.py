"""Who owns a store: the claim in the row `owner`, which every commit checks.

- A claim draws a random number and raises the epoch. A commit of an earlier claim finds another number and writes nothing,
  however late it arrives.
- The row names the session that the owner writes with. If that session has ended, the store is free.
- While the session lives, the owner shows that it works: by its commits, and by `beat` when it has none. If neither is seen
  for LEASE seconds, the owner hangs: its session is ended, and the store is claimed. Clocks are not compared.
- An owner that has lost its connection claims again for itself (`reclaim`). From then on its old session can change nothing.
  The epoch stays.
- A claim waits for the commit of another session at most LOCK_WAIT, then it ends that session.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from typing import Any

import asyncpg

from busbar.store.contract import Fenced, StoreInUse
from busbar.store.postgresql.address import DatabaseAddress
from busbar.store.postgresql.connection import DatabaseConnection

LEASE = 6.0
LOCK_WAIT = 1.0
_LOOK = 0.02  # seconds between looks at an owner that may be about to end

_OWNER = (
    "SELECT epoch, claim, holder, beat, (SELECT max(commit) FROM journal), EXISTS(SELECT FROM pg_stat_activity AS a"
    " WHERE a.pid = owner.pid AND a.backend_start = owner.pid_started) FROM owner"
)
_END = (
    "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a, owner"
    " WHERE a.pid = owner.pid AND a.backend_start = owner.pid_started AND a.pid <> pg_backend_pid()"
)
_TAKE = (
    "UPDATE owner SET epoch = $1, claim = $2, holder = $3, pid = pg_backend_pid(), beat = clock_timestamp(), pid_started ="
    " (SELECT backend_start FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid()) WHERE claim = ANY($4::bigint[])"
    " RETURNING epoch"
)
_FREE = "UPDATE owner SET pid = 0, pid_started = NULL, beat = clock_timestamp() WHERE claim = $1"
_BEAT = "UPDATE owner SET beat = clock_timestamp() WHERE claim = $1 RETURNING claim"


class Ownership:
    """The claim of one handle."""

    def __init__(self, connection: DatabaseConnection, address: DatabaseAddress) -> None:
        self.epoch = 0
        self.claim = 0
        self._connection = connection
        self._where = address.shown
        self._drawn: list[int] = []
        """All claims of this handle. A server that has lost commits may have an earlier one: it is no other owner's."""

    def take(self, least_epoch: int) -> None:
        """Become the owner, with an epoch above the present one, and not below `least_epoch`. Raises StoreInUse."""
        epoch, claim = self._wait_until_free()
        if not self._write(max(epoch + 1, least_epoch), [claim]):
            raise StoreInUse(f"{self._where} was claimed by another process at the same time")

    def _wait_until_free(self) -> tuple[int, int]:
        began, seen = time.monotonic(), None
        while True:
            epoch, claim, holder, beat, commit, is_alive = self._connection.fetch(_OWNER)[0]
            if not is_alive:
                return epoch, claim
            now = (claim, beat, commit)
            if seen is None:
                seen = now
            elif seen != now:
                raise StoreInUse(f"{self._where} is in use by {holder}")
            elif time.monotonic() - began >= LEASE:
                self._connection.fetch(_END)
                return epoch, claim
            time.sleep(_LOOK)

    def retake(self) -> None:
        """Claim again after the connection was lost. Raises Fenced if another owner has claimed the store."""
        self._connection.fetch(_END)
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
                taken = self._connection.fetch(_TAKE, epoch, claim, _holder(), known)
                break
            except asyncpg.LockNotAvailableError:
                self._connection.fetch(_END)
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


def _holder() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
