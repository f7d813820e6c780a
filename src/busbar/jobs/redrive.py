"""`busbar redrive`: moves dead letters back to their queue, or to another one.

    redrive("orders", connection=..., reasons=["MaxDeliveryCountExceeded"])
    redrive("events/Subscriptions/audit", connection=..., target="events")
    redrive("orders/$Transfer/$DeadLetterQueue", connection=..., target="receipts")

1. Select. The dead-letter queue is read up to its current end, without locks. Later dead letters, among them messages that
   fail again, are left for the next run. Reasons are compared here. A condition or edits in Spark SQL are evaluated by a
   session that is started only for them. Without them Spark is not needed, not even installed.
2. Move. Dead letters are received under lock. Each selected one is sent to the target, and completed when the target has
   made it durable, never before. Others are held until the end, so that they are not delivered again, and then released
   without a higher delivery count. If another receiver has locked a dead letter, perhaps a killed run, the run waits for it.
   If a lock ends too early, its dead letter is only delivered again.
3. Repeat. The target remembers the fragment and number of each source (resending.py). So if a run was killed between sending
   and completing, its repetition makes no second copy. The target remembers for FORGET_AFTER at least, and until a run has
   been through the whole dead-letter queue.
4. A redriven message is as it was delivered last, without the properties with the reason of its dead-lettering. Its id
   follows from its source; its own id is in `original-message-id`. Its time to live starts again.
5. If the target refuses a message because of its content, it stays in the dead-letter queue, and is reported.
6. Nothing can be sent to one subscription only, so the dead letters of a subscription need a target. Its topic is not the
   default: all its subscriptions would get messages again, which cannot be undone.
7. A transfer dead-letter queue is moved in the same way. What it has was for another entity, so it needs a target. Spark
   cannot read it, so there are no conditions and no edits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from busbar.client import ConnectionLost, LockLost, Retry, SettleFailed
from busbar.client.blocking import BlockingFactory, BlockingReceiver, connect
from busbar.client.received import Received
from busbar.client.sender import Writer
from busbar.jobs import fault_points
from busbar.jobs.edits import FieldEdit, parse_edits
from busbar.jobs.failure_text import JobError, JobFailureKind
from busbar.jobs.reaching import Notice, no_notice, reach
from busbar.jobs.redrive_sources import DeadLetterSource, FailedTransferSource, RedriveSource
from busbar.jobs.resending import (
    CHUNK_MESSAGES,
    MOST_EXAMPLES,
    Pace,
    Resender,
    ResendMessage,
    ResendResult,
    TargetRefused,
    check_target,
    source_id,
    writer_name,
)
from busbar.model.names import key_of, parent_and_name, without_dead_letters
from busbar.operations.paths import MessagePath
from busbar.operations.rewriting import DEAD_LETTER_PROPERTIES, Changes, rewritten

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from busbar.spark.secrets import Secret

FORGET_AFTER: Final = 7 * 24 * 3_600_000
PACED_SECONDS: Final = 2
"""Seconds of messages that are received ahead at a given rate: locks must not end while messages wait."""


class RedriveError(JobError):
    """A redrive cannot be done as requested."""


@dataclass(frozen=True, slots=True)
class RedriveProgress:
    total: int
    moved: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RedriveReport:
    """The result. Of `there` dead letters `found` were selected, `moved` are in the target and deleted here, and the target
    refused `refused`. `left` could not be received, because another receiver has locked or taken them."""

    entity: str
    target: str
    dry_run: bool
    there: int
    found: int
    moved: int
    refused: int
    left: int
    seconds: float
    reasons: dict[str, int] = field(default_factory=dict)
    """Of the selected ones."""
    examples: list[str] = field(default_factory=list)
    """Of refused ones."""
    sample: list[dict[str, Any]] = field(default_factory=list)
    """Of a dry run."""


def redrive(
    entity: str,
    *,
    connection: Secret | str,
    target: str = "",
    reasons: Sequence[str] = (),
    where: str = "",
    edits: Iterable[str] | Mapping[str, str] = (),
    most: int | None = None,
    rate: float = 0,
    dry_run: bool = False,
    sample: int = 5,
    wait: float = 60.0,
    lock_wait: float = 65.0,
    trust: Path | None = None,
    session: SparkSession | None = None,
    master: str | None = None,
    on_progress: Callable[[RedriveProgress], None] | None = None,
    on_notice: Notice = no_notice,
) -> RedriveReport:
    """Move dead letters of a queue back to it, or those of a queue or subscription to `target`, a queue or topic.

    The path of a transfer dead-letter queue moves what that one has.
    `most` moves only the oldest ones. `rate` is the maximum number of messages a second. `wait` is how long a broker may be
    unreachable, in seconds. `lock_wait` is how long to wait for dead letters that others have locked (a lock lasts a minute,
    unless the entity has another duration). `trust` is a file with certificate authorities. Raises RedriveError, EditError,
    BusbarClientError.
    """
    place = MessagePath.parse(entity)
    entity, sub_queue = place.entity, place.sub_queue
    target = _checked_target(entity, target.strip("/"), sub_queue)
    text, trust = _revealed(connection, trust)
    parsed = parse_edits(edits)
    _check(rate, most, sub_queue, bool(where or parsed))
    reach(text, wait, on_notice, trust)
    began = time.monotonic()
    with connect(text, retry=Retry(patience=wait), name="busbar-redrive", trust=trust) as factory:
        source: RedriveSource
        if sub_queue == FailedTransferSource.sub_queue:
            source = FailedTransferSource(factory, entity)
        else:
            source = DeadLetterSource(factory, entity)
        _check_target(factory, target, dry_run, on_notice)
        on_notice("reading the dead letters")
        selection = _Selection(set(reasons))
        source.offer_all(selection.offer)
        if where or parsed:
            selection.narrow(
                _evaluated(source.entity, connection, where, parsed, wait, session, master, on_notice)
            )
        selection.keep_oldest(most)
        mover = _Mover(factory, source, target, selection, Pace(rate), lock_wait, on_progress)
        shown = source.samples(selection.wanted, sample) if dry_run else []
        if not dry_run:
            on_notice("moving")
            mover.run()
            if not (where or reasons or most or selection.wanted):
                mover.forget()
    return _report(source.entity, target, dry_run, selection, mover.done, shown, time.monotonic() - began)


def _check_target(factory: BlockingFactory, target: str, dry_run: bool, on_notice: Notice) -> None:
    try:
        check_target(factory, target, dry_run, on_notice)
    except TargetRefused as error:
        raise RedriveError(str(error), error.kind) from None


def _check(rate: float, most: int | None, sub_queue: str, needs_spark: bool) -> None:
    if rate < 0 or (most is not None and most < 1):
        raise RedriveError("neither a rate below 0 nor fewer than 1 message make sense", JobFailureKind.USAGE)
    if sub_queue == FailedTransferSource.sub_queue and needs_spark:
        raise RedriveError(
            "Spark cannot read a transfer dead-letter queue: no condition and no edit is possible"
        )


def _revealed(connection: Secret | str, trust: Path | None) -> tuple[str, Path | None]:
    """The connection string, and the file with the authorities to trust."""
    if isinstance(connection, str):
        return connection, trust
    return connection.reveal(), trust or connection.authorities()


def _report(
    entity: str,
    target: str,
    dry_run: bool,
    selection: _Selection,
    done: ResendResult,
    shown: list[dict[str, Any]],
    seconds: float,
) -> RedriveReport:
    return RedriveReport(
        entity=entity,
        target=target,
        dry_run=dry_run,
        there=selection.there,
        found=selection.found,
        moved=done.sent,
        refused=done.refused,
        left=0 if dry_run else len(selection.wanted),
        seconds=round(seconds, 3),
        reasons=dict(selection.reasons.most_common()),
        examples=done.examples,
        sample=shown,
    )


def _checked_target(entity: str, target: str, sub_queue: str = "") -> str:
    """The target for dead letters of an entity. Raises RedriveError."""
    if sub_queue == FailedTransferSource.sub_queue and not target:
        raise RedriveError(
            f"messages that could not be moved from {entity!r} are not for {entity!r}; name a target (--to): the queue or "
            "topic that they were for, or another one"
        )
    topic, _ = parent_and_name(entity)
    if topic and not target:
        raise RedriveError(
            f"{entity!r} is a subscription, to which nothing can be sent; name a target (--to): a queue, or its topic "
            f"{topic!r}, all of whose subscriptions get the messages then"
        )
    target = target or entity
    topic, _ = parent_and_name(target)
    if topic:
        raise RedriveError(f"nothing can be sent to the subscription {target!r}; its topic is {topic!r}")
    if without_dead_letters(target)[1]:
        raise RedriveError(f"nothing can be sent to the dead-letter queue {target!r}")
    return target


class _Selection:
    """The dead letters to move, by sequence number, and the changes of each."""

    def __init__(self, reasons: set[str]) -> None:
        self._reasons = reasons
        self._about: dict[int, tuple[int, str]] = {}  # when it was enqueued, and why it is here
        self.wanted: dict[int, Changes] = {}
        self.there = 0
        self.found = 0
        self.reasons: Counter[str] = Counter()

    def offer(self, number: int, enqueued: int, reason: str) -> None:
        """Select a dead letter, if it has one of the reasons."""
        self.there += 1
        if self._reasons and reason not in self._reasons:
            return
        self.wanted[number] = {}
        self._about[number] = (enqueued, reason)

    def narrow(self, evaluated: Mapping[int, Changes]) -> None:
        """Keep those that a condition selected, with the changes of the edits."""
        self.wanted = {number: evaluated[number] for number in self.wanted if number in evaluated}

    def keep_oldest(self, most: int | None) -> None:
        """Keep at most the `most` oldest ones."""
        if most is not None and len(self.wanted) > most:
            oldest = sorted(self.wanted, key=lambda number: (self._about[number][0], number))[:most]
            self.wanted = {number: self.wanted[number] for number in oldest}
        self.found = len(self.wanted)
        self.reasons.update(self._about[number][1] for number in self.wanted)
        self._about = {}


class _Mover:
    """Receives dead letters, sends them to the target, completes them."""

    def __init__(
        self,
        factory: BlockingFactory,
        source: RedriveSource,
        target: str,
        selection: _Selection,
        pace: Pace,
        lock_wait: float,
        on_progress: Callable[[RedriveProgress], None] | None,
    ) -> None:
        self._factory = factory
        self._source = source
        self._target = target
        # A batch is a run. The batch numbers of one writer rise with time, and a batch is committed only when it is old.
        self._writer = Writer(
            writer_name("redrive", source.name, source.incarnation, key_of(target)),
            time.time_ns() // 1_000_000,
        )
        self._selection = selection
        self._pace = pace
        self._lock_wait = lock_wait
        self._on_progress = on_progress
        self._began = time.monotonic()
        self.done = ResendResult()

    def run(self) -> None:
        wanted = self._selection.wanted
        if not wanted:
            return
        ahead = CHUNK_MESSAGES
        if self._pace.rate:
            ahead = max(1, min(ahead, int(self._pace.rate * PACED_SECONDS)))
        receiver = self._factory.receiver(self._source.entity, sub_queue=self._source.sub_queue, credit=ahead)
        try:
            with Resender(self._factory, self._target, self._writer, self._pace) as resender:
                for received in self._received(receiver, ahead):
                    moved = [message for message in received if message.sequence_number in wanted]
                    self._move(resender, receiver, moved)
                    if self._on_progress is not None:
                        seconds = time.monotonic() - self._began
                        self._on_progress(RedriveProgress(self._selection.found, self.done.sent, seconds))
                    if not wanted:
                        return
        finally:
            receiver.close(release=True)

    def _received(self, receiver: BlockingReceiver, most: int) -> Iterator[list[Received]]:
        """Dead letters as they are delivered, until no new one comes."""
        wanted = self._selection.wanted
        held: set[int] = set()
        quiet = time.monotonic()
        while time.monotonic() - quiet < self._lock_wait:
            try:
                received = receiver.receive(most, 1.0)
            except ConnectionLost:
                continue  # the next call opens another one, or raises
            if not received:
                continue
            # In order of number, as they were sent: fragments keep that order, and so does each session.
            yield sorted(received, key=lambda message: message.sequence_number)
            numbers = {message.sequence_number for message in received}
            if not numbers <= held:
                held |= numbers - wanted.keys()
                quiet = time.monotonic()

    def _move(self, resender: Resender, receiver: BlockingReceiver, messages: list[Received]) -> None:
        wanted = self._selection.wanted
        for start in range(0, len(messages), self._pace.chunk):
            chunk = messages[start : start + self._pace.chunk]
            refused = resender.send([self._outgoing(message) for message in chunk])
            fault_points.reached("before-delete")
            taken = [message for index, message in enumerate(chunk) if index not in refused]
            settled = self._complete(receiver, taken)
            for message in settled:
                del wanted[message.sequence_number]
            for index in refused:
                del wanted[chunk[index].sequence_number]
            self.done.add(ResendResult(len(settled), len(refused), resender.told[:MOST_EXAMPLES]))

    def _complete(self, receiver: BlockingReceiver, messages: list[Received]) -> list[Received]:
        """Complete dead letters; returns the deleted ones. The others are delivered again, and the target recognizes them
        then."""
        try:
            receiver.complete(messages)
        except SettleFailed as error:
            return [message for index, message in enumerate(messages) if index not in error.failed]
        except LockLost:
            return []
        return messages

    def _outgoing(self, message: Received) -> ResendMessage:
        number = message.sequence_number
        name = source_id(self._source.name, number, message.enqueued_time)
        made = rewritten(
            message.payload,
            self._selection.wanted[number],
            message_id=name,
            without=DEAD_LETTER_PROPERTIES,
        )
        return ResendMessage(made, name)

    def forget(self) -> None:
        """Let the target forget the messages of this dead-letter queue, because a run has been through all of it."""
        old = self._writer.batch - FORGET_AFTER
        self._factory.taps(self._target).commit_writes(self._writer.name, old)


def _evaluated(
    entity: str,
    connection: Secret | str,
    where: str,
    edits: tuple[FieldEdit, ...],
    wait: float,
    session: SparkSession | None,
    master: str | None,
    on_notice: Notice,
) -> Mapping[int, Changes]:
    """The dead letters that match a condition, with the new values of the edits."""
    from busbar.jobs.launch import connection_of
    from busbar.jobs.replay_source import ReplayError, evaluate
    from busbar.spark.entity_names import DEAD_LETTERS

    secret = connection_of(connection)
    try:
        return evaluate(f"{entity}{DEAD_LETTERS}", secret, where, edits, wait, session, master, on_notice)
    except ReplayError as error:
        raise RedriveError(str(error), error.kind) from error.__cause__


# ---- spark-submit ------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry for spark-submit. Prints the report as JSON."""
    from busbar.jobs.job_run import JobRun, program
    from busbar.jobs.launch import add_connection, given_connection

    parser = argparse.ArgumentParser(
        "redrive", description="Move dead letters back to their queue, or to another entity."
    )
    parser.add_argument("entity")
    parser.add_argument("--to", default="", metavar="ENTITY")
    parser.add_argument("--reason", action="append", default=[], metavar="TEXT")
    parser.add_argument("--where", default="", metavar="EXPRESSION")
    parser.add_argument("--set", dest="edits", action="append", default=[], metavar="FIELD=EXPRESSION")
    parser.add_argument("--max", type=int, metavar="N")
    parser.add_argument("--rate", type=float, default=0, metavar="N")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--master")
    add_connection(parser)
    given = parser.parse_args(arguments)

    def run(job: JobRun) -> int:
        report = redrive(
            given.entity,
            connection=given_connection(given),
            target=given.to,
            reasons=given.reason,
            where=given.where,
            edits=given.edits,
            most=given.max,
            rate=given.rate,
            dry_run=given.dry_run,
            master=given.master,
            on_notice=job.notice,
        )
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
        return 4 if report.refused or report.left else 0

    return program("redrive", run, then="the same command moves the rest")


if __name__ == "__main__":
    sys.exit(main())
