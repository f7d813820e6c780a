"""Messages are sent; the batches of writers are committed. What is decided about each message is in intake.py."""

from __future__ import annotations

from mypy_extensions import i64

from busbar.fragment.intake import Intake
from busbar.fragment.reads import Read
from busbar.fragment.state import State
from busbar.model.commands import Command, CommitWrites, Send, TakeMoved, Transact
from busbar.model.effects import Done, Sent
from busbar.model.errors import QuotaExceeded
from busbar.model.message import Publication


def send_reads(state: State, command: Send) -> list[Read]:
    """The look-ups that decide which messages were sent before."""
    reads: list[Read] = []
    if state.settings.duplicate_window_ms > 0:
        reads = state.duplicates.reads(command.drafts)
    writer = command.writer
    if writer is not None:
        reads += state.writers.reads(command.drafts, writer, command.batch)
    return reads


def to_publish(state: State, command: Send, now: i64) -> list[Publication]:
    """What a send to a topic publishes, but for what is certainly refused, dropped or scheduled."""
    intake = Intake(state, command.drafts, now, command.atomic)
    if intake.refusal(command.writer, command.batch) is not None:
        return []
    return intake.to_publish()


def send(state: State, command: Send, now: i64) -> None:
    intake = Intake(state, command.drafts, now, command.atomic)
    refusal = intake.refusal(command.writer, command.batch)
    release_ids(state)
    if refusal is None and state.settings.topic is not None:
        refusal = intake.select(command.selected)
    if refusal is not None:
        state.refuse(command, refusal[0], refusal[1])
        return
    for draft in command.drafts:
        intake.take(draft)
    intake.store()
    state.effects.append(
        Sent(command.origin, command.request, intake.numbers, intake.refused, intake.repeated)
    )


def release_ids(state: State) -> None:
    """Discard the prepared ids: their command is applied."""
    state.duplicates.release()
    state.writers.release()


def commit_writes(state: State, command: CommitWrites, now: i64) -> None:
    too_many = state.writers.refusal(command.writer)
    if too_many:
        state.refuse(command, QuotaExceeded.condition, too_many)
        return
    state.writers.commit(state.ledger, command.writer, command.batch, now)
    state.effects.append(Done(command.origin, command.request))


def is_written_at_once(command: Command) -> bool:
    """Whether the changes of a command are durable before its effects, also where the entity is express."""
    if isinstance(command, Send):
        return any(draft.forced for draft in command.drafts)
    return isinstance(command, (Transact, TakeMoved))
