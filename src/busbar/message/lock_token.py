"""The lock token of a delivery: 16 bytes that identify the lock at any node.

    0  4 bytes  fragment id
    4  6 bytes  number of the message in the fragment
    10 6 bytes  nonce of the lock, so that a later lock of the same message has another token

Integers are big-endian. On a receiving link these bytes are the delivery tag, which .NET reads as a GUID in its own byte
order. The management link has the same GUID as an AMQP uuid, in RFC order. So a token is the same in both places.
"""

from __future__ import annotations

from uuid import UUID

from librt.strings import BytesWriter, read_i64_be, write_i64_be, write_i64_le
from mypy_extensions import i64

from busbar.amqp.codec import read_u32
from busbar.model.errors import ArgumentError


def lock_tag(fragment: i64, n: i64, nonce: i64) -> bytes:
    w = BytesWriter()
    write_tag(w, fragment, n, nonce)
    return w.getvalue()


def write_tag(w: BytesWriter, fragment: i64, n: i64, nonce: i64) -> None:
    write_i64_be(w, _signed(fragment, 32) << 32 | (n >> 16) & 0xFFFFFFFF)
    write_i64_be(w, _signed(n, 16) << 48 | nonce & 0xFFFFFFFFFFFF)


def write_uuid(w: BytesWriter, fragment: i64, n: i64, nonce: i64) -> None:
    """Write the same token as the 16 bytes of an AMQP uuid: the first three groups of a GUID have the other byte order."""
    write_i64_le(w, _signed(n >> 16, 16) << 48 | ((n >> 32) & 0xFFFF) << 32 | fragment & 0xFFFFFFFF)
    write_i64_be(w, _signed(n, 16) << 48 | nonce & 0xFFFFFFFFFFFF)


def split_tags(tags: list[bytes]) -> tuple[list[int], list[int]]:
    """The numbers and the nonces of tags of one fragment."""
    numbers: list[int] = []
    nonces: list[int] = []
    for tag in tags:
        _check(tag)
        behind = read_i64_be(tag, 8)
        numbers.append(int(read_u32(tag, 4) << 16 | (behind >> 48) & 0xFFFF))
        nonces.append(int(behind & 0xFFFFFFFFFFFF))
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
        behind = read_i64_be(tag, 8)
        numbers.append(int(read_u32(tag, 4) << 16 | (behind >> 48) & 0xFFFF))
        nonces.append(int(behind & 0xFFFFFFFFFFFF))
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


def _signed(value: i64, bits: i64) -> i64:
    """The low bits, as the writers take them at the upper end of an integer."""
    top: i64 = 1 << (bits - 1)
    low = value & (2 * top - 1)
    return low - 2 * top if low >= top else low
