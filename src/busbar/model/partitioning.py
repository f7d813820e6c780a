"""The number of fragments of a partitioned entity, and the fragment of a message.

1. The key of a message is its SessionId; without one, its PartitionKey; without that, its MessageId if the entity detects
   duplicates. A message with a SessionId and another PartitionKey contradicts itself and is refused.
2. The fragment of a key is the BLAKE2b hash of its UTF-8 bytes with a digest of 8 bytes, read as a big-endian number, modulo
   the number of fragments. The hash is part of the stored format: the messages of a key are where this rule put them. So it
   is the same in every process and in every version, and a test pins it.
3. A message without a key may be in any fragment.
4. On the wire a sequence number has the index of its fragment: index << 48 | number in the fragment.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from busbar.model.errors import InvalidOperation
from busbar.model.message import Draft

FRAGMENTS: Final = 16
"""Of a partitioned entity; each of them may hold as much as a regular entity."""
KNOWN_KEYS: Final = 8_192
"""So many are remembered with their fragment: a hash costs more than a tenth of a message. They take at most a few MB."""
NUMBER_BITS: Final = 48
NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1


_known: Final[dict[str, int]] = {}
"""Where keys are that were hashed before, among FRAGMENTS."""


def index_of_key(key: str, fragments: int) -> int:
    """The index of the fragment that holds a key, by its hash."""
    if fragments != FRAGMENTS:
        return _hash(key) % fragments
    index = _known.get(key)
    if index is None:
        if len(_known) >= KNOWN_KEYS:
            _known.clear()
        _known[key] = index = _hash(key) % FRAGMENTS
    return index


def _hash(key: str) -> int:
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def key_of(draft: Draft, detects_duplicates: bool) -> str | None:
    """The key that chooses the fragment of a message; None if the message has no key. An empty PartitionKey
    counts as none. A ViaPartitionKey is the key of a message that has no other."""
    session, partition = draft.session_id, draft.partition_key
    if session is not None:
        if partition and partition != session:
            raise InvalidOperation(
                f"The message has the SessionId '{session}' and the PartitionKey '{partition}'; if both are set on a "
                "message to a partitioned entity, they have to be equal."
            )
        return session
    if partition:
        return partition
    return draft.message_id if detects_duplicates else draft.via_key


def split_number(number: int) -> tuple[int, int]:
    """Split a sequence number of the wire: the index of the fragment, and the number in it."""
    return number >> NUMBER_BITS, number & NUMBER_MASK


def wire_number(index: int, number: int) -> int:
    """The sequence number on the wire, with the index of the fragment in it."""
    return index << NUMBER_BITS | number
