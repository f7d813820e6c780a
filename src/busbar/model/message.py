"""A message on its way in (Draft) and a message in a fragment (Record).

Both are treated as immutable: a change makes a new object, so that a refused commit can be undone by forgetting.
Times are milliseconds since 1970 UTC, durations are milliseconds; 0 means "not set" for ttl, scheduled and due.
The content is opaque here: message/__init__.py packs and unpacks it.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

# Where a message stands. A lane is a contiguous, ordered range of the store, so that nothing is found by scanning.
ACTIVE: Final = 0
DEAD: Final = 1  # the dead-letter queue
DEFERRED: Final = 2
SCHEDULED: Final = 3
DEAD_DEFERRED: Final = 4  # deferred inside the dead-letter queue
KEPT: Final = 5  # gone for receivers; a tap on the main queue has not passed it
KEPT_DEAD: Final = 6  # gone for receivers; only a tap on the dead-letter queue has not passed it
OUTBOX: Final = 7  # on its way to another fragment: no receiver, tap or clock reaches it
TRANSFER_DEAD: Final = 8  # the transfer dead-letter queue: what could not be moved
TRANSFER_DEAD_DEFERRED: Final = 9  # deferred inside the transfer dead-letter queue
LANES: Final = 10

# Why a message is moved to another fragment. 0: it is not moved.
FORWARD: Final = 1  # ForwardTo
DEAD_FORWARD: Final = 2  # ForwardDeadLetteredMessagesTo
VIA: Final = 3  # its sender named another entity as its destination

MAX_HOPS: Final = 4
"""How often a message is forwarded in its whole life. Send via does not count."""


def message_count(counts: list[int]) -> int:
    """The number of messages, from the counts by lane. Messages that are kept only for taps do not count."""
    return sum(counts) - counts[KEPT] - counts[KEPT_DEAD]


Overlay = dict[str, bytes]
"""Application properties set after the send (abandon, defer, dead-letter): name to encoded AMQP value."""


def overlay_size(overlay: Overlay | None) -> int:
    """What an overlay counts in the size of its message."""
    if overlay is None:
        return 0
    return sum([len(name.encode("utf-8")) + len(value) for name, value in overlay.items()])


@final
class Draft:
    """What a sender gave: the content, and the few fields that the broker acts on.

    With a `kind` the message is not for this entity: it enters the outbox, for the fragment `target` of the entity `path`.
    `number` was reserved by ReserveNumbers: a message that is still to be scheduled gets it.
    """

    def __init__(
        self,
        content: bytes,
        message_id: str,
        session_id: str | None,
        partition_key: str | None,
        ttl: i64,
        scheduled: i64,
        hops: i64 = 0,
        target: i64 = 0,
        kind: i64 = 0,
        path: str = "",
        number: i64 = 0,
        forced: bool = False,
    ) -> None:
        self.content = content
        self.message_id = message_id
        self.session_id = session_id
        self.partition_key = partition_key
        self.ttl = ttl
        self.scheduled = scheduled
        self.hops = hops  # how often it was forwarded
        self.target = target
        self.kind = kind
        self.path = path
        self.number = number
        self.forced = forced  # ForcePersistence: it is written at once, also where the entity is express
        self.via_key: str | None = None  # ViaPartitionKey; only gateways read it


@final
class SubscriptionCopy:
    """What one subscription gets of a message that was sent to its topic. With a `reason` it is a dead letter there."""

    def __init__(self, fragment: i64, content: bytes, reason: str = "", description: str = "") -> None:
        self.fragment = fragment  # of the subscription
        self.content = content
        self.reason = reason
        self.description = description
        # Fields of the message, as its topic read them:
        self.ttl: i64 = 0
        self.session_id: str | None = None
        self.hops: i64 = 0
        self.everyone: list[int] | None = None  # if all subscriptions get this copy: their fragments

    def receivers(self) -> int:
        """How many subscriptions get it."""
        return 1 if self.everyone is None else len(self.everyone)


def copy_count(copies: list[SubscriptionCopy]) -> int:
    """How many subscriptions get these copies of one message."""
    return sum([copy.receivers() for copy in copies])


@final
class Publication:
    """A message that a topic's fragment publishes when it applies a command: what the rules of subscriptions need of it."""

    def __init__(self, n: i64, content: bytes, ttl: i64) -> None:
        self.n = n  # the number that the topic gives it
        self.content = content
        self.ttl = ttl  # that the topic allows it


@final
class Selection:
    """What the subscriptions of a topic select of the messages that one command publishes.

    `copies` has, by number, what the command passes on now: an empty list if no subscription selects the message. Rules were
    evaluated for the numbers up to `evaluated`. A message that is not in `copies` stays in the topic until a later tick.
    """

    def __init__(self) -> None:
        self.copies: dict[int, list[SubscriptionCopy]] = {}
        self.evaluated: i64 = 0


@final
class Record:
    """A message that has a number. `content` is None while only the store holds the bytes.

    In the outbox, `target` is the fragment that it goes to and `kind` is the reason. There, `due` is the sequence number on
    the wire that it had here as a message; 0: it was none.
    """

    def __init__(
        self,
        n: i64,
        enqueued: i64,
        ttl: i64,
        due: i64,
        deliveries: i64,
        size: i64,
        content: bytes | None,
        overlay: Overlay | None,
        session_id: str | None = None,
        dead: i64 = 0,
        hops: i64 = 0,
        target: i64 = 0,
        kind: i64 = 0,
    ) -> None:
        self.n = n
        self.enqueued = enqueued
        self.ttl = ttl
        self.due = due
        self.deliveries = deliveries
        self.size = size
        self.content = content
        self.overlay = overlay
        self.session_id = session_id  # only where the entity requires sessions; elsewhere it is content
        self.dead_letter_number = (
            dead  # its number among those that were ever dead-lettered in the fragment; 0: it was not
        )
        self.hops = hops  # how often it was forwarded
        self.target = target  # a fragment; 0 outside the outbox
        self.kind = kind

    def expired(self, now: i64) -> bool:
        ttl = self.ttl
        return ttl > 0 and self.enqueued + ttl <= now

    def size_with(self, overlay: Overlay | None) -> i64:
        """The size of the message with other properties. One of an older version is counted without those that it had."""
        if overlay is self.overlay:
            return self.size
        more: i64 = overlay_size(overlay) - overlay_size(self.overlay)
        return self.size + more

    def changed(self, deliveries: i64, overlay: Overlay | None) -> Record:
        """Copy the message with another delivery count and other properties, which count in its size."""
        return Record(
            self.n,
            self.enqueued,
            self.ttl,
            self.due,
            deliveries,
            self.size_with(overlay),
            self.content,
            overlay,
            self.session_id,
            self.dead_letter_number,
            self.hops,
            self.target,
            self.kind,
        )

    def without_content(self) -> Record:
        return Record(
            self.n,
            self.enqueued,
            self.ttl,
            self.due,
            self.deliveries,
            self.size,
            None,
            self.overlay,
            self.session_id,
            self.dead_letter_number,
            self.hops,
            self.target,
            self.kind,
        )


@final
class SharedCopies:
    """Copies that several subscriptions get, in order. Fragments that give them the same numbers share the records."""

    def __init__(self, fragments: list[int]) -> None:
        self.fragments = fragments
        self.copies: list[SubscriptionCopy] = []
        self.content_bytes: i64 = 0
        self.records: list[Record] = []  # of the fragment that stored them last
        self._first: i64 = 0
        self._longest_ttl: i64 = 0

    def add(self, copy: SubscriptionCopy) -> None:
        self.copies.append(copy)
        self.content_bytes += len(copy.content)

    def has_records(self, first: i64, longest_ttl: i64) -> bool:
        """Whether `records` are those of a fragment that numbers the copies from `first` on, and bounds their life so."""
        return len(self.records) > 0 and first == self._first and longest_ttl == self._longest_ttl

    def keep(self, records: list[Record], first: i64, longest_ttl: i64) -> None:
        self.records = records
        self._first = first
        self._longest_ttl = longest_ttl
