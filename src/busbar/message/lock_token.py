"""The lock token of a delivery: 16 bytes that identify the lock at any node.

    0  4 bytes  fragment id
    4  6 bytes  number of the message in the fragment
    10 6 bytes  nonce of the lock, so that a later lock of the same message has another token

Integers are big-endian. On a receiving link these bytes are the delivery tag, which .NET reads as a GUID in its own byte
order. The management link has the same GUID as an AMQP uuid, in RFC order. So a token is the same in both places.
"""

from __future__ import annotations

from uuid import UUID

from librt.strings import BytesWriter, read_i16_be, write_i16_be, write_i16_le, write_i32_le
from mypy_extensions import i16, i32, i64

from busbar.amqp.codec import read_u32, write_u32
from busbar.model.errors import ArgumentError


def lock_tag(fragment: i64, n: i64, nonce: i64) -> bytes:
    w = BytesWriter()
    write_tag(w, fragment, n, nonce)
    return w.getvalue()


def write_tag(w: BytesWriter, fragment: i64, n: i64, nonce: i64) -> None:
    write_u32(w, fragment)
    _write_u48(w, n)
    _write_u48(w, nonce)


def write_uuid(w: BytesWriter, fragment: i64, n: i64, nonce: i64) -> None:
    """Write the same token as the 16 bytes of an AMQP uuid: the first three groups of a GUID have the other byte order."""
    write_i32_le(w, i32(fragment - 0x100000000 if fragment > 0x7FFFFFFF else fragment))
    write_i16_le(w, _i16(n >> 32))
    write_i16_le(w, _i16(n >> 16))
    write_i16_be(w, _i16(n))
    _write_u48(w, nonce)


def split_tags(tags: list[bytes]) -> tuple[list[int], list[int]]:
    """The numbers and the nonces of tags of one fragment."""
    numbers: list[int] = []
    nonces: list[int] = []
    for tag in tags:
        _check(tag)
        numbers.append(int(_read_u48(tag, 4)))
        nonces.append(int(_read_u48(tag, 10)))
    return numbers, nonces


def split_by_fragment(tags: list[bytes]) -> list[tuple[int, list[int], list[int], list[int]]]:
    """Tags of any fragments: for each fragment its id, and the indexes, numbers and nonces of its tags."""
    parts: dict[int, tuple[int, list[int], list[int], list[int]]] = {}
    # Tags of one fragment are mostly next to each other.
    current: i64 = -1
    indexes: list[int] = []
    numbers: list[int] = []
    nonces: list[int] = []
    for index, tag in enumerate(tags):
        _check(tag)
        fragment = read_u32(tag, 0)
        if fragment != current:
            current = fragment
            part = parts.get(int(fragment))
            if part is None:
                part = (int(fragment), [], [], [])
                parts[int(fragment)] = part
            indexes, numbers, nonces = part[1], part[2], part[3]
        indexes.append(index)
        numbers.append(int(_read_u48(tag, 4)))
        nonces.append(int(_read_u48(tag, 10)))
    return list(parts.values())


def tag_fragment(tag: bytes) -> int:
    _check(tag)
    return int(read_u32(tag, 0))


def uuid_of_tag(tag: bytes) -> bytes:
    """The bytes that `write_uuid` writes, from a tag."""
    return tag_to_uuid(tag).bytes


def tag_to_uuid(tag: bytes) -> UUID:
    _check(tag)
    return UUID(bytes_le=tag)


def uuid_to_tag(token: UUID) -> bytes:
    return token.bytes_le


def _check(tag: bytes) -> None:
    if len(tag) != 16:
        raise ArgumentError(f"A lock token has 16 bytes, not {len(tag)}.")


def _i16(value: i64) -> i16:
    """The low 16 bits, as the writers take them."""
    low = value & 0xFFFF
    return i16(low - 0x10000 if low > 0x7FFF else low)


def _write_u48(w: BytesWriter, value: i64) -> None:
    write_i16_be(w, _i16(value >> 32))
    write_u32(w, value & 0xFFFFFFFF)


def _read_u48(tag: bytes, pos: i64) -> i64:
    return (i64(read_i16_be(tag, pos)) & 0xFFFF) << 32 | read_u32(tag, pos + 2)
