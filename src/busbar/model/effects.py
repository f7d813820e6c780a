"""What a fragment answers, performed only when everything it rests on is durable. Plain values, like commands."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from busbar.model.message import Record


class Effect:
    """Any effect; the concrete classes below are the whole list."""

    def __init__(self, origin: i64, request: i64) -> None:
        self.origin = origin
        self.request = request


@final
class Sent(Effect):
    """The messages of a Send are durable, but for the refused ones.

    `numbers` has one entry for each draft (0 for a refused one); `refused` is empty in the ordinary case, else pairs of
    index and (condition, text). `duplicates` has the indexes of those that were dropped since their id is known: to the
    sender they are sent, and their entry in `numbers` is the number that the original was given.
    """

    def __init__(
        self,
        origin: i64,
        request: i64,
        numbers: list[int],
        refused: list[tuple[int, str, str]],
        duplicates: list[int] | None = None,
    ) -> None:
        super().__init__(origin, request)
        self.numbers = numbers
        self.refused = refused
        self.duplicates: list[int] = duplicates if duplicates is not None else []


@final
class Delivered(Effect):
    """Messages for a consumer, in order. `until` is the end of their locks (0: ReceiveAndDelete, no lock)."""

    def __init__(
        self,
        origin: i64,
        consumer: i64,
        fragment: i64,
        records: list[Record],
        nonce: i64,
        until: i64,
    ) -> None:
        super().__init__(origin, 0)
        self.consumer = consumer
        self.fragment = fragment
        self.records = records
        self.nonce = nonce
        self.until = until


@final
class Drained(Effect):
    """All that was there has been delivered; the consumer's remaining credit is forgotten."""

    def __init__(self, origin: i64, consumer: i64) -> None:
        super().__init__(origin, 0)
        self.consumer = consumer


@final
class Settled(Effect):
    """Locks were settled; `lost` has the indexes of those that were not held any more."""

    def __init__(self, origin: i64, request: i64, lost: list[int]) -> None:
        super().__init__(origin, request)
        self.lost = lost


@final
class Renewed(Effect):
    def __init__(self, origin: i64, request: i64, until: i64) -> None:
        super().__init__(origin, request)
        self.until = until


@final
class Received(Effect):
    """Deferred messages, locked with one nonce until a time (0: deleted, no lock)."""

    def __init__(self, origin: i64, request: i64, records: list[Record], nonce: i64, until: i64) -> None:
        super().__init__(origin, request)
        self.records = records
        self.nonce = nonce
        self.until = until


@final
class Peeked(Effect):
    """Messages in ascending order of number, with the lane of each."""

    def __init__(self, origin: i64, request: i64, records: list[Record], lanes: list[int]) -> None:
        super().__init__(origin, request)
        self.records = records
        self.lanes = lanes


@final
class SessionOffered(Effect):
    """There is a message session that can be accepted."""

    def __init__(self, origin: i64, request: i64) -> None:
        super().__init__(origin, request)


@final
class SessionAccepted(Effect):
    """The consumer holds this message session until a time."""

    def __init__(self, origin: i64, request: i64, consumer: i64, session: str, until: i64) -> None:
        super().__init__(origin, request)
        self.consumer = consumer
        self.session = session
        self.until = until


@final
class SessionLost(Effect):
    """The consumer's session lock has ended by time, and with it the locks of its messages: each was counted."""

    def __init__(self, origin: i64, consumer: i64) -> None:
        super().__init__(origin, 0)
        self.consumer = consumer


@final
class SessionState(Effect):
    def __init__(self, origin: i64, request: i64, state: bytes | None) -> None:
        super().__init__(origin, request)
        self.state = state


@final
class Sessions(Effect):
    """Session ids, in their order."""

    def __init__(self, origin: i64, request: i64, ids: list[str]) -> None:
        super().__init__(origin, request)
        self.ids = ids


@final
class Purged(Effect):
    def __init__(self, origin: i64, request: i64, count: i64) -> None:
        super().__init__(origin, request)
        self.count = count


@final
class Inspected(Effect):
    """Counts by lane, bytes kept, the last number given, and how many duplicates were ever dropped."""

    def __init__(
        self, origin: i64, request: i64, counts: list[int], size: i64, last: i64, duplicates: i64 = 0
    ) -> None:
        super().__init__(origin, request)
        self.counts = counts
        self.size = size
        self.last = last
        self.duplicates = duplicates


@final
class Duplicates(Effect):
    """What duplicate detection did: messages dropped, ids remembered, and the latest drops, oldest first.

    Of each drop: the message's id, when it came, and the number of the original.
    """

    def __init__(
        self,
        origin: i64,
        request: i64,
        dropped: i64,
        remembered: i64,
        ids: list[str],
        times: list[int],
        numbers: list[int],
    ) -> None:
        super().__init__(origin, request)
        self.dropped = dropped
        self.remembered = remembered
        self.ids = ids
        self.times = times
        self.numbers = numbers


@final
class Done(Effect):
    def __init__(self, origin: i64, request: i64) -> None:
        super().__init__(origin, request)


@final
class Refused(Effect):
    """The command was refused. If that is `certain` it changed nothing; else the store failed under it, and nobody knows."""

    def __init__(self, origin: i64, request: i64, condition: str, text: str, certain: bool = True) -> None:
        super().__init__(origin, request)
        self.condition = condition
        self.text = text
        self.certain = certain
