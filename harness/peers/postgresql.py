"""PostgreSQL as a queue: a table whose rows are taken with SKIP LOCKED, `synchronous_commit` on.

A session of PostgreSQL has one statement under way. So messages that wait together are inserted by one statement, and
several sessions share what is in flight. A receiver locks rows, deletes them and commits. It asks when this process has
inserted something, so an empty table is not polled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from harness.conditions import Conditions
from harness.peers.client import BODY, PeerReceiver, PeerSender
from harness.peers.process import tree_seconds
from harness.postgresql import PostgresqlServer, template

SESSIONS = 8
_INSERT = "INSERT INTO {} (body) SELECT unnest($1::bytea[])"
_LOCK = "SELECT id, body FROM {} ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED"
_DELETE = "DELETE FROM {} WHERE id = ANY($1::bigint[])"

Session = Any
"""asyncpg has no types."""


class Inserts(Conditions):
    """Counts the statements that inserted something."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def add(self) -> None:
        self.count += 1
        self.wake()


class _Tasks:
    """The sessions and tasks of a sender or receiver. The first failure ends the waits of its user."""

    def __init__(self, sessions: list[Session], user: Conditions) -> None:
        self._sessions = sessions
        self._user = user
        self._running: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        problem = None if task.cancelled() else task.exception()
        if isinstance(problem, Exception):
            self._user.fail(problem)

    async def close(self) -> None:
        running = [*self._running]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for session in self._sessions:
            session.terminate()


class PostgresqlSender(PeerSender):
    def __init__(
        self, sessions: list[Session], table: str, in_flight: int, batch: int, inserted: Inserts
    ) -> None:
        super().__init__(in_flight, batch)
        self.tasks = _Tasks(sessions, self)
        self._insert = _INSERT.format(table)
        self._idle = [*sessions]
        self._largest = max(batch, in_flight // len(sessions) // batch * batch)
        self._waiting = 0
        self._inserted = inserted

    def write(self, batches: int) -> None:
        self._waiting += batches * self._batch
        while self._waiting and self._idle:
            count = min(self._waiting, self._largest)
            self._waiting -= count
            self.tasks.run(self._send(self._idle.pop(), count))

    async def _send(self, session: Session, count: int) -> None:
        while count:
            await session.execute(self._insert, [BODY] * count)
            self.answered(count)
            self._inserted.add()
            count = min(self._waiting, self._largest)
            self._waiting -= count
        self._idle.append(session)


class PostgresqlReceiver(PeerReceiver):
    def __init__(self, sessions: list[Session], table: str, credit: int, inserted: Inserts) -> None:
        super().__init__()
        self.tasks = _Tasks(sessions, self)
        self._lock, self._delete = _LOCK.format(table), _DELETE.format(table)
        self._inserted = inserted
        self._share = max(1, credit // len(sessions))
        for session in sessions:
            self.tasks.run(self._receive(session))

    async def _receive(self, session: Session) -> None:
        while True:
            seen = self._inserted.count
            async with session.transaction():
                rows = await session.fetch(self._lock, self._share)
                if rows:
                    await session.execute(self._delete, [row[0] for row in rows])
            if rows:
                self.confirm(len(rows))
            else:
                await self._inserted.until(partial(self._has_more, seen))

    def _has_more(self, seen: int) -> bool:
        return self._inserted.count > seen


class Postgresql:
    name = "PostgreSQL"

    def __init__(self, directory: Path, queue: str = "orders") -> None:
        directory.chmod(0o755)  # the server may run as another user
        settings = {"shared_buffers": "128MB", "synchronous_commit": "on", "fsync": "on"}
        self._server = PostgresqlServer(template(), settings, directory)
        self._table = queue
        self._inserted = Inserts()
        self._users: list[PostgresqlSender | PostgresqlReceiver] = []

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.remove()

    def cpu_seconds(self) -> float:
        return tree_seconds(self._server.pid)

    def syncs(self) -> int | None:
        return None

    async def sender(self, in_flight: int, batch: int = 1) -> PostgresqlSender:
        sessions = await self._sessions(in_flight // batch)
        sender = PostgresqlSender(sessions, self._table, in_flight, batch, self._inserted)
        self._users.append(sender)
        return sender

    async def receiver(self, credit: int) -> PostgresqlReceiver:
        receiver = PostgresqlReceiver(await self._sessions(credit), self._table, credit, self._inserted)
        self._users.append(receiver)
        return receiver

    async def _sessions(self, most: int) -> list[Session]:
        sessions = [await asyncpg.connect(self._server.url()) for _ in range(min(SESSIONS, most))]
        await sessions[0].execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (id bigserial PRIMARY KEY, body bytea NOT NULL)"
        )
        return sessions

    async def close(self) -> None:
        while self._users:
            await self._users.pop().tasks.close()
