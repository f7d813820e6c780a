"""Chooses the fragment of each message that a sender sends.

1. A regular entity has one fragment, and there is nothing to choose.
2. A message with a key goes to the fragment of its key (model/partitioning.py), and only there.
3. Messages without a key go round robin, in turns of at most TURN_MESSAGES or TURN_BYTES, over the fragments whose stores
   are near: those of the sender's own broker process. So they do not cross to another process, and the brokers share the
   work as they share the connections. If no store is near, they go over all fragments. Each sender begins at a random one.
   A sender that waits for each answer changes the fragment with every message. While earlier deliveries are unanswered,
   the sender stays with their fragment. If at least PIPELINED of them were unanswered at a time, it stays for the whole
   turn. Then its messages are stored together, as many in a commit as on a regular entity. Fragments of one store follow
   each other, so neighbouring turns share commits.
4. If a fragment certainly did not store a message, because its store is unavailable or it is full, the next fragment gets
   it. That is one of another store, if there are several. This ends when each fragment was tried once or FAILOVER_MS have
   passed. The turn ends, too, and the sender goes over all fragments once.
5. If a message of a writer that may repeat itself (writers.py) has no other key, its key is its message id.
6. A batch is stored as a whole or not at all. So all its messages have the same key, or none has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from busbar.model.api import EntityView
from busbar.model.effects import Refused
from busbar.model.entities import QueueDescription, TopicDescription
from busbar.model.errors import InvalidOperation, QuotaExceeded, ServerBusy
from busbar.model.message import Draft
from busbar.model.partitioning import index_of_key, key_of

TURN_MESSAGES = 1_000
TURN_BYTES = 2 * 1024 * 1024
PIPELINED = 32
FAILOVER_MS = 15_000

DISTINCT_KEYS = (
    "Batching messages with distinct SessionId, PartitionKey or, where duplicates are detected, MessageId is not supported "
    "for an entity with partitioning enabled: a batch is stored whole, in one fragment."
)


class Router:
    """The fragments of one entity, as one sender reaches them."""

    def __init__(
        self,
        entity: EntityView,
        first: int,
        repeats: bool = False,
        is_near: Callable[[str], bool] = lambda store: True,
    ) -> None:
        """`first` is the place in the round robin after which this sender begins; callers draw it at random. `is_near` is
        asked for the stores of the fragments at the beginning of each round."""
        self.fragments = entity.fragments
        self._count = len(entity.fragments)
        self._stores = entity.stores
        self._is_near = is_near
        self.partitioned = len(entity.fragments) > 1
        description = entity.description
        self._detects_duplicates = repeats or (
            isinstance(description, QueueDescription | TopicDescription)
            and description.requires_duplicate_detection
        )
        self._all = indexes_by_store(entity)
        self._order = self._near()
        self._place = first % max(1, len(self._order))
        self._turn_messages = 0
        self._turn_bytes = 0
        self._under_way = 0
        """Deliveries that are not answered yet."""
        self._peak = 0
        """The maximum of `_under_way` in this turn."""

    def keyless(self, drafts: list[Draft]) -> bool:
        """Whether none of them has a key."""
        if self._detects_duplicates:
            return False
        for draft in drafts:
            if draft.session_id is not None or draft.partition_key or draft.via_key is not None:
                return False
        return True

    def index(self, draft: Draft) -> int:
        """The index of the fragment of the message's key; -1 if it has none. Raises InvalidOperation."""
        partition = draft.partition_key
        if partition and draft.session_id is None:  # nearly all keys
            return index_of_key(partition, self._count)
        key = key_of(draft, self._detects_duplicates)
        return -1 if key is None else index_of_key(key, self._count)

    def index_of_batch(self, drafts: Iterable[Draft]) -> int:
        """The index of the fragment for messages of one batch; -1 if they have no key. Raises InvalidOperation."""
        keys = {key_of(draft, self._detects_duplicates) for draft in drafts}
        if len(keys) > 1:
            raise InvalidOperation(DISTINCT_KEYS)
        key = keys.pop()
        return -1 if key is None else index_of_key(key, len(self.fragments))

    def destination(self, drafts: list[Draft]) -> tuple[int, int]:
        """Where messages that are stored together go, and how many other fragments may be tried."""
        index = self.index_of_batch(drafts) if self.partitioned else 0
        return (index, 0) if index >= 0 else (self.next_index(), len(self.fragments) - 1)

    def next_index(self) -> int:
        """The next fragment in turn, for a single message."""
        self._place += 1
        if self._place >= len(self._order):
            self._place = 0
            self._order = self._near()
        self._turn_messages = self._turn_bytes = self._peak = 0
        return self._order[self._place]

    def pick_keyless(self, deliveries: int, messages: int, size: int) -> int:
        """The fragment for messages without a key. The deliveries count as under way until `answered`."""
        over = self._turn_messages >= TURN_MESSAGES or self._turn_bytes >= TURN_BYTES
        if over or not (self._under_way or self._peak >= PIPELINED):
            self.next_index()
        self._turn_messages += messages
        self._turn_bytes += size
        self._under_way += deliveries
        self._peak = max(self._peak, self._under_way)
        return self._order[self._place]

    def answered(self, deliveries: int) -> None:
        """Record that so many deliveries without a key are answered."""
        self._under_way -= deliveries

    def end_turn(self, index: int) -> None:
        """End the turn of a fragment that did not store a message."""
        if self._order[self._place] == index:
            self._turn_messages = TURN_MESSAGES
            self._place = self._all.index(index)
            self._order = self._all

    def _near(self) -> list[int]:
        """The fragments of the next round."""
        if len(self._stores) < len(self._all):
            return self._all
        return [index for index in self._all if self._is_near(self._stores[index])] or self._all

    def next_index_after(self, index: int) -> int:
        """The fragment to try when this one did not store a message."""
        return (index + 1) % len(self.fragments)


def indexes_by_store(entity: EntityView) -> list[int]:
    """The indexes of the fragments, those of one store after each other."""
    stores = entity.stores
    indexes = range(len(entity.fragments))
    if len(stores) < len(indexes):
        return [*indexes]
    return sorted(indexes, key=lambda index: (stores.index(stores[index]), index))


def may_fail_over(refused: Refused) -> bool:
    """Whether a send may go to another fragment: this one certainly did not store it."""
    return refused.certain and refused.condition in (ServerBusy.condition, QuotaExceeded.condition)
