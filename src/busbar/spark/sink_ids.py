"""Message ids that follow from the content of a row, so that a repeated row is always recognized.

Spark repeats tasks and batches, with other partitions and another order of rows. So the position of a row, the number of a
partition and the attempt do not identify a message. An id comes from

- `idColumns`: a hash of the values of these columns, for all rows;
- `idFrom=source`: the entity and sequence number of the message that a row was made of, for all rows;
- otherwise the message's own id, and for a row without one its source, if the frame has that.

Rows of a batch that have the same id are one message.

The hash is canonical: each value is written with the family of its type and its length. So neither ("ab", "c") and ("a",
"bc") nor 1 and "1" are confused, while 1 is the same in integers of all widths, and -0.0 is 0.0. Its form never changes,
because a job must recognize its messages after an upgrade. A test pins it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Final

LONGEST_ID: Final = 128
"""Maximum number of characters of a message id."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)


def hashed_id(values: Sequence[object]) -> str:
    """The id of a row with these values, in the order of `idColumns`."""
    return blake2b(b"".join([_canonical(value) for value in values]), digest_size=16).hexdigest()


def source_id(entity: str, sequence_number: int) -> str:
    """The id of a row that was made of a message. The sequence number has the index of its fragment in it."""
    readable = f"{entity}:{sequence_number}"
    return readable if len(readable) <= LONGEST_ID else hashed_id((entity, sequence_number))


def _canonical(value: object) -> bytes:
    if isinstance(value, str):
        return _tagged(b"s", value.encode("utf-8"))
    if isinstance(value, bool):
        return _tagged(b"t", b"1" if value else b"0")
    if isinstance(value, int):
        return _tagged(b"i", b"%d" % value)
    return _rare(value)


def _rare(value: object) -> bytes:
    if value is None:
        return _tagged(b"n", b"")
    if isinstance(value, float):
        number = 0.0 if value == 0 else float("nan") if value != value else value
        return _tagged(b"f", struct.pack(">d", number))
    if isinstance(value, (bytes, bytearray)):
        return _tagged(b"b", bytes(value))
    if isinstance(value, datetime):
        epoch = _NAIVE_EPOCH if value.tzinfo is None else _EPOCH
        return _tagged(b"l" if value.tzinfo is None else b"m", b"%d" % ((value - epoch) // _MICROSECOND))
    if isinstance(value, date):
        return _tagged(b"d", value.isoformat().encode())
    if isinstance(value, timedelta):
        return _tagged(b"u", b"%d" % (value // _MICROSECOND))
    if isinstance(value, Decimal):
        return _tagged(b"c", _plain(value).encode())
    if isinstance(value, Mapping):
        return _tagged(b"o", b"".join(_pairs(value.items())))
    if isinstance(value, Sequence):
        return _tagged(b"a", b"".join([_canonical(item) for item in value]))
    raise TypeError(f"a value of type {type(value).__name__} cannot be part of a message id")


def _pairs(items: Iterable[tuple[object, object]]) -> list[bytes]:
    """The pairs of a map in a fixed order, because a map has none."""
    return sorted(_tagged(b"p", _canonical(key) + _canonical(value)) for key, value in items)


def _plain(value: Decimal) -> str:
    """The number without trailing zeros: 1.50 and 1.5 are one number."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _tagged(tag: bytes, data: bytes) -> bytes:
    return tag + b"%d:" % len(data) + data
