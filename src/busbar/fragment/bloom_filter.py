"""A rotating Bloom filter over ids: it always finds an id that was added, and rarely finds one that was not.

One table holds eight Bloom filters, one for each generation. A byte has one bit for each generation. So one look at the few
positions of an id finds, for all generations at once, in which of them it may be. Each generation is cleared by itself.

With size / ROOM ids in a generation, the false positive rate of that generation is 1 in 1,700. It is much lower while the
generation is not full. More ids only raise the rate.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_le
from mypy_extensions import i64, u8

GENERATIONS: Final = 8
ROOM: Final = 16
PROBES: Final = 8
_HALF: Final = 0x7FFFFFFFFFFF


@final
class RotatingBloomFilter:
    def __init__(self, size: i64) -> None:
        table = BytesWriter()  # of all tables of bytes the one that compiled code reads and writes directly
        table.write(bytes(size))
        self._table = table
        self.size = size

    def generations_of(self, id: bytes) -> i64:
        """The generations in which the id may be, one bit for each."""
        table = self._table
        size = self.size
        at = read_i64_le(id, 0) & _HALF
        step = read_i64_le(id, 8) & _HALF
        generations: u8 = 255
        probe: i64 = 0
        while probe < PROBES:
            generations &= table[at % size]
            if generations == 0:
                return 0
            at += step
            probe += 1
        return i64(generations)

    def add(self, id: bytes, generation: i64) -> None:
        table = self._table
        size = self.size
        at = read_i64_le(id, 0) & _HALF
        step = read_i64_le(id, 8) & _HALF
        bit = u8(1 << generation)
        probe: i64 = 0
        while probe < PROBES:
            position = at % size
            table[position] = table[position] | bit
            at += step
            probe += 1

    def grow(self, times: i64) -> None:
        """Enlarge the table, with room for new generations. What is there stays, and takes the same part of the table."""
        once = self._table.getvalue()
        for _ in range(times - 1):
            self._table.write(once)
        self.size *= times

    def clear(self, generations: i64, start: i64, stop: i64) -> None:
        """Forget the generations in a part of the table."""
        table = self._table
        keep = u8(255 & ~generations)
        at = start
        while at < stop:
            table[at] = table[at] & keep
            at += 1
