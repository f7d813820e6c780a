"""A page of messages for the readers of taps: one buffer of heads, and the contents as they are in a store.

A reader needs thousands of messages and inspects none of them here. So there is no object for each. A store writes its rows
as the bytes of a page of pages/rows.py, and a content is copied as often as a page is.

A head, big-endian:

    i64  number in the fragment                     u32  deliveries so far
    i64  position among the dead-lettered, or 0     u8   lane (model/message.py)
    i64  enqueued, ms since 1970                    u32  length of the overlay (here 0: see `overlays`)
    i64  time to live in ms, 0: for ever            u32  length of the content

- A page has at most `limit` messages and `max_bytes` bytes, but at least one message. A message counts its content and
  `overhead`.
- Each content is in one of the pieces of `contents`, which are in the order of the heads.
- If the numbers of columns do not rise, or contents have another length than announced, there is an InternalError and never
  a page.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from busbar.model.errors import InternalError
from busbar.model.message import Overlay, Record

HEAD: Final = 45
OVERLAY_SIZE: Final = 37  # its offset in a head
CONTENT_SIZE: Final = 41

Changed = dict[int, tuple[int, int, Overlay | None]]
"""What most messages do not have, by number: deliveries, Record.dead_letter_number and the overlay."""

_SEMICOLON: Final = 0x3B
_ZERO: Final = 0x30


@final
class TapPageBuilder:
    def __init__(self, limit: i64, max_bytes: i64, overhead: i64) -> None:
        self.count: i64 = 0
        self.last: i64 = 0  # the number of the last message
        self.last_dead: i64 = 0
        self.full = False  # there was one more message, and no room for it
        self.contents: list[bytes] = []
        self.overlays: dict[int, Overlay] = {}
        self._limit = limit
        self._max_bytes = max_bytes
        self._overhead = overhead
        self._heads = BytesWriter()
        self._size: i64 = 0

    def heads(self) -> bytes:
        return self._heads.getvalue()

    def room(self) -> i64:
        """The number of messages that still fit, if they are as large as those before; at least one, unless the page is
        full."""
        if self.full or self.count >= self._limit:
            return 0
        room = self._limit - self.count
        if self.count > 0:
            fits = (self._max_bytes - self._size) // (self._size // self.count + 1) + 1
            if fits < room:
                room = fits
        return room

    def add(self, record: Record, lane: int) -> bool:
        """Add a message. False: there is no room for it."""
        content = record.content
        if content is None:
            raise InternalError(f"message {record.n} is to be shown without its content")
        size: i64 = len(content)
        if not self._fits(size):
            return False
        self._head(
            record.n, record.dead_letter_number, record.enqueued, record.ttl, record.deliveries, lane, size
        )
        if record.overlay:
            self.overlays[record.n] = record.overlay
        self.contents.append(content)
        return True

    def add_columns(
        self,
        lane: int,
        first: i64,
        count: i64,
        numbers: bytes,
        times: bytes,
        sizes: bytes,
        contents: bytes,
        largest: i64,
        changed: Changed,
    ) -> bool:
        """Add messages of a lane by number, given as columns: in decimal, with a comma between two, and the contents one
        after the other.

        Without `numbers` they are consecutive, from the first. A time is the enqueued time and, if there is one, a semicolon
        and the time to live. Contents larger than `largest` are not included: the first such message ends the columns, and
        so does the one for which there is no room. False: not all were added.
        """
        number_at: i64 = 0
        time_at: i64 = 0
        size_at: i64 = 0
        used: i64 = 0
        added: i64 = 0
        some = len(changed) > 0
        given = len(numbers) > 0
        while added < count:
            size, size_at = _decimal(sizes, size_at)
            if size > largest or not self._fits(size):
                break
            n = first + added
            if given:
                n, number_at = _decimal(numbers, number_at)
            if n <= self.last:
                raise InternalError(f"message {n} was read behind message {self.last}")
            enqueued, time_at = _decimal(times, time_at)
            ttl: i64 = 0
            if time_at > 0 and time_at <= len(times) and times[time_at - 1] == _SEMICOLON:
                ttl, time_at = _decimal(times, time_at)
            used += size
            added += 1
            if some and n in changed:
                deliveries, dead, overlay = changed[n]
                self._head(n, dead, enqueued, ttl, deliveries, lane, size)
                if overlay:
                    self.overlays[n] = overlay
            else:
                self._head(n, 0, enqueued, ttl, 0, lane, size)
        self._add_contents(contents, used, added == count)
        return added == count

    def _add_contents(self, contents: bytes, used: i64, whole: bool) -> None:
        """Add the contents of the messages that were added: all of it if they are the `whole` columns, else a part."""
        if used > len(contents) or (whole and used < len(contents)):
            raise InternalError(f"contents of {used} bytes were read as {len(contents)}")
        if used > 0:
            self.contents.append(contents if used == len(contents) else contents[:used])

    def _fits(self, size: i64) -> bool:
        if self.count >= self._limit or (
            self.count > 0 and self._size + size + self._overhead > self._max_bytes
        ):
            self.full = True
            return False
        return True

    def _head(
        self, n: i64, dead: i64, enqueued: i64, ttl: i64, deliveries: i64, lane: int, size: i64
    ) -> None:
        w = self._heads
        write_i64_be(w, n)
        write_i64_be(w, dead)
        write_i64_be(w, enqueued)
        write_i64_be(w, ttl)
        _write_u32(w, deliveries)
        w.append(lane)
        write_i32_be(w, 0)
        _write_u32(w, size)
        self.count += 1
        self.last = n
        self.last_dead = dead
        self._size += size + self._overhead


def _decimal(text: bytes, at: i64) -> tuple[i64, i64]:
    """The number that begins there, and where the next one begins: after the character that is not a digit. Raises
    InternalError."""
    end: i64 = len(text)
    value: i64 = 0
    begin = at
    while at < end:
        digit: i64 = text[at]
        at += 1
        digit -= _ZERO
        if digit < 0 or digit > 9:
            return value, at
        value = value * 10 + digit
    if begin == at:
        raise InternalError("a column is shorter than it should be")
    return value, at


def _write_u32(w: BytesWriter, value: i64) -> None:
    # The writers are signed; the interpreted ones refuse values that do not fit.
    if value > 0x7FFFFFFF:
        value -= 0x100000000
    write_i32_be(w, i32(value))
