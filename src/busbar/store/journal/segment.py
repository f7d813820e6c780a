"""One file of a journal: a header, and records one after the other.

    header   8 magic · 16 journal id · u64 number · u64 first sequence · u64 epoch · 8 salt · u32 checksum, twice
    record   u32 magic · u32 length · u64 sequence · u64 epoch · u32 checksum · body

The file is written with zeros and synced before it is used, so that a record changes no metadata of it. A file is used again
for later records: it gets a new header in place. The checksum of a record covers the salt of the header, which is random. So
a record of the file's earlier use is never taken for one of the present use.

The second copy of a header is written when the first one is synced, and records follow when both are. So one copy at least
is readable, whatever was interrupted, and a use whose two copies differ has no records.

A record is synced before the next one is written. So only the last record can be incomplete. `read` stops there. A complete
record of this use behind an incomplete one proves that the file was damaged.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from busbar.store.journal.changes_decoder import JournalDamaged

HEADER_SIZE = 4096
_COPIES = (0, 2048)  # of the header
MAGIC = b"BBJRNL\x00\x01"
_HEADER = Struct(">8s16sQQQ8sI")
_RECORD = Struct(">4sIQQI")
_SEALED = Struct(">8sIQQ")  # what the checksum of a record covers beside its body
_RECORD_MAGIC = b"\xb5\xbar\xec"
RECORD_SIZE = _RECORD.size
_ZEROS = bytes(1 << 20)
MAX_LOOKS = 1_000


class SegmentHeader:
    """Which records a segment has: those from `first` on."""

    __slots__ = ("epoch", "first", "journal", "number", "salt")

    def __init__(
        self, journal: bytes, number: int, first: int, epoch: int, salt: bytes | None = None
    ) -> None:
        self.journal = journal
        self.number = number
        self.first = first
        self.epoch = epoch
        self.salt = secrets.token_bytes(8) if salt is None else salt

    def encoded(self) -> bytes:
        fields = _HEADER.pack(MAGIC, self.journal, self.number, self.first, self.epoch, self.salt, 0)[:-4]
        return fields + zlib.crc32(fields).to_bytes(4, "big")


class JournalRecord:
    """A record that was read: `start` is its place in the file."""

    __slots__ = ("body", "epoch", "sequence", "start")

    def __init__(self, start: int, sequence: int, epoch: int, body: bytes) -> None:
        self.start = start
        self.sequence = sequence
        self.epoch = epoch
        self.body = body


class Segment:
    def __init__(self, path: Path, file: int, size: int) -> None:
        self.path = path
        self.size = size
        self.header: SegmentHeader | None = None
        self._file = file
        self._end = HEADER_SIZE
        found = os.fstat(file)
        self._identity = (found.st_dev, found.st_ino)

    @classmethod
    def open(cls, path: Path) -> Segment:
        """An existing file. Its header is None if no use of it was begun."""
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        segment = cls(path, file, os.fstat(file).st_size)
        segment.header = segment._read_header()
        return segment

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    # ---- writing ---------------------------------------------------------------------------------

    def begin(self, header: SegmentHeader) -> None:
        """Begin to use the file: its records so far count no more. Raises OSError."""
        for place in _COPIES:
            os.pwrite(self._file, header.encoded(), place)
            os.fdatasync(self._file)
        self.header = header
        self._end = HEADER_SIZE

    def has_room(self, length: int) -> bool:
        return self._end + RECORD_SIZE + length <= self.size

    @property
    def is_half_full(self) -> bool:
        return 2 * self._end >= self.size

    def append(self, sequence: int, epoch: int, body: bytes) -> None:
        """Write a record and sync it. Raises OSError: then the record may be there or not."""
        assert self.header is not None
        head = _RECORD.pack(
            _RECORD_MAGIC, len(body), sequence, epoch, _checksum(self.header.salt, sequence, epoch, body)
        )
        _write(self._file, head + body, self._end)
        os.fdatasync(self._file)
        self._end += RECORD_SIZE + len(body)

    def is_in_place(self) -> bool:
        """Whether the path still names this file."""
        found = os.stat(self.path)
        return (found.st_dev, found.st_ino) == self._identity

    # ---- reading ---------------------------------------------------------------------------------

    def _read_header(self) -> SegmentHeader | None:
        """The header of the newest use; None if the file was never used. Raises JournalDamaged."""
        blocks = [os.pread(self._file, _HEADER.size, place) for place in _COPIES]
        found = [header for block in blocks if (header := _decoded_header(block)) is not None]
        if not found:
            if any(blocks[1]):  # a use was begun, and both copies cannot be read
                raise JournalDamaged(f"{self.path} has a header that cannot be read.")
            return None
        return max(found, key=lambda header: header.number)

    def has_records(self) -> bool:
        """Whether the present use has a record. A damaged file counts as having some."""
        try:
            return next(self.read(), None) is not None
        except JournalDamaged:
            return True

    def read(self) -> Iterator[JournalRecord]:
        """The records of the present use. Raises JournalDamaged."""
        header = self.header
        assert header is not None
        content = _read_all(self._file, self.size)
        at, expected, epoch = HEADER_SIZE, header.first, header.epoch
        while (found := _record_at(content, at, header.salt)) is not None:
            if found.sequence != expected or found.epoch < epoch:
                raise JournalDamaged(f"{self.path} has record {found.sequence} where {expected} is expected.")
            yield found
            at += RECORD_SIZE + len(found.body)
            expected, epoch = expected + 1, found.epoch
        self._end = at
        self._check_rest(content, at, header.salt, expected)

    def _check_rest(self, content: bytes, at: int, salt: bytes, expected: int) -> None:
        """Raise JournalDamaged if a later record stands behind an incomplete one."""
        looks = 0
        place = content.find(_RECORD_MAGIC, at + 1)
        while place >= 0 and looks < MAX_LOOKS:
            if _sequence_at(content, place) > expected:
                looks += 1  # contents of messages may look like records, and each look costs a checksum
                found = _record_at(content, place, salt)
                if found is not None:
                    raise JournalDamaged(
                        f"{self.path} is damaged at byte {at}: record {found.sequence} stands behind it."
                    )
            place = content.find(_RECORD_MAGIC, place + 1)

    def write_again(self, record: JournalRecord) -> None:
        """Write the last record again and sync it: it may be in memory only. Raises OSError."""
        header = self.header
        assert header is not None
        checksum = _checksum(header.salt, record.sequence, record.epoch, record.body)
        head = _RECORD.pack(_RECORD_MAGIC, len(record.body), record.sequence, record.epoch, checksum)
        _write(self._file, head + record.body, record.start)
        os.fdatasync(self._file)


class NewSegment:
    """A file that is written with zeros, in pieces, so that no commit waits for all of it."""

    def __init__(self, path: Path, size: int) -> None:
        """Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._path = path
        self.size = size
        self._file = os.open(path, flags, 0o600)
        self._at = 0

    def write_piece(self) -> Segment | None:
        """Write a piece and sync it. Returns the segment when the file is complete; its directory is still to be synced.
        Raises OSError, and leaves no file then."""
        try:
            piece = min(len(_ZEROS), self.size - self._at)
            self._at += os.pwrite(self._file, _ZEROS[:piece], self._at)
            if self._at < self.size:
                os.fdatasync(self._file)
                return None
            os.fsync(self._file)
        except OSError:
            self.delete()
            raise
        return Segment(self._path, self._file, self.size)

    def close(self) -> None:
        """Leave the file as it is. A claim deletes it."""
        os.close(self._file)

    def delete(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)


def _decoded_header(block: bytes) -> SegmentHeader | None:
    if len(block) < _HEADER.size:
        return None
    magic, journal, number, first, epoch, salt, checksum = _HEADER.unpack(block)
    if magic != MAGIC or zlib.crc32(block[:-4]) != checksum:
        return None
    return SegmentHeader(journal, number, first, epoch, salt)


def _checksum(salt: bytes, sequence: int, epoch: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_SEALED.pack(salt, len(body), sequence, epoch)))


def _record_at(content: bytes, at: int, salt: bytes) -> JournalRecord | None:
    """The record at a place; None if there is no complete one."""
    if at + RECORD_SIZE > len(content):
        return None
    magic, length, sequence, epoch, checksum = _RECORD.unpack_from(content, at)
    start = at + RECORD_SIZE
    if magic != _RECORD_MAGIC or start + length > len(content):
        return None
    body = content[start : start + length]
    if _checksum(salt, sequence, epoch, body) != checksum:
        return None
    return JournalRecord(at, sequence, epoch, body)


def _sequence_at(content: bytes, at: int) -> int:
    return int.from_bytes(content[at + 8 : at + 16], "big")


def _write(file: int, record: bytes, at: int) -> None:
    written = os.pwrite(file, record, at)
    while written < len(record):
        written += os.pwrite(file, record[written:], at + written)


def _read_all(file: int, size: int) -> bytes:
    parts: list[bytes] = []
    at = 0
    while at < size:
        part = os.pread(file, min(16 << 20, size - at), at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)
