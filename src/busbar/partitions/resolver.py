"""Resolves sequence numbers and lock tokens to the fragments of an entity.

On a regular entity a sequence number is the number in its only fragment. On a partitioned one its top 16 bits are the index
of the fragment. A request by numbers goes to one fragment, so it is done as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from busbar.message.lock_token import split_by_fragment, uuid_to_tag
from busbar.model.api import EntityView
from busbar.model.errors import InvalidOperation, MessageLockLost, MessageNotFound
from busbar.model.partitioning import NUMBER_BITS, split_number

LOCK_LOST = "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."

Locks = tuple[int, list[int], list[int], list[int]]
"""Of one fragment: its id, and the indexes (in the request), numbers and nonces of its locks."""


class FragmentResolver:
    def __init__(self, entity: EntityView) -> None:
        self.ids = entity.fragments
        self.partitioned = len(entity.fragments) > 1
        self._indexes = {fragment: index for index, fragment in enumerate(entity.fragments)}

    def __len__(self) -> int:
        return len(self.ids)

    def partition_id(self, index: int) -> int:
        """The x-opt-partition-id of a message; -1: none."""
        return index if self.partitioned else -1

    def sequence_number(self, index: int, number: int) -> int:
        """The sequence number that clients see."""
        return index << NUMBER_BITS | number

    def sequence_number_in(self, fragment: int, number: int) -> int:
        """The sequence number of a message in the fragment with this id."""
        return self.sequence_number(self._indexes[fragment], number)

    def position(self, number: int) -> tuple[int, int]:
        """Where a sequence number begins: the index of a fragment, which may be beyond the last, and a number in it."""
        if number < 1:
            return 0, 1
        if not self.partitioned:
            return 0, number
        index, number = split_number(number)
        return index, max(1, number)

    def resolve_numbers(self, numbers: Sequence[int]) -> tuple[int, list[int]]:
        """The index of the one fragment that has all these numbers, and the numbers in it."""
        if not self.partitioned:
            return 0, list(numbers)
        parts = [split_number(number) for number in numbers]
        indexes = {index for index, _number in parts}
        if len(indexes) > 1:
            raise InvalidOperation(
                f"The sequence numbers {', '.join(map(str, numbers[:5]))} are of {len(indexes)} fragments of a partitioned "
                "entity (their top 16 bits differ); ask for those of one fragment at a time."
            )
        index = indexes.pop() if indexes else 0
        if not 0 <= index < len(self.ids):
            raise MessageNotFound(f"There is no message with the sequence number {numbers[0]}.")
        return index, [number for _index, number in parts]

    def resolve_tokens(self, tokens: Sequence[UUID]) -> list[Locks]:
        """The locks of each fragment; a token of another entity is ignored."""
        parts = split_by_fragment([uuid_to_tag(token) for token in tokens])
        if any(fragment not in self._indexes for fragment, *_rest in parts):
            raise MessageLockLost(LOCK_LOST)
        return parts
