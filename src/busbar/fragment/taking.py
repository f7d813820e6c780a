"""A fragment takes messages that another one has in its outbox.

Rules
- All rules of a send hold: status, quota, sessions, duplicates, rules, taps and schedules (intake.py). A duplicate is
  dropped, which counts as taken.
- The gateway checks the size of what is sent to an entity. Here the size of what is moved is checked, because the source may
  have another limit, and receivers can have added properties. What the broker itself has written into it does not count.
- The mark of a source is the highest of its numbers that was taken here. It is a row of writers.py, written in the commit
  of the messages. What lies at or below it is skipped, so a record is taken once, however often it is offered.
- Messages are taken in their order, up to the first refusal. The mark never passes a refused record: if the answer were
  lost, the record would look as if it had been taken.
- The answer has the number of records from there on that are refused for the same reason: all of them if the entity is
  disabled or full, else one.
- The fence rises with each attempt of a source. A command whose fence is not higher than all that were seen is refused. It
  comes late or twice, and its messages may have gone to a dead-letter queue since.
- A message goes to a dead-letter queue only after a refusal. So the store has the fence of a refused attempt before the
  source gets the answer. All other fences are in memory: what a late command offers is taken already, or still waits.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.fragment.intake import Intake, Refusal
from busbar.fragment.reads import Read
from busbar.fragment.sending import release_ids
from busbar.fragment.state import State
from busbar.fragment.text import HEADER_TOO_LARGE
from busbar.fragment.writers import MARK_MS
from busbar.model.commands import ForgetMarks, TakeMoved
from busbar.model.effects import MovedTaken
from busbar.model.errors import ArgumentError, InvalidOperation, MessageSizeExceeded, QuotaExceeded
from busbar.model.message import Draft, Publication

LATE: Final = (
    "This attempt to move messages of the source, or a later one, was seen before: it is not applied."
)
TOO_LARGE: Final = "The message has {} bytes; at most {} are allowed."
TOO_MUCH_AROUND: Final = "Properties and annotations take {} bytes; at most {} are allowed."


def _skipped(state: State, command: TakeMoved) -> i64:
    """How many of the messages were taken before."""
    mark = state.writers.mark(command.source)
    count: i64 = 0
    for n in command.numbers:
        if n > mark:
            break
        count += 1
    return count


def _not_taken(state: State, command: TakeMoved) -> list[Draft]:
    skipped = _skipped(state, command)
    return command.drafts[skipped:] if skipped < len(command.drafts) else []


def take_reads(state: State, command: TakeMoved) -> list[Read]:
    if state.settings.duplicate_window_ms <= 0:
        return []
    return state.duplicates.reads(_not_taken(state, command))


def to_publish(state: State, command: TakeMoved, now: i64) -> list[Publication]:
    """What a topic publishes of moved messages, but for what is certainly refused, dropped or scheduled."""
    intake = Intake(state, _not_taken(state, command), now, False)
    return [] if intake.refusal() is not None else intake.to_publish()


def take_moved(state: State, command: TakeMoved, now: i64) -> None:
    if len(command.numbers) != len(command.drafts):
        state.refuse(command, ArgumentError.condition, "A move names a number for each message.")
        return
    if state.writers.is_late(command.source, command.fence):
        state.refuse(command, InvalidOperation.condition, LATE)
        return
    answer = MovedTaken(command.origin, command.request, state.writers.mark(command.source))
    drafts = _not_taken(state, command)
    if drafts:
        _take(state, command, drafts, answer, now)
        if answer.refused > 0:
            state.writers.keep_fence(state.ledger, command.source, command.fence, now)
    state.effects.append(answer)


def _take(state: State, command: TakeMoved, drafts: list[Draft], answer: MovedTaken, now: i64) -> None:
    intake = Intake(state, drafts, now, False)
    refusal = intake.refusal()
    release_ids(state)
    if refusal is not None:
        answer.refused = len(drafts)
        answer.condition, answer.text = refusal
        return
    if state.settings.topic is not None:
        intake.select(command.selected)
    taken: i64 = 0
    too_large: Refusal | None = None
    for draft in drafts:
        too_large = _size_refusal(state, draft.content)
        if too_large is not None or not intake.take(draft):
            break
        taken += 1
    intake.store()
    if taken > 0:
        last = command.numbers[len(command.numbers) - len(drafts) + taken - 1]
        state.writers.set_mark(state.ledger, command.source, last, now)
        answer.upto = last
        answer.dropped = len(intake.repeated) if intake.repeated is not None else 0
    if too_large is not None:
        answer.refused = 1
        answer.condition, answer.text = too_large
    elif taken < len(drafts):
        _, answer.condition, answer.text = intake.refused[0]
        answer.refused = len(drafts) - taken if answer.condition == QuotaExceeded.condition else 1


def _size_refusal(state: State, content: bytes) -> Refusal | None:
    """Why a moved message is too large for this entity; None if it is not."""
    settings = state.settings
    most, most_around = settings.max_message_bytes, settings.max_header_bytes
    size: i64 = len(content)
    if (most <= 0 or size <= most) and (most_around <= 0 or size <= most_around):
        return None
    around: i64 = 0
    measure = state.sizes_of
    if measure is not None:
        measured = measure(content)
        size = measured[0]
        around = measured[1]
    if most > 0 and size > most:
        return MessageSizeExceeded.condition, TOO_LARGE.format(size, most)
    if most_around > 0 and around > most_around:
        return HEADER_TOO_LARGE, TOO_MUCH_AROUND.format(around, most_around)
    return None


def forget_marks(state: State, command: ForgetMarks, now: i64) -> None:
    state.writers.forget_marks(state.ledger, command.sources, now - MARK_MS)
