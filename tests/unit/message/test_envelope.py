"""What the broker reads of a message, what it keeps, and what a receiver gets."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.types import Byte, Described, Int, Short, Symbol, Timestamp, UByte, UInt, ULong
from busbar.message.content import is_durable
from busbar.message.delivery import encode_deliveries, encode_delivery, encode_peeked
from busbar.message.lock_token import lock_tag, split_tags, tag_fragment, tag_to_uuid, uuid_to_tag
from busbar.message.parsing import message_format_batch, parse_batch, parse_incoming, parse_message
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    InternalError,
    MalformedMessage,
    MessageSizeExceeded,
)
from busbar.model.message import Draft, Overlay, Record

NOW = 1767225600000
BODY = encode_value(Described(0x75, b"hi"))


def section(code: int, value: object) -> bytes:
    return encode_value(Described(code, value))


def parse(raw: bytes, max_header_size: int = 64 * 1024) -> Draft:
    return parse_message(raw, 0, len(raw), "fresh", 128, max_header_size)


def sections(raw: bytes) -> dict[int, object]:
    """Code to value; the body sections are gathered in a list."""
    found: dict[int, object] = {}
    pos = 0
    while pos < len(raw):
        assert raw[pos : pos + 2] == b"\x00\x53"  # clients read the code at a fixed offset
        value, pos = decode_value(raw, pos, len(raw))
        assert isinstance(value, Described) and isinstance(value.descriptor, int)
        found[int(value.descriptor)] = value.value
    return found


def record(
    draft: Draft, deliveries: int = 0, ttl: int = 0, overlay: Overlay | None = None, n: int = 5
) -> Record:
    return Record(n, NOW, ttl, 0, deliveries, len(draft.content), draft.content, overlay)


def delivered(draft: Draft) -> dict[int, object]:
    return sections(encode_delivery(record(draft), 5, NOW + 60_000, -1))


def properties(**fields: object) -> bytes:
    names = (
        "message_id user_id to subject reply_to correlation_id content_type content_encoding expiry creation"
    )
    names += " group_id group_sequence reply_to_group_id"
    return section(0x73, [fields.get(name) for name in names.split()])


# --- arrival ---


def test_the_fields_that_the_broker_acts_on() -> None:
    draft = parse(
        section(0x70, [True, UByte(4), UInt(5000)])
        + section(0x71, {Symbol("hop"): 1})
        + section(
            0x72,
            {Symbol("x-opt-partition-key"): "pk", Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW)},
        )
        + properties(message_id="m1", group_id="s1")
        + BODY
    )
    assert (draft.message_id, draft.session_id, draft.partition_key) == ("m1", "s1", "pk")
    assert (draft.ttl, draft.scheduled) == (5000, NOW)
    out = delivered(draft)
    assert out[0x70] == [True, UByte(4), None, None, UInt(0)]
    assert out[0x71] == {"hop": 1}
    annotations = out[0x72]
    assert isinstance(annotations, dict)
    assert annotations["x-opt-partition-key"] == "pk"
    assert annotations["x-opt-scheduled-enqueue-time"] == Timestamp(NOW)


def test_a_message_with_nothing_but_a_body() -> None:
    draft = parse(BODY)
    assert (draft.message_id, draft.session_id, draft.partition_key) == ("fresh", None, None)
    assert (draft.ttl, draft.scheduled) == (0, 0)
    assert delivered(draft)[0x73] == ["fresh"]
    assert delivered(draft)[0x75] == b"hi"


def test_bytes_behind_the_annotations_are_kept() -> None:
    # Encodings that we would never choose: long forms throughout.
    kept = bytes.fromhex("005373d00000000a00000001b10000000161")
    kept += bytes.fromhex("005374d10000000c00000002b10000000161" + "5407")
    kept += bytes.fromhex("005375b0000000026869")
    kept += bytes.fromhex("005378d10000000c00000002b30000000166" + "5407")
    draft = parse(section(0x70, []) + section(0x72, {Symbol("mine"): 1}) + kept)
    assert draft.message_id == "a"
    assert encode_delivery(record(draft), 1, 0, -1).endswith(
        encode_value(Symbol("mine")) + encode_value(1) + kept
    )


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        ("text", "text"),
        (uuid.UUID("12345678-1234-1234-1234-123456789abc"), "12345678-1234-1234-1234-123456789abc"),
        (ULong(0), "0"),
        (ULong(7), "7"),
        (ULong(2**64 - 1), "18446744073709551615"),
        (b"\x01\xff", "01ff"),
        (b"\x00\x01", "0001"),
        ("für".encode(), "für"),  # as the Python SDK sends a received id again
        ("é" * 128, "é" * 128),
    ],
)
def test_a_message_id_has_a_text_and_keeps_its_type(message_id: object, text: str) -> None:
    draft = parse(properties(message_id=message_id) + BODY)
    assert draft.message_id == text
    fields = delivered(draft)[0x73]
    assert isinstance(fields, list)
    assert fields[0] == message_id and type(fields[0]) is type(message_id)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        bytes.fromhex("00537345"),
        bytes.fromhex("005373c00100"),
        bytes.fromhex("005373c0020140"),
        bytes.fromhex("005373d000000005" + "0000000140"),
        section(0x73, [""]),
    ],
    ids=["absent", "list0", "empty", "null", "null in a long list", "empty text"],
)
def test_a_message_without_an_id_gets_the_fresh_one(sent: bytes) -> None:
    draft = parse(sent + BODY)
    assert draft.message_id == "fresh"
    assert delivered(draft)[0x73] == ["fresh"]
    assert draft.content.endswith(BODY)


def test_the_fresh_id_leaves_the_other_properties_alone() -> None:
    sent = properties(to="t" * 300, group_id="s", content_type=Symbol("text/plain")) + BODY
    draft = parse(sent)
    fields = delivered(draft)[0x73]
    assert isinstance(fields, list) and len(fields) == 13
    assert fields[0] == "fresh" and fields[2] == "t" * 300 and fields[10] == "s"
    assert type(fields[6]) is Symbol
    assert draft.session_id == "s"


def test_an_empty_session_id_is_one() -> None:
    assert parse(properties(message_id="m", group_id="") + BODY).session_id == ""


@pytest.mark.parametrize(
    ("ttl", "expiry", "creation", "expected"),
    [
        (None, None, None, 0),
        (UInt(0), None, None, 0),
        (UInt(1), None, None, 1),
        (UInt(200), None, None, 200),
        (UInt(60_000), NOW, NOW - 5, 60_000),
        (UInt(0xFFFFFFFF), None, None, 0),
        (UInt(0xFFFFFFFF), NOW + 10**10, NOW, 10**10),
        (None, NOW + 10**10, NOW, 10**10),
        (None, NOW + 10**10, None, 0),
        (None, None, NOW, 0),
        (None, NOW, NOW + 1, 0),
        (None, 2**63 - 1, -(2**63), 253_402_300_799_999 + 62_135_596_800_000),
    ],
)
def test_time_to_live(ttl: object, expiry: int | None, creation: int | None, expected: int) -> None:
    head = section(0x70, [None, None, ttl])
    times = properties(
        message_id="m",
        expiry=None if expiry is None else Timestamp(expiry),
        creation=None if creation is None else Timestamp(creation),
    )
    assert parse(head + times + BODY).ttl == expected


def test_broker_set_annotations_of_a_sender_are_dropped() -> None:
    mine = {
        Symbol("x-opt-sequence-number"): 99,
        Symbol("before"): "kept",
        Symbol("x-opt-enqueued-time"): 1,  # Python sends times on as longs
        "x-opt-enqueue-sequence-number": 9,
        Symbol("x-opt-locked-until"): Timestamp(1),
        Symbol("x-opt-message-state"): Int(1),
        Symbol("x-opt-partition-id"): Short(3),
        Symbol("x-opt-lock-token"): uuid.uuid4(),
        Symbol("x-opt-deadletter-source"): "q",
        Symbol("x-opt-via-partition-key"): "via",
        Symbol("x-opt-scheduled-enqueue-time"): NOW,
        ULong(7): "a number",
    }
    draft = parse(section(0x72, mine) + properties(message_id="m") + BODY)
    assert draft.scheduled == NOW
    annotations = delivered(draft)[0x72]
    assert annotations == {
        "x-opt-sequence-number": 5,
        "x-opt-enqueued-time": NOW,
        "x-opt-enqueue-sequence-number": 0,
        "x-opt-locked-until": NOW + 60_000,
        "x-opt-message-state": 0,
        "before": "kept",
        "x-opt-via-partition-key": "via",
        "x-opt-scheduled-enqueue-time": NOW,
        7: "a number",
    }


@pytest.mark.parametrize(
    ("front", "is_forced"),
    [
        (b"", False),
        (section(0x70, [True]), True),
        (section(0x70, [False]), False),
        (section(0x72, {Symbol("x-opt-force-persistence"): True}), True),
        (section(0x72, {Symbol("x-opt-force-persistence"): False}), False),
        (section(0x72, {Symbol("x-opt-force-persistence"): None}), False),
        (section(0x70, [True]) + section(0x72, {Symbol("x-opt-force-persistence"): False}), True),
    ],
)
def test_force_persistence_is_the_header_or_the_annotation(front: bytes, is_forced: bool) -> None:
    draft = parse(front + section(0x75, b"body"))
    assert draft.forced is is_forced
    assert is_durable(draft.content) is is_forced, "receivers and rules see the header in both cases"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "no sections"),
        (b"\x00", "descriptor"),
        (section(0x70, [1]), "durable .* is not a boolean"),
        (section(0x70, [None, UInt(4)]), "priority .* is not a ubyte"),
        (section(0x70, [None, None, 5000]), "ttl .* is not a uint"),
        (section(0x70, [None] * 6), "6 fields"),
        (bytes.fromhex("005370c0030141") + b"\x40", "longer than its fields"),
        (bytes.fromhex("005370c00105"), "announces 5"),
        (bytes.fromhex("005370c000"), "no count"),
        (bytes.fromhex("005370d00000000100"), "no count"),
        (bytes.fromhex("005372c1020140"), "pairs"),
        (bytes.fromhex("005372c10402404040"), "pairs"),
        (section(0x72, {Symbol("x-opt-partition-key"): 5}), "x-opt-partition-key .* not a string"),
        (section(0x72, {Symbol("x-opt-force-persistence"): 1}), "x-opt-force-persistence .* not a boolean"),
        (section(0x72, {Symbol("x-opt-scheduled-enqueue-time"): "now"}), "not a timestamp"),
        (section(0x73, [None] * 14), "14 fields"),
        (section(0x73, [Byte(1)]), "message-id .* not a string, uuid, ulong or binary"),
        (section(0x73, [[]]), "message-id"),
        (bytes.fromhex("005373c00401a101ff"), "UTF-8"),
        (properties(message_id="m", group_id=5), "group-id .* not a string"),
        (properties(message_id="m", expiry="soon"), "absolute-expiry-time .* not a timestamp"),
        (bytes.fromhex("005373c00502a1016140") + b"\x40", "section should start|not a message section"),
        (bytes.fromhex("005373c00501a1016140"), "longer than their fields"),
        (bytes.fromhex("005374c1020140"), "pairs"),
        (bytes.fromhex("005374c10402404040"), "longer"),
        (bytes.fromhex("005374c105024040404f"), "longer|constructor"),
        (properties(message_id="m") + BODY + b"\x00", "descriptor"),
        (properties(message_id="m") + BODY[:-1], "cut off"),
    ],
)
def test_malformed_messages_are_refused_by_name(raw: bytes, text: str) -> None:
    with pytest.raises(MalformedMessage, match=text):
        parse(raw)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (properties(message_id="x" * 129), "message-id"),
        (properties(message_id=b"x" * 129), "message-id"),
        (properties(message_id="m", group_id="x" * 129), "group-id"),
        (
            section(0x72, {Symbol("x-opt-partition-key"): "x" * 129}) + properties(message_id="m"),
            "partition-key",
        ),
    ],
)
def test_long_ids_are_out_of_range(raw: bytes, field: str) -> None:
    with pytest.raises(ArgumentOutOfRange, match=f"{field}.* has 129 .*limit is 128"):
        parse(raw + BODY)


def test_descriptors_are_made_plain() -> None:
    def rare(plain: bytes) -> bytes:
        return b"\x00\x80" + bytes(7) + plain[2:]

    head, props = section(0x70, [True]), properties(message_id="m", group_id="s")
    draft = parse(rare(head) + rare(props) + b"\x00\xa3\x10amqp:data:binary" + BODY[3:])
    assert draft.content == parse(head + props + BODY).content


# --- batches ---


def counter() -> Callable[[], str]:
    names = iter(f"fresh-{i}" for i in range(1000))
    return lambda: next(names)


WORKED_BATCH = bytes.fromhex(
    "005375a00f005373c00401a101610053" + "75a00131005375a00f005373c00401a1" + "0162005375a00132"
)


def test_the_worked_batch() -> None:
    assert message_format_batch == 2147563264
    drafts = parse_batch(WORKED_BATCH, counter(), 128)
    assert [draft.message_id for draft in drafts] == ["a", "b"]
    assert [delivered(draft)[0x75] for draft in drafts] == [b"1", b"2"]


def test_what_stands_around_a_batch_is_not_read() -> None:
    around = section(0x72, {Symbol("x-opt-partition-key"): "outer"}) + properties(
        message_id="outer", group_id="outer"
    )
    drafts = parse_batch(around + WORKED_BATCH, counter(), 128)
    assert [(draft.message_id, draft.session_id, draft.partition_key) for draft in drafts] == [
        ("a", None, None),
        ("b", None, None),
    ]


def test_each_message_of_a_batch_gets_its_own_fresh_id() -> None:
    drafts = parse_batch(section(0x75, BODY) * 3, counter(), 128)
    assert [draft.message_id for draft in drafts] == ["fresh-0", "fresh-1", "fresh-2"]


def test_messages_of_a_batch_have_nothing_of_each_other() -> None:
    annotations = section(0x72, {Symbol("x-opt-partition-key"): "k"})
    full = annotations + properties(message_id="m", group_id="s") + section(0x74, {"a": 1}) + BODY
    rare = b"\x00\x80" + bytes(7) + properties(message_id="r")[2:] + BODY
    payloads = [full, BODY, rare, full, properties(message_id="p")]
    drafts = parse_batch(b"".join([section(0x75, payload) for payload in payloads]), counter(), 128)
    alone = [parse_incoming(payload, 0, len(payload), lambda: "fresh-0", 128, 65_536) for payload in payloads]
    assert [vars_of(draft) for draft in drafts] == [vars_of(draft) for draft in alone]


def vars_of(draft: Draft) -> tuple[object, ...]:
    return draft.content, draft.message_id, draft.session_id, draft.partition_key, draft.ttl, draft.forced


@pytest.mark.parametrize("length", [0, 1, 100, 220, 255])
@pytest.mark.parametrize("durable", [None, True])
def test_the_beginning_of_a_content_states_what_is_kept(length: int, durable: bool | None) -> None:
    pair = encode_value(Symbol("k")) + encode_value("v" * length)
    draft = parse(section(0x70, [durable]) + section(0x72, {Symbol("k"): "v" * length}) + BODY)
    head = (
        bytes((0x10 if durable is None else 0x11, 0)) + (2).to_bytes(2, "big") + len(pair).to_bytes(4, "big")
    )
    assert draft.content.startswith(head + pair)


def test_ids_are_made_only_for_messages_without_one() -> None:
    names = counter()
    with_id, without = properties(message_id="m") + BODY, BODY
    drafts = [parse_incoming(raw, 0, len(raw), names, 128, 65_536) for raw in (with_id, without, with_id)]
    drafts += parse_batch(section(0x75, with_id) + section(0x75, without), names, 128)
    assert [draft.message_id for draft in drafts] == ["m", "fresh-0", "m", "m", "fresh-1"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        properties(message_id="m"),
        section(0x77, b"x"),
        section(0x75, b""),
        section(0x75, b"nonsense"),
        WORKED_BATCH[:-1],
    ],
)
def test_batches_without_messages_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_batch(raw, counter(), 128)


# --- delivery ---


def test_the_worked_delivery() -> None:
    draft = parse(section(0x70, [True]) + bytes.fromhex("005373c00501a1026d31005375a0026869"))
    raw = encode_delivery(record(draft, n=1), 1, NOW + 60_000, -1)
    assert raw.startswith(bytes.fromhex("005370c006054140404043"))
    assert raw.endswith(bytes.fromhex("005373c00501a1026d31005375a0026869"))
    annotations = sections(raw)[0x72]
    assert annotations == {
        "x-opt-sequence-number": 1,
        "x-opt-enqueued-time": NOW,
        "x-opt-enqueue-sequence-number": 0,
        "x-opt-locked-until": NOW + 60_000,
        "x-opt-message-state": 0,
    }
    assert isinstance(annotations, dict)
    assert [type(key) for key in annotations] == [Symbol] * 5
    assert [type(value) for value in annotations.values()] == [int, Timestamp, int, Timestamp, Int]


def test_optional_annotations_and_their_types() -> None:
    draft = parse(properties(message_id="m") + BODY)
    annotations = sections(encode_delivery(record(draft), 5, 0, 3))[0x72]
    assert isinstance(annotations, dict)
    assert "x-opt-locked-until" not in annotations
    assert type(annotations["x-opt-partition-id"]) is Short and annotations["x-opt-partition-id"] == 3
    annotations = sections(encode_peeked(record(draft), 5, 15, 2, False))[0x72]
    assert isinstance(annotations, dict)
    assert type(annotations["x-opt-message-state"]) is Int and annotations["x-opt-message-state"] == 2
    assert type(annotations["x-opt-partition-id"]) is Short and annotations["x-opt-partition-id"] == 15
    assert "x-opt-locked-until" not in annotations


@pytest.mark.parametrize(
    ("deliveries", "ttl", "header"),
    [
        (0, 0, [None, None, None, None, UInt(0)]),
        (1, 1, [None, None, UInt(1), None, UInt(1)]),
        (255, 0xFFFFFFFE, [None, None, UInt(0xFFFFFFFE), None, UInt(255)]),
        (256, 0xFFFFFFFF, [None, None, None, None, UInt(256)]),
        (70_000, 10**12, [None, None, None, None, UInt(70_000)]),
    ],
)
def test_the_header(deliveries: int, ttl: int, header: list[object]) -> None:
    draft = parse(properties(message_id="m") + BODY)
    out = sections(encode_delivery(record(draft, deliveries, ttl), 5, NOW, -1))
    assert out[0x70] == header


@pytest.mark.parametrize("size", [0, 100, 120, 122, 123, 124, 125, 126, 127, 150, 160, 300, 40_000])
def test_annotations_of_any_size(size: int) -> None:
    draft = parse(section(0x72, {Symbol("k"): "v" * size}) + properties(message_id="m") + BODY)
    out = sections(encode_delivery(record(draft), 5, 0, -1))
    annotations = out[0x72]
    assert isinstance(annotations, dict) and annotations["k"] == "v" * size
    assert out[0x75] == b"hi"


def test_many_annotations() -> None:
    draft = parse(
        section(0x72, {Symbol(str(i)): None for i in range(20_000)}) + properties(message_id="m") + BODY,
        1 << 20,
    )
    annotations = delivered(draft)[0x72]
    assert isinstance(annotations, dict) and len(annotations) == 20_005
    with pytest.raises(MalformedMessage, match="65,535"):
        parse(
            section(0x72, {Symbol(str(i)): None for i in range(40_000)}) + properties(message_id="m") + BODY,
            1 << 20,
        )


def test_an_overlay_goes_into_the_application_properties() -> None:
    timespan = Described(Symbol("com.microsoft:timespan"), 5)
    sent = (
        section(0x74, {"keep": timespan, "replace": 1, Symbol("symbol"): 2})
        + BODY
        + section(0x78, {Symbol("f"): 1})
    )
    draft = parse(properties(message_id="m") + sent)
    overlay = {
        "replace": encode_value("new"),
        "symbol": encode_value(Symbol("s")),
        "DeadLetterReason": encode_value("because"),
    }
    out = sections(encode_delivery(record(draft, overlay=overlay), 5, 0, -1))
    assert out[0x74] == {"keep": timespan, "replace": "new", "symbol": "s", "DeadLetterReason": "because"}
    assert out[0x73] == ["m"] + [None] * 12 and out[0x75] == b"hi" and out[0x78] == {"f": 1}
    # Without application properties of the sender's there is a section all the same; and a large one.
    draft = parse(properties(message_id="m") + BODY)
    out = sections(encode_delivery(record(draft, overlay={"r": encode_value("x" * 300)}), 5, 0, -1))
    assert out[0x74] == {"r": "x" * 300}


def test_a_peek_can_leave_the_body_out() -> None:
    draft = parse(
        properties(message_id="m") + section(0x74, {"a": 1}) + BODY * 3 + section(0x78, {Symbol("f"): 1})
    )
    out = sections(encode_peeked(record(draft), 5, -1, 0, True))
    assert out[0x75] == b"" and out[0x74] == {"a": 1} and out[0x78] == {"f": 1}
    assert sections(encode_peeked(record(draft), 5, -1, 0, False))[0x75] == b"hi"


def test_deliveries_in_batches_are_the_single_ones() -> None:
    drafts = [parse(section(0x70, [True]) + properties(message_id=f"m{i}") + BODY) for i in range(3)]
    records = [record(draft, deliveries=i, ttl=i, n=i + 1) for i, draft in enumerate(drafts)]
    tags, payloads = encode_deliveries(records, 7, 2, 99, NOW, 2)
    assert tags == [lock_tag(7, n, 99) for n in (1, 2, 3)]
    assert payloads == [
        encode_delivery(r, 2 << 48 | r.n, NOW, 2, tag) for r, tag in zip(records, tags, strict=True)
    ]
    _, payloads = encode_deliveries(records, 7, 2, 0, 0, 2)
    assert payloads == [encode_delivery(r, 2 << 48 | r.n, 0, 2) for r in records]
    assert encode_deliveries([], 7, 0, 99, NOW, -1) == ([], [])


def test_a_record_without_content_is_our_fault() -> None:
    draft = parse(BODY)
    with pytest.raises(InternalError, match="without its content"):
        encode_delivery(record(draft).without_content(), 5, 0, -1)
    with pytest.raises(InternalError, match="unknown format"):
        encode_delivery(Record(5, NOW, 0, 0, 0, 8, b"\x20" + bytes(8), None), 5, 0, -1)


# --- lock tokens ---


def test_lock_tokens() -> None:
    top = (2**32 - 1, 2**48 - 1, 2**48 - 1)
    for fragment, n, nonce in [(0, 0, 0), (1, 2, 3), (0x33221100, 0x554477668899, 0xAABBCCDDEEFF), top]:
        tag = lock_tag(fragment, n, nonce)
        assert len(tag) == 16
        assert tag_fragment(tag) == fragment
        assert split_tags([tag, tag]) == ([n, n], [nonce, nonce])
        assert uuid_to_tag(tag_to_uuid(tag)) == tag


def test_the_worked_lock_token() -> None:
    tag = bytes.fromhex("3322110055447766" + "8899aabbccddeeff")
    assert tag_to_uuid(tag) == uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert lock_tag(0x33221100, 0x554477668899, 0xAABBCCDDEEFF) == tag


@pytest.mark.parametrize("tag", [b"", b"short", b"x" * 17])
def test_a_lock_token_has_16_bytes(tag: bytes) -> None:
    with pytest.raises(ArgumentError, match="16 bytes"):
        split_tags([tag])
    with pytest.raises(ArgumentError, match="16 bytes"):
        tag_fragment(tag)
    with pytest.raises(ArgumentError, match="16 bytes"):
        tag_to_uuid(tag)


def test_what_is_not_the_body_is_bounded() -> None:
    def sent(size: int) -> bytes:
        properties = encode_value(Described(ULong(0x74), {"p": "x" * size}))
        return properties + encode_value(Described(ULong(0x75), b"b" * 100_000))

    assert parse_message(sent(60_000), 0, len(sent(60_000)), "id", 128).content
    with pytest.raises(MessageSizeExceeded, match="at most 65536"):
        parse_message(sent(66_000), 0, len(sent(66_000)), "id", 128)
    with pytest.raises(MessageSizeExceeded, match="at most 1000"):
        parse_message(sent(1_000), 0, len(sent(1_000)), "id", 128, 1_000)
