"""Any bytes are a message or an error that names the problem; what was accepted can always be delivered."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.types import Described, Symbol, Timestamp, UByte, UInt, ULong
from busbar.message.decoded import decode_message
from busbar.message.delivery import encode_delivery, encode_peeked
from busbar.message.parsing import parse_batch, parse_message
from busbar.message.sections import find_sections
from busbar.model.errors import BusbarError
from busbar.model.message import Draft, Record

DEEP = os.environ.get("BUSBAR_DEEP") == "1"


def examples(count: int) -> settings:
    return settings(
        max_examples=count * 100 if DEEP else count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=140)
ID = st.none() | TEXT | st.uuids() | st.integers(0, 2**64 - 1).map(ULong) | st.binary(max_size=140)
TIME = st.none() | st.integers(-(2**63), 2**63 - 1).map(Timestamp)
ANY = st.none() | st.booleans() | st.integers(0, 99) | TEXT | st.lists(st.none(), max_size=3)
KEYS = st.sampled_from(
    [
        "x-opt-partition-key",
        "x-opt-scheduled-enqueue-time",
        "x-opt-locked-until",
        "x-opt-lock-token",
        "x-opt-x",
        "mine",
    ]
).map(Symbol)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    parts: list[bytes] = []

    def add(code: int, value: st.SearchStrategy[object]) -> None:
        if draw(st.booleans()):
            parts.append(encode_value(Described(code, draw(value))))

    ttl = st.none() | st.integers(0, 2**32 - 1).map(UInt)
    add(0x70, st.tuples(st.none() | st.booleans(), st.none() | st.integers(0, 255).map(UByte), ttl))
    add(0x71, st.dictionaries(KEYS, ANY, max_size=2))
    add(0x72, st.dictionaries(KEYS | TEXT, ANY | TIME, max_size=4))
    blank = st.none()
    add(
        0x73,
        st.tuples(ID, blank, TEXT, blank, blank, ID, blank, blank, TIME, TIME, st.none() | TEXT, blank)
        | st.tuples(ID)
        | st.just([]),
    )
    add(0x74, st.dictionaries(TEXT, ANY, max_size=3))
    body = draw(st.sampled_from([0, 0x75, 0x76, 0x77]))
    if body == 0x75:
        parts.extend(
            encode_value(Described(0x75, b)) for b in draw(st.lists(st.binary(max_size=300), max_size=3))
        )
    elif body:
        parts.append(encode_value(Described(body, [1, "two"])))
    add(0x78, st.dictionaries(KEYS, ANY, max_size=2))
    return b"".join(parts)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    raw = bytearray(draw(messages()))
    for _ in range(draw(st.integers(0, 3))):
        if raw:
            raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))]) if draw(st.booleans()) else bytes(raw)


def check_deliverable(draft: Draft) -> None:
    overlay = {"DeadLetterReason": encode_value("why")}
    record = Record(1, 1, draft.ttl, 0, 1, len(draft.content), draft.content, overlay)
    for raw in (
        encode_delivery(record.changed(0, None), 1, 1, -1),
        encode_delivery(record, 1, 0, 3),
        encode_peeked(record, 1, -1, 2, True),
    ):
        found = find_sections(raw, 0, len(raw))
        assert found.plain and found.header < found.annotations < found.properties < found.application
        again = parse_message(raw, 0, len(raw), "another", 1000)
        assert (again.message_id, again.session_id) == (draft.message_id, draft.session_id)
        assert again.partition_key == draft.partition_key
    assert draft.message_id and draft.ttl >= 0


@examples(300)
@given(damaged() | st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_busbar_error(raw: bytes) -> None:
    try:
        draft = parse_message(raw, 0, len(raw), "fresh", 128)
    except BusbarError as error:
        assert error.text
    else:
        check_deliverable(draft)
    try:
        decode_message(raw)
    except BusbarError as error:
        assert error.text


@examples(60)
@given(st.lists(damaged(), max_size=3), st.integers(0, 3))
def test_any_batch_is_messages_or_a_busbar_error(inner: list[bytes], cut: int) -> None:
    raw = b"".join(encode_value(Described(0x75, part)) for part in inner)
    raw = raw[: len(raw) - cut]
    try:
        drafts = parse_batch(raw, lambda: "fresh", 128)
    except BusbarError as error:
        assert error.text
    else:
        assert len(drafts) == len(inner) > 0
        for draft in drafts:
            check_deliverable(draft)


@examples(150)
@given(messages())
def test_a_message_keeps_its_bytes(raw: bytes) -> None:
    try:
        draft = parse_message(raw, 0, len(raw), "fresh", 1000)
    except BusbarError:
        return
    found = find_sections(raw, 0, len(raw))
    bare = 8 + int.from_bytes(draft.content[4:8], "big")
    content = draft.content[: find_sections(draft.content, bare, len(draft.content)).end]
    assert content.endswith(raw[found.application : found.end])
    if draft.message_id != "fresh":
        assert content.endswith(raw[found.properties : found.end])
    elif found.properties < found.application:
        sent, _ = decode_value(raw, found.properties, found.application)
        out = encode_delivery(Record(1, 1, 0, 0, 0, 1, draft.content, None), 1, 0, -1)
        place = find_sections(out, 0, len(out))
        kept, _ = decode_value(out, place.properties, place.application)
        assert isinstance(sent, Described) and isinstance(kept, Described)
        assert isinstance(sent.value, list) and isinstance(kept.value, list)
        assert kept.value == ["fresh", *sent.value[1:]]
