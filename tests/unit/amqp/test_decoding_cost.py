"""What a peer can make the decoder do: work and memory grow with the bytes that it sent, and no faster."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.amqp.codec import DecodeError, decode_value, encode_value
from busbar.amqp.decoding import MAX_NUMBER_KEYS, UUID_COST
from busbar.amqp.types import Symbol, ULong

HASH_MODULUS = (1 << 61) - 1
"""Integers, and so uuids, that differ by a multiple of this have the same hash."""
MAX_UUIDS = MAX_NUMBER_KEYS // UUID_COST


def colliding(number: int) -> UUID:
    return UUID(int=7 + number * HASH_MODULUS)


def map_of(keys: list[object]) -> bytes:
    """A map with these keys, written by hand so that the writer makes no dictionary of them."""
    content = b"".join(encode_value(key) + b"\x40" for key in keys)
    return b"\xd1" + (len(content) + 4).to_bytes(4, "big") + (2 * len(keys)).to_bytes(4, "big") + content


def decoded(raw: bytes) -> object:
    """The value, or None where it is refused: both may cost no more than the bytes allow."""
    try:
        return decode_value(raw, 0, len(raw))[0]
    except DecodeError:
        return None


class Comparisons:
    """Counts how often two uuids are compared."""

    def __init__(self) -> None:
        self.count = 0
        self._plain = UUID.__eq__

    def __enter__(self) -> Comparisons:
        plain = self._plain

        def counted(one: UUID, other: object) -> bool:
            self.count += 1
            return plain(one, other)

        UUID.__eq__ = counted  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        UUID.__eq__ = self._plain  # type: ignore[method-assign]


def comparisons(raw: bytes) -> int:
    with Comparisons() as counted:
        decoded(raw)
    return counted.count


def sizes() -> Iterator[int]:
    size = 16
    while size <= 4_096:
        yield size
        size *= 4


def test_four_times_as_many_colliding_keys_cost_four_times_as_much() -> None:
    counts = [max(1, comparisons(map_of([colliding(i) for i in range(size)]))) for size in sizes()]
    most = 2 * MAX_UUIDS * MAX_UUIDS
    assert max(counts) <= most, counts
    many = b"".join(map_of([colliding(i) for i in range(MAX_UUIDS)]) for _ in range(16))
    listed = b"\xd0" + (len(many) + 4).to_bytes(4, "big") + (16).to_bytes(4, "big") + many
    assert comparisons(listed) <= 16 * most


KEYS = st.one_of(
    st.integers(0, 400).map(colliding),
    st.integers(0, 400).map(lambda number: ULong(number * HASH_MODULUS % 2**64)),
    st.integers(0, 400).map(str),
    st.integers(0, 400).map(lambda number: Symbol(f"s{number}")),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(KEYS, max_size=100), st.integers(0, 600))
def test_no_key_is_compared_with_more_than_a_bounded_number_of_others(keys: list[object], more: int) -> None:
    keys = keys + [colliding(1_000 + number) for number in range(more)]
    assert comparisons(map_of(keys)) <= 2 * MAX_UUIDS * (len(keys) + 1)


def test_a_map_takes_a_bounded_number_of_keys_whose_hash_the_peer_can_choose() -> None:
    assert len(decode_map([*range(MAX_NUMBER_KEYS)])) == MAX_NUMBER_KEYS
    assert len(decode_map([colliding(i) for i in range(MAX_UUIDS)])) == MAX_UUIDS
    for keys in ([*range(MAX_NUMBER_KEYS + 1)], [colliding(i) for i in range(MAX_UUIDS + 1)]):
        with pytest.raises(DecodeError, match="too many keys that are not text"):
            decode_map([*keys])


def test_keys_of_text_and_binary_are_not_bounded_by_their_kind() -> None:
    keys: list[object] = [f"k{i}" for i in range(2_000)]
    keys += [Symbol(f"s{i}") for i in range(2_000)] + [b"%d" % i for i in range(2_000)]
    assert len(decode_map(keys)) == 6_000


def decode_map(keys: list[object]) -> dict[object, object]:
    raw = map_of(keys)
    value, _ = decode_value(raw, 0, len(raw))
    assert isinstance(value, dict)
    return value


def test_the_elements_of_a_value_are_counted_over_all_its_compounds() -> None:
    inner = b"\xd0" + (14).to_bytes(4, "big") + (10).to_bytes(4, "big") + b"\x45" * 10
    raw = b"\xd0" + (4 + 2 * len(inner)).to_bytes(4, "big") + (2).to_bytes(4, "big") + 2 * inner
    assert decode_value(raw, 0, len(raw), 22)[0] == [[[]] * 10] * 2
    assert decode_value(raw, 0, len(raw))[0] == [[[]] * 10] * 2
    with pytest.raises(DecodeError, match="more than 21 elements"):
        decode_value(raw, 0, len(raw), 21)
    array = b"\xe0\x0a\x02\x70" + b"\x00" * 8
    with pytest.raises(DecodeError, match="more than 1 elements"):
        decode_value(array, 0, len(array), 1)
