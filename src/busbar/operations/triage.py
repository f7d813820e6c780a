"""Triage of dead letters: groups by reason and source, resubmission of copies, deletion.

Rules of a resubmission
1. A copy is sent to the target, and only then is the dead letter completed. So nothing is lost. If both concern one queue
   that is not partitioned, they are done in one transaction. Otherwise a crash in between leaves the dead letter beside its
   copy.
2. The copy is as the message was delivered last, without the reason of its dead-lettering, with the changes that were given.
   Its time to live starts again. Either it gets a new id, and its own one is in `original-message-id`, or it keeps its id.
3. A queue that detects duplicates drops a copy that keeps its id while it remembers that id. The broker reports that. Then
   the dead letter stays.
4. If the target refuses a copy because of its content, the dead letter stays, and the reason is reported.
5. Nothing can be sent to one subscription, so the dead letters of a subscription need a target. So do messages that could
   not be moved to another entity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from busbar.client.blocking import BlockingFactory, BlockingSender
from busbar.client.errors import LockLost, SendFailed, SettleFailed
from busbar.client.message import new_message_id
from busbar.client.received import PeekedMessage, Received
from busbar.client.sender import OF_ONE_MESSAGE
from busbar.model.names import key_of
from busbar.operations.browsing import browse, find
from busbar.operations.paths import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, MessagePath, OperationRefused
from busbar.operations.rewriting import DEAD_LETTER_PROPERTIES, rewritten
from busbar.operations.taking import LockedMessages, SelectedMessages

AT_A_TIME: Final = 50
"""Messages of one transaction."""
FOUND_ONE_BY_ONE: Final = 50
"""Up to so many numbers are looked up, instead of a search through all messages."""
MOST_EXAMPLES: Final = 5
PATIENCE_SECONDS: Final = 3.0

Progress = Callable[[int, int], None]
"""Called with how many messages are done, and how many there are to do."""


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters with the same reason that came from the same entity. Times are ms since 1970."""

    reason: str
    source: str
    count: int
    oldest: int
    newest: int
    description: str
    """That of the newest one."""


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Selects dead letters: those with one of these numbers or one of these reasons, or all."""

    numbers: frozenset[int] = frozenset()
    reasons: frozenset[str] = frozenset()
    everything: bool = False

    def has(self, message: PeekedMessage) -> bool:
        if self.everything or message.sequence_number in self.numbers:
            return True
        return bool(self.reasons) and (message.dead_letter_reason or "") in self.reasons


@dataclass(slots=True)
class TriageReport:
    """Of `found` selected dead letters `done` are resubmitted or deleted, the target refused `refused`, and `left` were
    locked by others or gone."""

    found: int = 0
    done: int = 0
    refused: int = 0
    examples: list[str] = field(default_factory=list)
    """Why some of them were refused."""

    @property
    def left(self) -> int:
        return self.found - self.done - self.refused


def dead_letters_of(path: str) -> MessagePath:
    """The dead-letter queue that a path names, itself or by its entity."""
    place = MessagePath.parse(path)
    return place.of(DEAD_LETTER) if place.sub_queue == MAIN else place


def groups(factory: BlockingFactory, path: str, *, most: int | None = None) -> list[DeadLetterGroup]:
    """The dead letters of an entity by reason and source, the largest group first; with `most`, so many of the oldest."""
    place = dead_letters_of(path)
    found: dict[tuple[str, str], DeadLetterGroup] = {}
    for message in islice(browse(factory, str(place), body=False), most):
        reason, source = message.dead_letter_reason or "", message.dead_letter_source or place.entity
        before = found.get((reason, source))
        at = message.enqueued_time
        found[reason, source] = DeadLetterGroup(
            reason,
            source,
            1 if before is None else before.count + 1,
            at if before is None else min(at, before.oldest),
            at if before is None else max(at, before.newest),
            message.dead_letter_error_description or ""
            if before is None or at >= before.newest
            else before.description,
        )
    return sorted(found.values(), key=lambda group: (-group.count, group.reason, group.source))


def target_of(place: MessagePath, target: str) -> str:
    """The entity that copies are sent to. Raises OperationRefused."""
    if not target and place.sub_queue == TRANSFER_DEAD_LETTER:
        raise OperationRefused(
            f"what could not be moved from '{place.entity}' is not for '{place.entity}' itself; name the target"
        )
    if not target and place.topic:
        raise OperationRefused(
            f"'{place.entity}' is a subscription, to which nothing can be sent; name a target: a queue, or its topic "
            f"'{place.topic}', all of whose subscriptions then get the copies"
        )
    found = MessagePath.parse(target or place.entity)
    if found.topic or found.sub_queue != MAIN:
        raise OperationRefused(f"nothing can be sent to '{found}'; name a queue or a topic")
    return found.entity


def resubmit(
    factory: BlockingFactory,
    path: str,
    selection: DeadLetterSelection,
    *,
    target: str = "",
    changes: Mapping[str, object] | None = None,
    message_id: str | None = None,
    keep_id: bool = False,
    patience: float = PATIENCE_SECONDS,
    on_progress: Progress | None = None,
) -> TriageReport:
    """Send copies of dead letters, and delete the dead letters. `changes` are as in rewriting.py. `message_id` is the id of
    a single copy. Raises OperationRefused, EditError."""
    place = dead_letters_of(path)
    target = target_of(place, target)
    selected = _select(factory, place, selection)
    if message_id is not None and len(selected) > 1:
        raise OperationRefused(f"{len(selected)} messages cannot all have the id '{message_id}'")
    report = TriageReport(len(selected))
    if not selected:
        return report
    sender = factory.sender(target)
    try:
        with LockedMessages(factory, place, patience) as locked:
            copies = _CopyForm(changes or {}, message_id, keep_id and message_id is None)
            is_one_entity = key_of(target) == key_of(place.entity)
            moving = _Resubmission(factory, sender, locked, report, copies, is_one_entity)
            for messages in locked.take(selected, 1 if copies.keeps_id else AT_A_TIME):
                moving.move(messages)
                if on_progress is not None:
                    on_progress(report.done + report.refused, report.found)
    finally:
        sender.close()
    return report


def delete(
    factory: BlockingFactory,
    path: str,
    selection: DeadLetterSelection,
    *,
    patience: float = PATIENCE_SECONDS,
    on_progress: Progress | None = None,
) -> TriageReport:
    """Delete dead letters."""
    place = dead_letters_of(path)
    selected = _select(factory, place, selection)
    report = TriageReport(len(selected))
    with LockedMessages(factory, place, patience) as locked:
        for messages in locked.take(selected, AT_A_TIME):
            report.done += _completed(locked, messages)
            if on_progress is not None:
                on_progress(report.done, report.found)
    return report


def _select(factory: BlockingFactory, place: MessagePath, selection: DeadLetterSelection) -> SelectedMessages:
    if not (selection.everything or selection.numbers or selection.reasons):
        raise OperationRefused("nothing is selected; name sequence numbers or reasons, or all")
    selected = SelectedMessages()
    few = selection.numbers and not selection.everything and not selection.reasons
    if few and len(selection.numbers) <= FOUND_ONE_BY_ONE:
        looked_up = (find(factory, str(place), number) for number in sorted(selection.numbers))
        candidates = [message for message in looked_up if message is not None]
    else:
        candidates = [
            message for message in browse(factory, str(place), body=False) if selection.has(message)
        ]
    for message in candidates:
        part = selected.deferred if message.state == "deferred" else selected.available
        part.add(message.sequence_number)
    return selected


def _completed(locked: LockedMessages, messages: list[Received]) -> int:
    """Complete messages. Returns how many are deleted: the lock of another one has ended."""
    try:
        locked.complete(messages)
    except SettleFailed as error:
        return len(messages) - len(error.failed)
    except LockLost:
        return 0
    return len(messages)


@dataclass(frozen=True, slots=True)
class _CopyForm:
    """How a copy differs from its dead letter."""

    changes: Mapping[str, object]
    message_id: str | None
    keeps_id: bool

    def copy(self, message: Received) -> bytes:
        new_id = None if self.keeps_id else self.message_id or new_message_id()
        return rewritten(message.payload, self.changes, message_id=new_id, without=DEAD_LETTER_PROPERTIES)


class _Resubmission:
    """Sends the copies of dead letters to one target, and completes the dead letters."""

    def __init__(
        self,
        factory: BlockingFactory,
        sender: BlockingSender,
        locked: LockedMessages,
        report: TriageReport,
        copies: _CopyForm,
        is_one_entity: bool,
    ) -> None:
        self._factory = factory
        self._sender = sender
        self._locked = locked
        self._report = report
        self._copies = copies
        # What a transaction drops as a duplicate is not known before its commit.
        self._is_atomic = is_one_entity and not copies.keeps_id

    def move(self, messages: list[Received]) -> None:
        if not self._is_atomic or any(map(_is_partitioned, messages)):
            self._move_in_turn(messages)
            return
        try:
            done = self._move_together(messages)
        except (SettleFailed, LockLost):
            # A lock has ended, and with it the transaction. The others are moved each by itself.
            for message in messages if len(messages) > 1 else ():
                self.move([message])
            return
        self._report.done += done

    def _move_together(self, messages: list[Received]) -> int:
        """Move messages in a transaction (rule 1). Returns how many were moved."""
        copies = [self._copies.copy(message) for message in messages]
        with self._factory.transaction() as transaction:
            refused: dict[int, str] = {}
            try:
                self._sender.send(copies, transaction=transaction)
            except SendFailed as error:
                refused = _refused(error)
            taken = [message for place, message in enumerate(messages) if place not in refused]
            self._locked.complete(taken, transaction)
        self._note(messages, refused)
        return len(taken)

    def _move_in_turn(self, messages: list[Received]) -> None:
        """Send copies, and then complete their messages (rule 1)."""
        refused: dict[int, str] = {}
        dropped = self._sender.duplicates
        try:
            self._sender.send([self._copies.copy(message) for message in messages])
        except SendFailed as error:
            refused = _refused(error)
        if self._copies.keeps_id and not refused and self._sender.duplicates != dropped:
            refused = {0: "the target has had a message with this id, and dropped the copy as a duplicate"}
        taken = [message for place, message in enumerate(messages) if place not in refused]
        self._report.done += _completed(self._locked, taken)
        self._note(messages, refused)

    def _note(self, messages: list[Received], refused: Mapping[int, str]) -> None:
        self._report.refused += len(refused)
        for place, text in refused.items():
            if len(self._report.examples) < MOST_EXAMPLES:
                self._report.examples.append(f"{messages[place].sequence_number}: {text}")


def _is_partitioned(message: PeekedMessage) -> bool:
    return "x-opt-partition-id" in message.annotations


def _refused(error: SendFailed) -> dict[int, str]:
    """What the target refused of a send because of its content. Raises the error if there was another reason."""
    refused = {
        place: text for place, (condition, text) in error.failed.items() if condition in OF_ONE_MESSAGE
    }
    if error.unknown or len(refused) < len(error.failed):
        raise error
    return refused
