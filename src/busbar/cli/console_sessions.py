"""Message sessions, for the web console. Those that it has accepted are held by connections of their own.

A thread renews the lock of each of them. They are free when they are released, and when the console ends.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from busbar.cli.console_client import failures, messages, moment
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.console.messages import SessionRow, SessionsRange
from busbar.console.namespace import Address
from busbar.operations import sessions as operations

if TYPE_CHECKING:
    from busbar.client.blocking_messages import BlockingSessionReceiver

MAX_HELD = 20
LEAST_SECONDS = 1.0

Key = tuple[str, str]
"""The path of an entity, and the id of a session."""


class AcceptedSession:
    """A session that the console has accepted. A thread renews its lock until it is released or lost."""

    def __init__(self, where: ConnectionOptions, entity: str, id: str) -> None:
        self._stack = ExitStack()
        self._released = threading.Event()
        try:
            factory = self._stack.enter_context(messages(where))
            accepted = factory.accept_session(entity, id, max_wait_time=operations.WAIT_SECONDS)
            self.receiver: BlockingSessionReceiver = self._stack.enter_context(accepted)
        except BaseException as error:
            # The client's error becomes one of the console where the connection was opened.
            if not self._stack.__exit__(type(error), error, error.__traceback__):
                raise
        threading.Thread(target=self._renew, daemon=True).start()

    @property
    def is_held(self) -> bool:
        return not self._released.is_set() and self.receiver.is_locked

    def release(self) -> None:
        self._released.set()
        self._stack.close()

    def _renew(self) -> None:
        while not self._released.wait(self._pause()):
            try:
                self.receiver.renew_lock()
            except Exception:  # the lock is lost, and `is_held` shows it
                return

    def _pause(self) -> float:
        left = self.receiver.locked_until / 1000 - time.time()
        return max(LEAST_SECONDS, left / 2)


class RunningSessions:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where
        self._held: dict[Key, AcceptedSession] = {}
        self._turn = threading.Lock()

    def range(self, address: Address, skip: int, limit: int) -> SessionsRange:
        with messages(self._where) as factory:
            ids = sorted(operations.session_ids(factory, address.path))
            found = operations.sessions(factory, address.path, ids[skip : skip + limit])
        return SessionsRange([self._row(address, each) for each in found], len(ids))

    def get(self, address: Address, id: str) -> SessionRow:
        with messages(self._where) as factory:
            return self._row(address, operations.session(factory, address.path, id, with_state=True))

    def accept(self, address: Address, id: str) -> None:
        with self._turn, failures():
            self._forget_lost()
            if (address.path, id) in self._held:
                return
            if len(self._held) >= MAX_HELD:
                raise CommandFailure(
                    f"the console holds {MAX_HELD} sessions; release one first.", ExitCode.REFUSED
                )
            self._held[address.path, id] = AcceptedSession(self._where, address.path, id)

    def release(self, address: Address, id: str) -> None:
        with self._turn, failures():
            held = self._held.pop((address.path, id), None)
            if held is not None:
                held.release()

    def set_state(self, address: Address, id: str, state: str) -> None:
        held = self._held.get((address.path, id))
        with messages(self._where) as factory:
            if held is not None and held.is_held:
                held.receiver.set_state(state.encode() or None)
            else:
                operations.set_state(factory, address.path, id, state.encode() or None)

    def _forget_lost(self) -> None:
        for key in [key for key, held in self._held.items() if not held.is_held]:
            self._held.pop(key).release()

    def _row(self, address: Address, found: operations.SessionSummary) -> SessionRow:
        held = self._held.get((address.path, found.session_id))
        return SessionRow(
            found.session_id,
            f"{found.messages:,}" + ("" if found.is_counted else " or more"),
            found.deferred,
            moment(found.oldest),
            found.holder,
            moment(found.locked_until),
            found.has_state,
            (found.state or b"").decode("utf-8", "backslashreplace"),
            held is not None and held.is_held,
        )
