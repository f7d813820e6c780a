"""Deletes all messages of some kinds.

1. Active messages and dead letters are deleted by the broker, thousands with a request, up to the time at which the purge
   began. Messages that a receiver has locked stay.
2. Deferred messages are received by their numbers and deleted so. Where sessions are required, their session is accepted
   first, of several sessions at a time; if another receiver holds one, its messages stay.
3. Scheduled messages are cancelled. That needs the right to send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final

from busbar.client.blocking import BlockingFactory
from busbar.client.blocking_messages import BlockingMessageReceiver
from busbar.client.errors import ArgumentError, NotFound, OperationTimeout, SessionCannotBeLocked
from busbar.client.message_receiver import DELETED_AT_A_TIME, ReceiveMode
from busbar.operations.browsing import MessageKind, browse, place_of

AT_A_TIME: Final = 100
"""Deferred messages, or scheduled ones, in a request."""
SESSION_WAIT_SECONDS: Final = 1.0
SESSIONS_AT_A_TIME: Final = 16
CLOCK: Final = timedelta(milliseconds=1)
"""Messages of this millisecond were there when the purge began."""

Progress = Callable[[MessageKind, int], None]
"""Called with a kind, and how many messages of it are deleted."""

_Outcome = tuple[int, int]
"""How many messages were deleted, and how many could not be."""


@dataclass(slots=True)
class PurgeReport:
    deleted: dict[MessageKind, int] = field(default_factory=dict)
    left: int = 0
    """Deferred or scheduled messages that could not be deleted."""

    @property
    def total(self) -> int:
        return sum(self.deleted.values())


def purge(
    factory: BlockingFactory,
    path: str,
    kinds: Sequence[MessageKind],
    *,
    session_id: str | None = None,
    on_progress: Progress | None = None,
) -> PurgeReport:
    """Delete the messages of these kinds; with `session_id` those of that session, which must not be held by others."""
    run = _Purge(factory, path, session_id, on_progress)
    for kind in kinds:
        run.delete(kind)
    return run.report


class _Purge:
    def __init__(
        self, factory: BlockingFactory, path: str, session_id: str | None, on_progress: Progress | None
    ) -> None:
        self._factory = factory
        self._path = path
        self._session_id = session_id
        self._on_progress = on_progress
        self.report = PurgeReport()

    def delete(self, kind: MessageKind) -> None:
        self.report.deleted[kind] = 0
        if kind is MessageKind.DEFERRED:
            self._delete_deferred()
        elif kind is MessageKind.SCHEDULED:
            for _session, numbers in self._numbers(kind):
                self._cancel(numbers)
        else:
            self._delete_available(kind)

    def _add(self, kind: MessageKind, count: int) -> None:
        self.report.deleted[kind] += count
        if self._on_progress is not None and count:
            self._on_progress(kind, self.report.deleted[kind])

    def _delete_available(self, kind: MessageKind) -> None:
        place = place_of(self._path, kind)
        before = datetime.now(UTC) + CLOCK
        receiver: BlockingMessageReceiver
        if self._session_id is None or place.sub_queue:
            receiver = self._factory.message_receiver(place.entity, sub_queue=place.sub_queue)
        else:
            receiver = self._factory.accept_session(
                place.entity, self._session_id, max_wait_time=SESSION_WAIT_SECONDS
            )
        with receiver:
            while deleted := receiver.delete_messages(DELETED_AT_A_TIME, before=before):
                self._add(kind, deleted)

    def _numbers(self, kind: MessageKind) -> Iterator[tuple[str | None, list[int]]]:
        """Sequence numbers of messages of a kind, each list of one session."""
        gathered: dict[str | None, list[int]] = {}
        for message in browse(self._factory, self._path, kind=kind, session_id=self._session_id, body=False):
            numbers = gathered.setdefault(message.session_id, [])
            numbers.append(message.sequence_number)
            if len(numbers) == AT_A_TIME:
                yield message.session_id, gathered.pop(message.session_id)
        yield from gathered.items()

    # Rule 2

    def _delete_deferred(self) -> None:
        lists = self._numbers(MessageKind.DEFERRED)
        for session_id, numbers in lists:
            try:
                self._note(MessageKind.DEFERRED, self._without_session(numbers))
            except ArgumentError:  # the entity requires sessions, and the request names none
                if session_id is None:
                    raise
                self._delete_in_sessions(chain([(session_id, numbers)], lists))

    def _delete_in_sessions(self, lists: Iterator[tuple[str | None, list[int]]]) -> None:
        """Delete messages of several sessions at a time, since each takes some round trips."""
        running: dict[str | None, Future[_Outcome]] = {}
        with ThreadPoolExecutor(SESSIONS_AT_A_TIME, "purge") as pool:
            for session_id, numbers in lists:
                if session_id in running or len(running) == SESSIONS_AT_A_TIME:
                    awaited = session_id if session_id in running else next(iter(running))
                    self._note(MessageKind.DEFERRED, running.pop(awaited).result())
                running[session_id] = pool.submit(self._in_session, session_id, numbers)
            for each in running.values():
                self._note(MessageKind.DEFERRED, each.result())

    def _note(self, kind: MessageKind, outcome: _Outcome) -> None:
        deleted, left = outcome
        self.report.left += left
        self._add(kind, deleted)

    def _without_session(self, numbers: list[int]) -> _Outcome:
        place = place_of(self._path, MessageKind.DEFERRED)
        with self._factory.message_receiver(
            place.entity, sub_queue=place.sub_queue, receive_mode=ReceiveMode.RECEIVE_AND_DELETE
        ) as receiver:
            return _each_if_not_all(lambda part: len(receiver.receive_deferred_messages(part)), numbers)

    def _in_session(self, session_id: str | None, numbers: list[int]) -> _Outcome:
        if session_id is None:  # of such an entity each has one
            return 0, len(numbers)
        try:
            session = self._factory.accept_session(
                place_of(self._path, MessageKind.DEFERRED).entity,
                session_id,
                receive_mode=ReceiveMode.RECEIVE_AND_DELETE,
                max_wait_time=SESSION_WAIT_SECONDS,
            )
        except (SessionCannotBeLocked, OperationTimeout):
            return 0, len(numbers)
        with session:
            return _each_if_not_all(lambda part: len(session.receive_deferred_messages(part)), numbers)

    # Rule 3

    def _cancel(self, numbers: list[int]) -> None:
        place = place_of(self._path, MessageKind.SCHEDULED)
        with self._factory.message_sender(place.entity) as sender:

            def cancel(part: list[int]) -> int:
                sender.cancel_scheduled_messages(part)
                return len(part)

            self._note(MessageKind.SCHEDULED, _each_if_not_all(cancel, numbers))


def _each_if_not_all(delete: Callable[[list[int]], int], numbers: list[int]) -> _Outcome:
    """Delete messages together. If one of them is gone or locked, none is, and each is tried alone."""
    try:
        return delete(numbers), 0
    except NotFound:
        if len(numbers) == 1:
            return 0, 1
        each = [_each_if_not_all(delete, [number]) for number in numbers]
        return sum(deleted for deleted, _ in each), sum(left for _, left in each)
