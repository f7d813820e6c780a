"""Contents on their way through a topic: numbered, read, and changed in a few places."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.amqp.codec import DecodeError, EncodeError, decode_value, encode_value
from busbar.amqp.types import Byte, Described, Int, Symbol, Timestamp, UInt, ULong
from busbar.message.content import (
    REMOVED,
    application_properties,
    draft_of,
    is_durable,
    kept_annotations,
    property_fields,
    rewritten,
    size_around_body,
    sizes_as_sent,
    with_enqueued_number,
)
from busbar.message.delivery import encode_delivery, encode_peeked
from busbar.message.parsing import parse_message
from busbar.model.errors import InternalError
from busbar.model.message import DEAD_FORWARD, FORWARD, VIA, Overlay, Record
from busbar.pages.columns import MessageColumns
from busbar.pages.rows import encode_messages, raw_message
from tests.pages import packing_of
from tests.unit.message.delivered import delivered

NOW = 1767225600000
NUMBER = 3 << 48 | 77
NUMBER_KEY = "x-opt-enqueue-sequence-number"


def section(code: int, value: object) -> bytes:
    return encode_value(Described(code, value))


PROPERTIES = section(0x73, ["m1", b"me", "to", "old", None, uuid.UUID(int=5), Symbol("text/plain")])
APPLICATION = section(0x74, {"Color": "red", "n": Int(5), "deep": [1, {"a": 2}]})
BODY = section(0x75, b"one") + section(0x75, b"two")
FOOTER = section(0x78, {Symbol("f"): 1})
FULL = (
    section(0x70, [True, None, UInt(60_000)])
    + section(0x72, {Symbol("x-opt-partition-key"): "pk", Symbol("mine"): Byte(1)})
    + PROPERTIES
    + APPLICATION
    + BODY
    + FOOTER
)
BARE = section(0x77, "hi")


def content_of(raw: bytes) -> bytes:
    return parse_message(raw, 0, len(raw), "fresh", 128).content


def record(content: bytes) -> Record:
    return Record(9, NOW, 0, 0, 0, len(content), content, None)


def shown(payload: bytes) -> dict[object, object]:
    pos = 0
    while pos < len(payload):
        value, pos = decode_value(payload, pos, len(payload))
        assert isinstance(value, Described)
        if value.descriptor == 0x72:
            assert isinstance(value.value, dict)  # decoding it has counted the pairs and found none twice
            return value.value
    return {}


@pytest.mark.parametrize("raw", [FULL, BARE])
def test_every_way_out_shows_the_topics_number_once(raw: bytes) -> None:
    content = content_of(raw)
    numbered = with_enqueued_number(content, NUMBER)
    for before, after in (
        (encode_delivery(record(content), 9, NOW, 4), encode_delivery(record(numbered), 9, NOW, 4)),
        (encode_peeked(record(content), 9, -1, 2, True), encode_peeked(record(numbered), 9, -1, 2, True)),
        (
            delivered([record(content)], 1, 0, 5, NOW, -1)[1][0],
            delivered([record(numbered)], 1, 0, 5, NOW, -1)[1][0],
        ),
    ):
        assert shown(before)[NUMBER_KEY] == 0
        assert shown(after) == shown(before) | {NUMBER_KEY: NUMBER}
        assert len(after) == len(before)
        assert type(shown(after)[NUMBER_KEY]) is int  # a long, as clients expect


def test_a_second_topic_has_the_last_word() -> None:
    once = with_enqueued_number(content_of(FULL), 1)
    assert with_enqueued_number(once, NUMBER) == with_enqueued_number(content_of(FULL), NUMBER)


def test_no_sender_can_forge_the_number() -> None:
    forged = section(0x72, {Symbol(NUMBER_KEY): 5}) + BARE
    assert shown(encode_delivery(record(content_of(forged)), 9, 0, -1))[NUMBER_KEY] == 0


def test_the_most_annotations_that_can_be_counted_stay() -> None:
    pairs = b"".join(encode_value(number) + b"\x40" for number in range(0x7FFF))
    section_bytes = (
        b"\x00\x53\x72\xd1" + (len(pairs) + 4).to_bytes(4, "big") + (0xFFFE).to_bytes(4, "big") + pairs
    )
    raw = section_bytes + BARE
    content = parse_message(raw, 0, len(raw), "fresh", 128, 1_000_000).content
    assert with_enqueued_number(content, NUMBER) == content
    with pytest.raises(EncodeError, match="65535"):
        rewritten(content, False, {"x-opt-partition-key": encode_value("pk")}, {}, {})


@pytest.mark.parametrize("raw", [FULL, BARE])
def test_pages_show_the_number_and_the_raw_message_does_not_have_it(raw: bytes) -> None:
    content = content_of(raw)
    numbered = with_enqueued_number(content, NUMBER)
    assert raw_message(numbered) == raw_message(content)
    pages = []
    for stored in (content, numbered):
        columns = MessageColumns(0, True)
        packed = packing_of([record(stored)], [0])
        columns.add_rows(b"".join(encode_messages(packed.heads(), packed.contents, packed.overlays)))
        pages.append(columns)
    for columns in pages:
        begin, end = memoryview(columns.raw.bounds.getvalue()).cast("i")[1:]
        assert columns.raw_heads.data.getvalue() + columns.raw.page[begin:end] == raw_message(content)
    assert NUMBER_KEY.encode() in pages[1].annotations.names.data.getvalue()
    assert NUMBER_KEY.encode() not in pages[0].annotations.names.data.getvalue()


def test_a_content_that_announces_a_number_and_has_none_is_refused() -> None:
    content = content_of(BARE)
    with pytest.raises(DecodeError, match="number"):
        raw_message(bytes([content[0] | 4]) + content[1:])


def test_what_rules_read() -> None:
    content = with_enqueued_number(content_of(FULL), NUMBER)
    assert kept_annotations(content) == {NUMBER_KEY: NUMBER, "x-opt-partition-key": "pk", "mine": 1}
    fields = property_fields(content)
    assert fields[:4] == ["m1", b"me", "to", "old"] and fields[7:] == [None] * 6
    assert application_properties(content) == {"Color": "red", "n": 5, "deep": [1, {"a": 2}]}
    assert is_durable(content) and not is_durable(content_of(BARE))
    assert application_properties(content_of(BARE)) == {}
    assert property_fields(content_of(BARE))[0] == "fresh"
    assert size_around_body(content) == len(content) - 8 - len(BODY)


def test_what_cannot_be_decoded_is_not_there() -> None:
    name = encode_value
    pairs = name("bad") + b"\xa1\x01\xff" + name("twice") + name(1) + name("twice") + name(2)
    pairs += name(7) + name(8) + name("null") + b"\x40" + b"\xa1\x01\xff" + name(3)
    raw = b"\x00\x53\x74\xc1" + bytes([len(pairs) + 1, 12]) + pairs + BODY
    content = content_of(raw)
    assert application_properties(content) == {"twice": 1, "null": None, "\ufffd": 3}
    kept = rewritten(content, False, {}, {}, {"new": ("New", encode_value(1))})
    assert pairs + encode_value("New") + encode_value(1) in kept
    gone = rewritten(
        content, False, {}, {}, {"twice": ("twice", REMOVED), "bad": ("bad", encode_value("good"))}
    )
    assert application_properties(gone) == {"bad": "good", "null": None, "\ufffd": 3}


def test_only_what_changes_is_encoded_anew() -> None:
    content = with_enqueued_number(content_of(FULL), NUMBER)
    changed = rewritten(
        content,
        False,
        {"x-opt-partition-key": REMOVED, "x-opt-via-partition-key": encode_value("via")},
        {3: encode_value("new"), 10: encode_value("s1"), 2: REMOVED},
        {"color": ("COLOR", encode_value("blue")), "n": ("n", REMOVED), "added": ("Added", encode_value(1))},
    )
    assert kept_annotations(changed) == {NUMBER_KEY: NUMBER, "mine": 1, "x-opt-via-partition-key": "via"}
    fields = property_fields(changed)
    assert fields[:7] == ["m1", b"me", None, "new", None, uuid.UUID(int=5), "text/plain"]
    assert type(fields[6]) is Symbol and fields[10] == "s1"
    properties = application_properties(changed)
    assert list(properties.items()) == [("Color", "blue"), ("deep", [1, {"a": 2}]), ("Added", 1)]
    assert changed.endswith(BODY + FOOTER)
    assert not is_durable(changed)
    assert rewritten(content, True, {}, {}, {}) == content


def test_the_last_property_takes_its_section_along() -> None:
    content = content_of(section(0x74, {"only": 1}) + BODY)
    assert rewritten(content, False, {}, {}, {"only": ("only", REMOVED)}) == content_of(BODY)


_values = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5), st.binary(max_size=300), st.uuids()
)
_names = st.sampled_from(["a", "A", "b", "color"])


@given(
    st.dictionaries(_names.map(Symbol), _values, max_size=3),
    st.lists(st.one_of(st.none(), st.just("id")), max_size=7),
    st.dictionaries(_names, _values, max_size=4),
    st.booleans(),
    st.dictionaries(st.sampled_from(["x-opt-partition-key", "a"]), st.one_of(st.none(), st.text(max_size=5))),
    st.dictionaries(st.integers(1, 12).filter(lambda at: at not in (8, 9, 10)), _values),
    st.dictionaries(_names.map(str.lower), _values),
)
def test_a_changed_content_is_what_a_sender_could_have_sent(
    notes: dict[object, object],
    fields: list[object],
    properties: dict[str, object],
    durable: bool,
    new_notes: dict[str, str | None],
    new_fields: dict[int, object],
    new_properties: dict[str, object],
) -> None:
    raw = section(0x72, notes) + section(0x73, [ULong(1), *fields[1:]]) + section(0x74, properties) + BODY
    content = with_enqueued_number(content_of(raw), NUMBER)
    changed = rewritten(
        content,
        durable,
        {name: REMOVED if value is None else encode_value(value) for name, value in new_notes.items()},
        {at: encode_value(value) for at, value in new_fields.items()},
        {name: (name, encode_value(value)) for name, value in new_properties.items()},
    )
    again = raw_message(changed)
    assert with_enqueued_number(content_of(again), NUMBER) == changed
    found = {name.lower(): value for name, value in application_properties(changed).items()}
    assert found == {name.lower(): value for name, value in properties.items()} | new_properties
    assert [property_fields(changed)[at] for at in new_fields] == list(new_fields.values())


def test_a_timestamp_stays_one() -> None:
    content = rewritten(
        content_of(BARE), False, {"x-opt-scheduled-enqueue-time": encode_value(Timestamp(NOW))}, {}, {}
    )
    assert type(kept_annotations(content)["x-opt-scheduled-enqueue-time"]) is Timestamp


# ---- messages that move to another entity ----

KEYED = (
    section(0x70, [True, None, UInt(60_000)])
    + section(
        0x72,
        {
            Symbol("x-opt-partition-key"): "pk",
            Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW),
            Symbol("a"): 1,
        },
    )
    + section(0x73, ["m1", *[None] * 9, "s1", UInt(4)])
    + APPLICATION
    + BODY
    + FOOTER
)


def outgoing(content: bytes | None, kind: int, overlay: Overlay | None = None, number: int = 0) -> Record:
    return Record(9, NOW, 5_000, number, 3, 100, content, overlay, hops=1, target=4, kind=kind)


@pytest.mark.parametrize("raw", [FULL, BARE, KEYED])
def test_a_moved_message_is_read_as_when_it_was_sent(raw: bytes) -> None:
    sent = parse_message(raw, 0, len(raw), "fresh", 128)
    moved = draft_of(outgoing(sent.content, FORWARD), "source")
    assert moved.content == sent.content
    assert (moved.message_id, moved.session_id, moved.partition_key, moved.scheduled) == (
        sent.message_id,
        sent.session_id,
        sent.partition_key,
        sent.scheduled,
    )
    assert (moved.ttl, moved.hops, moved.kind) == (5_000, 1, 0)


def test_an_empty_session_id_and_binary_ids_are_read_again() -> None:
    raw = section(0x73, [b"\x00\x01", *[None] * 9, ""]) + BODY
    moved = draft_of(outgoing(content_of(raw), FORWARD), "source")
    assert (moved.message_id, moved.session_id) == ("0001", "")


def test_the_first_number_stays() -> None:
    content = content_of(FULL)
    moved = draft_of(outgoing(content, FORWARD, number=NUMBER), "source").content
    assert kept_annotations(moved)[NUMBER_KEY] == NUMBER
    again = draft_of(outgoing(moved, FORWARD, number=5), "source").content
    assert again == moved
    assert NUMBER_KEY not in kept_annotations(draft_of(outgoing(content, VIA), "source").content)


@pytest.mark.parametrize("raw", [FULL, BARE, KEYED])
def test_properties_that_were_set_after_the_send_become_the_messages_own(raw: bytes) -> None:
    content = content_of(raw)
    overlay = {"Color": encode_value("blue"), "DeadLetterReason": encode_value("late")}
    moved = draft_of(outgoing(content, FORWARD, overlay), "source")
    properties = application_properties(content) | {"Color": "blue", "DeadLetterReason": "late"}
    assert application_properties(moved.content) == properties
    before, after = record(content), record(moved.content)
    before.overlay = overlay
    assert encode_delivery(after, 9, NOW, 4) == encode_delivery(before, 9, NOW, 4)


@pytest.mark.parametrize("raw", [FULL, BARE, KEYED])
def test_a_dead_letter_names_the_entity_it_comes_from(raw: bytes) -> None:
    moved = draft_of(outgoing(content_of(raw), DEAD_FORWARD, number=NUMBER), "orders").content
    seen = shown(encode_delivery(record(moved), 9, NOW, 4))
    assert (seen["x-opt-deadletter-source"], seen[NUMBER_KEY]) == ("orders", NUMBER)
    again = draft_of(outgoing(moved, DEAD_FORWARD), "later").content
    seen = shown(encode_delivery(record(again), 9, NOW, 4))
    assert (seen["x-opt-deadletter-source"], seen[NUMBER_KEY]) == ("later", NUMBER)


def test_a_message_without_its_content_is_not_moved() -> None:
    with pytest.raises(InternalError, match="content"):
        draft_of(outgoing(None, FORWARD), "source")


# ---- sizes ----

LONG = section(0x74, {"text": "x" * 300}) + BODY


@pytest.mark.parametrize(
    "raw", [FULL, BARE, KEYED, BODY, LONG, section(0x73, []) + BODY, section(0x74, {}) + BODY]
)
@pytest.mark.parametrize("kind", [FORWARD, DEAD_FORWARD, VIA])
def test_a_moved_message_is_not_larger_than_it_was_sent(raw: bytes, kind: int) -> None:
    """A message that was within the limits of its first entity is within the same limits of every other."""
    fresh = "f" * 36
    content = parse_message(raw, 0, len(raw), fresh, 128).content
    around = len(raw) - (0 if raw == BARE else len(BODY))
    reasons = {"DeadLetterReason": encode_value("r" * 300), "DeadLetterErrorDescription": encode_value("d")}
    for hop in range(4):
        content = draft_of(outgoing(content, kind, reasons, NUMBER + hop), "source" * 20).content
        size, header = sizes_as_sent(content)
        assert len(raw) - 200 <= size <= len(raw)
        assert header <= (len(raw) if raw == BARE else around)


def test_properties_that_a_receiver_has_set_count_in_both_sizes() -> None:
    before = sizes_as_sent(content_of(FULL))
    moved = draft_of(outgoing(content_of(FULL), FORWARD, {"new": encode_value("x" * 500)}), "source")
    after = sizes_as_sent(moved.content)
    assert before[0] + 500 < after[0] and before[1] + 500 < after[1]
    assert after[0] - after[1] == len(BODY)
