"""What a gateway asks of a fragment. Batches of plain values: each can be encoded and sent to another process.

`fragment` is the fragment's id in its store, `origin` names the gateway connection to which effects go back,
`request` is the origin's own number for the answer. A lock is named by the message's number and the nonce it was
taken with. `sub` is the sub-queue: ACTIVE for the main queue, DEAD for the dead-letter queue, TRANSFER_DEAD for the transfer
dead-letter queue.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.model.message import Draft, Overlay, Selection, SharedCopies, SubscriptionCopy

COMPLETE: Final = 0
ABANDON: Final = 1  # unlock, delivery count + 1
DEFER: Final = 2
DEAD_LETTER: Final = 3
RELEASE: Final = 4  # unlock, delivery count unchanged


class Command:
    """Any command; the concrete classes below are the whole list."""

    def __init__(self, fragment: i64, origin: i64, request: i64) -> None:
        self.fragment = fragment
        self.origin = origin
        self.request = request


@final
class Send(Command):
    """Store messages (those with a future `scheduled` time as scheduled ones). Answer: Sent.

    Atomic: all or none (a Service Bus batch). Otherwise each message is accepted or refused by itself.

    With a `writer`, the messages are part of that writer's batch. A message whose id the writer has sent in this batch or in
    the one before is dropped like a duplicate, however long ago that was. A send of a batch that is over is refused.

    If the fragment is a topic's, the commit loop sets `selected` before the machine applies the command.
    """

    def __init__(
        self,
        fragment: i64,
        origin: i64,
        request: i64,
        drafts: list[Draft],
        atomic: bool,
        writer: str | None = None,
        batch: i64 = 0,
    ) -> None:
        super().__init__(fragment, origin, request)
        self.drafts = drafts
        self.atomic = atomic
        self.writer = writer
        self.batch = batch
        self.selected: Selection | None = None


@final
class Demand(Command):
    """Give a consumer credit for `credit` more messages. Answers: Delivered, as messages come.

    With `drain`, the fragment delivers what is available now, discards the rest of the credit, and answers Drained.
    With `delete` (ReceiveAndDelete) messages are removed as they are delivered and carry no lock.
    """

    def __init__(
        self,
        fragment: i64,
        origin: i64,
        consumer: i64,
        sub: i64,
        credit: i64,
        drain: bool,
        delete: bool,
    ) -> None:
        super().__init__(fragment, origin, 0)
        self.consumer = consumer
        self.sub = sub
        self.credit = credit
        self.drain = drain
        self.delete = delete


@final
class Leave(Command):
    """Remove a consumer (or, with consumer 0, all consumers of the origin). Its locks stay. No answer.

    A message session that it holds is closed: the locks of that session's messages end, and nothing is counted.
    """

    def __init__(self, fragment: i64, origin: i64, consumer: i64) -> None:
        super().__init__(fragment, origin, 0)
        self.consumer = consumer


@final
class Settle(Command):
    """Settle locks, each by itself, or all or none if `atomic`. Answer: Settled, or Refused if atomic and one is lost."""

    def __init__(
        self,
        fragment: i64,
        origin: i64,
        request: i64,
        outcome: i64,
        numbers: list[int],
        nonces: list[int],
        overlay: Overlay | None,
        atomic: bool,
    ) -> None:
        super().__init__(fragment, origin, request)
        self.outcome = outcome
        self.numbers = numbers
        self.nonces = nonces
        self.overlay = overlay
        self.atomic = atomic


@final
class Renew(Command):
    """Extend locks, all or none. Answer: Renewed or Refused."""

    def __init__(
        self, fragment: i64, origin: i64, request: i64, numbers: list[int], nonces: list[int]
    ) -> None:
        super().__init__(fragment, origin, request)
        self.numbers = numbers
        self.nonces = nonces


@final
class ReceiveDeferred(Command):
    """Take deferred messages by number, all or none. Answer: Received or Refused.

    On a main sub-queue with message sessions `consumer` must hold the session of each.
    """

    def __init__(
        self,
        fragment: i64,
        origin: i64,
        request: i64,
        sub: i64,
        numbers: list[int],
        delete: bool,
        consumer: i64 = 0,
    ) -> None:
        super().__init__(fragment, origin, request)
        self.sub = sub
        self.numbers = numbers
        self.delete = delete
        self.consumer = consumer


@final
class Peek(Command):
    """Look, without locking, at messages of a sub-queue in every state, from a number on. Answer: Peeked.

    If `sub` is a lane of deferred or scheduled messages, only at those. With `session`, only at those of that message
    session. `with_locks` asks for the ends of their locks.
    """

    def __init__(
        self,
        fragment: i64,
        origin: i64,
        request: i64,
        sub: i64,
        from_number: i64,
        count: i64,
        max_bytes: i64,
        session: str | None = None,
        with_locks: bool = False,
    ) -> None:
        super().__init__(fragment, origin, request)
        self.sub = sub
        self.from_number = from_number
        self.count = count
        self.max_bytes = max_bytes
        self.session = session
        self.with_locks = with_locks


@final
class CancelScheduled(Command):
    """Delete scheduled messages by number, all or none. Answer: Done or Refused."""

    def __init__(self, fragment: i64, origin: i64, request: i64, numbers: list[int]) -> None:
        super().__init__(fragment, origin, request)
        self.numbers = numbers


@final
class Purge(Command):
    """Delete up to `count` available (active, unlocked) messages enqueued before a time. Answer: Purged.

    With `session`, only those of that message session.
    """

    def __init__(
        self,
        fragment: i64,
        origin: i64,
        request: i64,
        sub: i64,
        before: i64,
        count: i64,
        session: str | None = None,
    ) -> None:
        super().__init__(fragment, origin, request)
        self.sub = sub
        self.before = before
        self.count = count
        self.session = session


# ---- message sessions ----


@final
class AwaitSession(Command):
    """Wait until a session can be accepted: it has a message and no consumer holds it. One answer: SessionOffered.

    Nothing is locked. Ends with its answer, with CancelAwait, or when the origin leaves.
    """

    def __init__(self, fragment: i64, origin: i64, request: i64) -> None:
        super().__init__(fragment, origin, request)


@final
class CancelAwait(Command):
    """Cancel the AwaitSession with this request number. No answer."""

    def __init__(self, fragment: i64, origin: i64, awaited: i64) -> None:
        super().__init__(fragment, origin, 0)
        self.awaited = awaited


@final
class AcceptSession(Command):
    """Lock a session for a consumer: a named one, which may be empty or new, or (None) the one whose turn it is.

    Answer: SessionAccepted, or Refused: SessionCannotBeLocked if a named one is held, OperationTimeout if None and there
    is none.

    A `holder` is the name of a consumer that can outlive the owner of the fragment, since it is connected to the gateway of
    another process. Its lock is durable (fragment/session_holds.py). The name begins with that of the gateway.
    """

    def __init__(
        self, fragment: i64, origin: i64, request: i64, consumer: i64, session: str | None, holder: str = ""
    ) -> None:
        super().__init__(fragment, origin, request)
        self.consumer = consumer
        self.session = session
        self.holder = holder


@final
class RenewSession(Command):
    """Extend the session lock that the consumer holds. Answer: Renewed or Refused."""

    def __init__(self, fragment: i64, origin: i64, request: i64, consumer: i64) -> None:
        super().__init__(fragment, origin, request)
        self.consumer = consumer


@final
class GetSessionState(Command):
    """Ask for the state of the session that the consumer holds. Answer: SessionState or Refused."""

    def __init__(self, fragment: i64, origin: i64, request: i64, consumer: i64) -> None:
        super().__init__(fragment, origin, request)
        self.consumer = consumer


@final
class SetSessionState(Command):
    """Set (or with None clear) the state of the session that the consumer holds. Answer: Done or Refused."""

    def __init__(self, fragment: i64, origin: i64, request: i64, consumer: i64, state: bytes | None) -> None:
        super().__init__(fragment, origin, request)
        self.consumer = consumer
        self.state = state


@final
class ListSessions(Command):
    """Ask for session ids, in their order, those behind `after` (None: from the first one). Answer: Sessions.

    `updated_after` 0: those that have active messages or a state; else those whose state was set after that time.
    """

    def __init__(
        self, fragment: i64, origin: i64, request: i64, updated_after: i64, after: str | None, top: i64
    ) -> None:
        super().__init__(fragment, origin, request)
        self.updated_after = updated_after
        self.after = after
        self.top = top


@final
class InspectSession(Command):
    """Ask who holds a message session and what its state is, without holding it. Answer: SessionInspected.

    The state itself is part of the answer only `with_state`.
    """

    def __init__(self, fragment: i64, origin: i64, request: i64, session: str, with_state: bool) -> None:
        super().__init__(fragment, origin, request)
        self.session = session
        self.with_state = with_state


# ---- taps, and writers that repeat themselves ----

MESSAGES: Final = 0
EVENTS: Final = 1
MAX_BATCH: Final = (1 << 62) - 1
"""The batch number of a CommitWrites by which a writer ends for good."""


@final
class ReadTap(Command):
    """Look at what a tap has not passed: after one position, up to another. Answer: TapPage, EventPage, or Refused.

    Positions of messages are their numbers, in the dead-letter queue the order in which they came there; positions of
    events are counted by themselves. `tap` 0 shows what the sub-queue holds, whether there is a tap or not.
    """

    def __init__(
        self,
        fragment: i64,
        origin: i64,
        request: i64,
        tap: i64,
        sub: i64,
        stream: i64,
        after: i64,
        upto: i64,
        count: i64,
        max_bytes: i64,
    ) -> None:
        super().__init__(fragment, origin, request)
        self.tap = tap
        self.sub = sub
        self.stream = stream
        self.after = after
        self.upto = upto
        self.count = count
        self.max_bytes = max_bytes


@final
class ShowTaps(Command):
    """Ask where the taps stand and where the fragment ends. Answer: TapStates. The ends are durable marks."""

    def __init__(self, fragment: i64, origin: i64, request: i64) -> None:
        super().__init__(fragment, origin, request)


@final
class AdvanceTap(Command):
    """Move a tap: it has passed everything up to a position. A lower position changes nothing. Answer: Done or Refused.

    `owner` must be the tap's.
    """

    def __init__(
        self, fragment: i64, origin: i64, request: i64, tap: i64, stream: i64, position: i64, owner: str
    ) -> None:
        super().__init__(fragment, origin, request)
        self.tap = tap
        self.stream = stream
        self.position = position
        self.owner = owner


@final
class ResumeTap(Command):
    """Let a tap that was truncated go on behind what it lost. Answer: TapStates or Refused."""

    def __init__(self, fragment: i64, origin: i64, request: i64, tap: i64, owner: str) -> None:
        super().__init__(fragment, origin, request)
        self.tap = tap
        self.owner = owner


@final
class FindTime(Command):
    """Ask for the position behind which everything was enqueued at a time or later. Answer: PositionFound."""

    def __init__(self, fragment: i64, origin: i64, request: i64, sub: i64, at: i64) -> None:
        super().__init__(fragment, origin, request)
        self.sub = sub
        self.at = at


@final
class CommitWrites(Command):
    """Commit a writer's batch: the ids of the batches before it are forgotten, and sends of those are refused.

    Answer: Done. A lower batch number changes nothing.
    """

    def __init__(self, fragment: i64, origin: i64, request: i64, writer: str, batch: i64) -> None:
        super().__init__(fragment, origin, request)
        self.writer = writer
        self.batch = batch


# ---- transactions ----

TransactionPart = Send | Settle | CancelScheduled | SetSessionState


@final
class Transact(Command):
    """Perform all parts in one commit, or none. Answer: Done or Refused.

    Parts are Send, Settle, CancelScheduled and SetSessionState. Their own requests are not answered. A gateway may name
    fragments of a topic and of its subscriptions; the commit loop makes one command for each of them. Before a machine
    applies it, the loop sets `freed`, and for a topic `selected`. `freed` are the bytes that the parts free in the other
    fragments of the quota.
    """

    def __init__(self, fragment: i64, origin: i64, request: i64, parts: list[TransactionPart]) -> None:
        super().__init__(fragment, origin, request)
        self.parts = parts
        self.freed: i64 = 0
        self.selected: Selection | None = None


@final
class Probe(Command):
    """Ask whether a Transact with these parts could be done now. Nothing changes. Answer: Done or Refused.

    The answer is no promise: a lock may end, and only Transact checks the quota.
    """

    def __init__(self, fragment: i64, origin: i64, request: i64, parts: list[TransactionPart]) -> None:
        super().__init__(fragment, origin, request)
        self.parts = parts


@final
class ReserveNumbers(Command):
    """Take sequence numbers for messages that a transaction schedules (Draft.number). Answer: NumbersReserved.

    Other messages never get these numbers. Unused ones leave gaps, which are allowed.
    """

    def __init__(self, fragment: i64, origin: i64, request: i64, count: i64) -> None:
        super().__init__(fragment, origin, request)
        self.count = count


# ---- moves between fragments ----


@final
class PullOutbox(Command):
    """Ask for the first records of the outbox that go to a fragment, up to a count and a size, but at least one.

    Answer: OutboxPage. All records of the page are durable, and none is left out. An empty page ends the pair's work until
    OutboxReady names it again. With `after` the page begins behind that number, and has only what is in memory: it may be
    empty although there are records.
    """

    def __init__(
        self,
        fragment: i64,
        origin: i64,
        request: i64,
        target: i64,
        count: i64,
        max_bytes: i64,
        after: i64 = 0,
    ) -> None:
        super().__init__(fragment, origin, request)
        self.target = target
        self.count = count
        self.max_bytes = max_bytes
        self.after = after


def fence_of(epoch: int, attempt: int) -> int:
    """The fence of a TakeMoved: it rises with the epoch of the source's store, and within it with each attempt."""
    return epoch << 32 | attempt


@final
class TakeMoved(Command):
    """Take messages that another fragment has in its outbox, in their order, up to the first refusal. Answer: MovedTaken.

    `numbers` are those of the records in the outbox of the fragment `source`, ascending. What lies at or below the mark
    of that source was taken before and is skipped. The mark rises in the commit that stores the messages. A command whose
    `fence` is not higher than all that were seen is refused: each attempt has another one.

    If the fragment is a topic's, the commit loop sets `selected` before the machine applies the command.
    """

    def __init__(
        self,
        fragment: i64,
        origin: i64,
        request: i64,
        source: i64,
        fence: i64,
        numbers: list[int],
        drafts: list[Draft],
    ) -> None:
        super().__init__(fragment, origin, request)
        self.source = source
        self.fence = fence
        self.numbers = numbers
        self.drafts = drafts
        self.selected: Selection | None = None


@final
class RemoveMoved(Command):
    """Remove from the outbox the records up to `upto`: their target has taken them (MovedTaken). No answer.

    The target refused the next `refused` ones, all for the same reason. They go to a dead-letter queue or wait
    (fragment/outbox.py has the table). If the target does not exist any more, the condition is that of EntityNotFound. Then
    `refused` counts all records of the page.
    """

    def __init__(
        self, fragment: i64, target: i64, upto: i64, refused: i64, condition: str = "", text: str = ""
    ) -> None:
        super().__init__(fragment, 0, 0)
        self.target = target
        self.upto = upto
        self.refused = refused
        self.condition = condition
        self.text = text


@final
class AvoidTargets(Command):
    """Name all fragments of targets that cannot be reached now: messages without a key do not go to them. No answer."""

    def __init__(self, fragment: i64, targets: list[int]) -> None:
        super().__init__(fragment, 0, 0)
        self.targets = targets


@final
class ForgetMarks(Command):
    """Delete the marks of source fragments that the catalogue does not have any more, if they are old enough. No answer."""

    def __init__(self, fragment: i64, sources: list[int]) -> None:
        super().__init__(fragment, 0, 0)
        self.sources = sources


@final
class Inspect(Command):
    """Ask for the counters. Answer: Inspected."""

    def __init__(self, fragment: i64, origin: i64, request: i64) -> None:
        super().__init__(fragment, origin, request)


@final
class InspectDuplicates(Command):
    """Ask what duplicate detection did. Answer: Duplicates."""

    def __init__(self, fragment: i64, origin: i64, request: i64) -> None:
        super().__init__(fragment, origin, request)


@final
class StoreCopies(Command):
    """Store the copies that a topic's fragment passes on to a subscription, in the topic's own commit. No answer."""

    def __init__(self, fragment: i64) -> None:
        super().__init__(fragment, 0, 0)
        self.copies: list[SubscriptionCopy] = []
        self.shared: SharedCopies | None = None  # if other subscriptions get the same


@final
class Tick(Command):
    """Expire locks, activate due messages and serve waiting consumers: time has passed, or a turn was cut short."""

    def __init__(self, fragment: i64) -> None:
        super().__init__(fragment, 0, 0)
        self.selected: Selection | None = (
            None  # of a topic: the commit loop sets it before the machine applies this
        )
