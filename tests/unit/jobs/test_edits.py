"""Edits change what they name in an encoded message, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.types import Described, Symbol, Timestamp, UByte, UInt, ULong
from busbar.client import OutgoingMessage, encode
from busbar.jobs.edits import FieldEdit, check_type, parse_edits
from busbar.message.compose import compose
from busbar.message.decoded import decode_message
from busbar.message.parsing import parse_message
from busbar.message.sections import find_sections, value_of
from busbar.operations.rewriting import DEAD_LETTER_PROPERTIES, ORIGINAL_ID, EditError, rewritten

MESSAGE = OutgoingMessage(
    body=b"\x00\x01body",
    message_id="m1",
    session_id="s1",
    partition_key="s1",
    subject="subject",
    content_type="text/plain",
    application_properties={"count": 5, "word": "a", "yes": True},
)


def section(code: int, value: object) -> bytes:
    return encode_value(Described(ULong(code), value))


def annotated(message: bytes) -> dict[object, object]:
    found = find_sections(message, 0, len(message))
    if found.annotations == found.properties:
        return {}
    value, _ = decode_value(message, value_of(message, found.annotations, found.end), found.properties)
    assert isinstance(value, dict)
    return value


def test_without_a_change_every_byte_stays() -> None:
    raw = encode(MESSAGE)
    assert rewritten(raw, {}) == raw
    assert rewritten(raw, {}, without=DEAD_LETTER_PROPERTIES) == raw


def test_sections_that_no_edit_names_keep_their_bytes() -> None:
    odd = (
        section(0x72, {Symbol("x-opt-own"): UByte(3)})
        + section(0x73, [UUID(int=7), b"user", None, None, None, ULong(9)])
        + section(0x77, ["a list", UInt(5)])
        + section(0x78, {Symbol("crc"): UInt(1)})
    )
    changed = rewritten(odd, {"properties.n": 1})
    before, after = find_sections(odd, 0, len(odd)), find_sections(changed, 0, len(changed))
    assert changed[: after.application] == odd[: before.application]
    assert changed[after.body :] == odd[before.body :]
    assert decode_message(changed).application_properties == {"n": 1}


def test_texts_properties_and_body_are_set_and_taken_away() -> None:
    changed = decode_message(
        rewritten(
            encode(MESSAGE),
            {
                "subject": "new",
                "content_type": None,
                "to": "there",
                "properties.count": None,
                "properties.when": datetime(2026, 1, 2, tzinfo=UTC),
                "properties.half": 0.5,
                "properties.raw": bytearray(b"\x01"),
                "body": "text",
            },
        )
    )
    assert (changed.subject, changed.content_type, changed.to) == ("new", None, "there")
    assert changed.application_properties == {
        "word": "a",
        "yes": True,
        "when": Timestamp(1767312000000),
        "half": 0.5,
        "raw": b"\x01",
    }
    assert type(changed.application_properties["when"]) is Timestamp
    assert changed.data == b"text"
    assert (changed.message_id, changed.group_id) == ("m1", "s1")


def test_a_session_that_is_set_alone_takes_the_key_along() -> None:
    raw = encode(MESSAGE)
    assert annotated(rewritten(raw, {"session_id": "s2"})) == {}
    both = rewritten(raw, {"session_id": "s2", "partition_key": "s2"})
    assert annotated(both) == {"x-opt-partition-key": "s2"}
    later = rewritten(raw, {"scheduled_enqueue_time": datetime(2030, 1, 1, tzinfo=UTC)})
    assert annotated(later)["x-opt-scheduled-enqueue-time"] == Timestamp(1893456000000)
    assert parse_message(both, 0, len(both), "fresh", 128).partition_key == "s2"


def test_an_id_is_replaced_and_the_first_one_remembered() -> None:
    once = rewritten(encode(MESSAGE), {}, message_id="orders:5:1")
    again = decode_message(rewritten(once, {}, message_id="orders:9:1"))
    assert again.message_id == "orders:9:1"
    assert again.application_properties[ORIGINAL_ID] == "m1"
    strange = section(0x73, [UUID(int=7)]) + section(0x75, b"")
    kept = decode_message(rewritten(strange, {}, message_id="x")).application_properties
    assert kept == {ORIGINAL_ID: UUID(int=7)}


def test_the_header_keeps_what_the_sender_said() -> None:
    delivered = section(0x70, [True, UByte(7), UInt(1000), False, UInt(4)]) + section(0x75, b"x")
    again = rewritten(delivered, {}, time_to_live=5)
    assert again == section(0x70, [True, UByte(7), UInt(1000)]) + section(0x75, b"x")
    for changes, life, expected in (
        ({}, 60_000, 60_000),
        ({"time_to_live": 5_000}, 60_000, 5_000),
        ({"time_to_live": None}, 60_000, 0),
        ({}, 1 << 40, 0),
    ):
        made = rewritten(encode(MESSAGE), changes, time_to_live=life)
        assert parse_message(made, 0, len(made), "fresh", 128).ttl == expected


def test_dead_letter_properties_go() -> None:
    dead = compose(b"x", application_properties=dict.fromkeys(DEAD_LETTER_PROPERTIES, "why"))
    assert rewritten(dead, {}, without=DEAD_LETTER_PROPERTIES) == section(0x75, b"x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("subject", "not FIELD=EXPRESSION"),
        ("=1", "not FIELD=EXPRESSION"),
        ("sequence_number=1", "'sequence_number' cannot be set; there are: to, subject"),
        ("properties.=1", "cannot be set"),
    ],
)
def test_what_is_no_edit_is_said(text: str, words: str) -> None:
    with pytest.raises(EditError, match=words):
        FieldEdit.parse(text)


def test_types_and_repetitions_are_checked() -> None:
    assert parse_edits({"Subject": "upper(subject)", "properties.Case": "a = b"}) == (
        FieldEdit("subject", "upper(subject)"),
        FieldEdit("properties.Case", "a = b"),
    )
    with pytest.raises(EditError, match="'subject' is set twice"):
        parse_edits(["subject=a", "SUBJECT=b"])
    check_type(FieldEdit("subject", "null"), "void")
    with pytest.raises(EditError, match="which is a int; it can be string"):
        check_type(FieldEdit("subject", "1"), "int")
    with pytest.raises(EditError, match="decimal"):
        check_type(FieldEdit("properties.x", "1.5"), "decimal(2,1)")
    for changes in ({"time_to_live": 0}, {"body": 1}, {"properties.x": object()}):
        with pytest.raises(EditError):
            rewritten(encode(MESSAGE), changes)
