"""Decides in which store each fragment of a new entity lives.

Fragment i goes to store (h + i) mod n of the namespace's list, with h from the path. So the fragments of a partitioned
entity are spread over all stores, and regular entities evenly among them. The outcome is written into the definition, and
only that counts later: the list may grow.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from busbar.model.names import key_of


def place(path: str, fragments: int, stores: Sequence[str]) -> tuple[str, ...]:
    """The store of each fragment. The hash is CRC-32, the same in every process and version."""
    first = zlib.crc32(key_of(path).encode())
    return tuple(stores[(first + index) % len(stores)] for index in range(fragments))
