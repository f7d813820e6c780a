"""The connection of a PostgreSQL store: a driver for asyncio on a loop of its own, used by the thread that calls.

- A statement is prepared once for each connection and then takes one round trip.
- The server is never asked to cancel a statement: a commit that was cancelled while it waited for a standby is there and not
  on the standby. If an answer does not come in time, the connection is ended.
- After ConnectionLost it is unknown whether the statement under way was performed. After any other error of the server it
  was certainly not performed.
- Plans use indexes only, in nested loops. Statistics of a table that is empty at one time and has a million rows at the next
  would give worse ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import asyncpg

from busbar.store.contract import StoreError
from busbar.store.postgresql.address import DatabaseAddress

CONNECT_TIMEOUT = 3.0
ANSWER_TIMEOUT = 10.0
SLOWEST_RATE = 1_000_000  # bytes a second: what a large group may take beyond ANSWER_TIMEOUT
CLOSE_TIMEOUT = 2.0
OLDEST_VERSION = 14

_LOST = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.DatabaseDroppedError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby: the primary is another server now
    asyncpg.TargetServerAttributeNotMatched,
    asyncpg.TooManyConnectionsError,
)

T = TypeVar("T")


class ConnectionLost(Exception):
    """The connection ended, or there is none. What became of the statement under way is not known."""


def _settings(schema: str) -> dict[str, str]:
    """What a session of Busbar is set to, whatever the server, the database and the role have."""
    return {
        "application_name": f"busbar {schema}",
        "search_path": f'"{schema}"',
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        "statement_timeout": "0",
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "idle_session_timeout": "0",
        "client_connection_check_interval": "1000",
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "3",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "jit": "off",
    }


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class DatabaseConnection:
    """One connection to a database. It is opened again after it was lost."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._address = address
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Any | None = None
        self._prepared: dict[str, Any] = {}

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    def open(self) -> None:
        """Connect. Raises ConnectionLost, or StoreError if the server refuses, or is none that a store may be in."""
        self.end()
        if self._loop is None:
            self._loop = _new_loop()
        try:
            self._connection = self._loop.run_until_complete(
                asyncpg.connect(
                    self._address.dsn,
                    timeout=CONNECT_TIMEOUT,
                    statement_cache_size=0,
                    server_settings=_settings(self._address.schema),
                    target_session_attrs="read-write",
                )
            )
            self._check()
        except (*_LOST, asyncpg.PostgresError, ValueError) as problem:
            self.end()
            if isinstance(problem, _LOST) and not isinstance(problem, ValueError):
                raise ConnectionLost(
                    f"{self._address.shown} cannot be reached: {_text(problem)}"
                ) from problem
            raise StoreError(f"{self._address.shown} cannot be used: {_text(problem)}") from problem
        except BaseException:
            self.end()
            raise

    def _check(self) -> None:
        """Refuse a server that does not keep what it acknowledged, and a pooler in front of one."""
        assert self._connection is not None
        where = self._address.shown
        version = self._connection.get_server_version().major
        if version < OLDEST_VERSION:
            raise StoreError(f"{where}: PostgreSQL {version} is too old: {OLDEST_VERSION} or later is needed")
        pid, fsync, full_pages = self.fetch(
            "SELECT pg_backend_pid(), current_setting('fsync'), current_setting('full_page_writes')"
        )[0]
        if pid != self._connection.get_server_pid():
            raise StoreError(
                f"{where} is a connection pooler: a store needs a session of its own. Name the server itself."
            )
        for setting, value in (("fsync", fsync), ("full_page_writes", full_pages)):
            if value != "on":
                raise StoreError(
                    f"{where}: the server runs with {setting} = off, so a power cut can destroy what it acknowledged. "
                    f"Set {setting} = on in its postgresql.conf."
                )

    def close(self) -> None:
        """End the session in good order, and the loop."""
        if self._connection is not None and self._loop is not None and self.is_open:
            try:
                self._loop.run_until_complete(self._connection.close(timeout=CLOSE_TIMEOUT))
            except (*_LOST, asyncpg.PostgresError):
                pass  # it is over all the same
        self.drop()

    def end(self) -> None:
        """End the connection at once; nothing more is sent."""
        connection, self._connection = self._connection, None
        self._prepared = {}
        if connection is not None and not connection.is_closed():
            connection.terminate()
            assert self._loop is not None
            self._loop.run_until_complete(asyncio.sleep(0))  # the transport closes its socket

    def drop(self) -> None:
        """End the connection at once, and the loop."""
        self.end()
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    # ---- statements ----

    def fetch(self, statement: str, *values: object) -> list[Any]:
        """The rows of a statement."""
        found: list[Any] = self._run(statement, values, ANSWER_TIMEOUT)
        return found

    def fetch_value(self, statement: str, values: Sequence[object], size: int = 0) -> Any:
        """The first column of the first row of a statement. `size` is the number of bytes that it writes."""
        found = self._run(statement, values, ANSWER_TIMEOUT + size / SLOWEST_RATE)
        return found[0][0] if found else None

    def execute(self, script: str) -> None:
        """Run statements without values, in one round trip. They are not prepared."""
        self._wait(self._ready().execute(script), ANSWER_TIMEOUT)

    def _run(self, statement: str, values: Sequence[object], patience: float) -> Any:
        connection = self._ready()
        prepared = self._prepared.get(statement)
        if prepared is None:
            name = f"statement_{len(self._prepared)}"  # without a name the driver has it parsed for each use
            prepared = self._wait(connection.prepare(statement, name=name), ANSWER_TIMEOUT)
            self._prepared[statement] = prepared
        return self._wait(_rows(prepared, values), patience)

    def _ready(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            raise ConnectionLost(f"there is no connection to {self._address.shown}")
        return self._connection

    def _wait(self, answer: Awaitable[T], patience: float) -> T:
        assert self._loop is not None and self._connection is not None
        timer = self._loop.call_later(patience, self._connection.terminate)
        try:
            return self._loop.run_until_complete(answer)
        except _LOST as problem:
            if isinstance(problem, ValueError):  # a value that the driver cannot send: nothing was sent
                raise
            self.end()
            raise ConnectionLost(f"{self._address.shown}: {_text(problem)}") from problem
        finally:
            timer.cancel()


async def _rows(prepared: Any, values: Sequence[object]) -> Any:
    # If the connection has ended since the statement was prepared, the driver raises at the call already.
    return await prepared.fetch(*values)


def _text(problem: BaseException) -> str:
    return str(problem) or type(problem).__name__
