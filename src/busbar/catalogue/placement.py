"""Decides in which store each fragment of a new entity lives.

Fragment i goes to store (h + i) mod n of the namespace's list, with h from the path. So the fragments of a partitioned
entity are spread over all stores, and regular entities evenly among them. If the store of a regular entity is unavailable,
the next one of the list that is available takes its place. The outcome is written into the definition, and only that counts
later: the list may grow.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

from busbar.model.names import key_of


def place(
    path: str, fragments: int, stores: Sequence[str], unavailable: Collection[str] = ()
) -> tuple[str, ...]:
    """The store of each fragment. The hash is CRC-32, the same in every process and version."""
    first = zlib.crc32(key_of(path).encode())
    if fragments == 1:
        in_turn = [stores[(first + step) % len(stores)] for step in range(len(stores))]
        return (next((store for store in in_turn if store not in unavailable), in_turn[0]),)
    return tuple(stores[(first + index) % len(stores)] for index in range(fragments))
