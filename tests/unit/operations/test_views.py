"""A message as plain values: every field, hostile bodies, and bytes that are no message."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Array, Described, Symbol, Timestamp, UInt, ULong
from busbar.client.message import OutgoingMessage, encode
from busbar.client.received import PeekedMessage
from busbar.operations.triage import DeadLetterSelection
from busbar.operations.views import BodyForm, as_json, body_text, hex_text, plain, text_of, time_text, view_of

NOON = 1_769_860_800_000


def section(code: int, value: object) -> bytes:
    return encode_value(Described(ULong(code), value))


def peeked(message: bytes, **annotations: object) -> PeekedMessage:
    """As the broker writes it: header and annotations in front."""
    header = section(0x70, [False, None, UInt(60_000), None, UInt(3)])
    known = {Symbol(f"x-opt-{name.replace('_', '-')}"): value for name, value in annotations.items()}
    return PeekedMessage(header + section(0x72, known) + message)


def bare(message: OutgoingMessage) -> bytes:
    encoded = PeekedMessage(encode(message))
    return encoded.payload[encoded.sections.properties : encoded.sections.end]


def test_every_field_is_shown() -> None:
    sent = OutgoingMessage(
        b'{"a": 1}',
        message_id="m",
        session_id="s",
        correlation_id="c",
        subject="subject",
        content_type="application/json",
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
        application_properties={"n": 5, "DeadLetterReason": "Broken", "DeadLetterErrorDescription": "why"},
    )
    view = view_of(
        peeked(
            bare(sent),
            sequence_number=7,
            enqueued_time=Timestamp(NOON),
            locked_until=Timestamp(NOON + 5),
            message_state=1,
            partition_key="k",
            deadletter_source="orders",
            via_partition_key="other",
        )
    )
    assert (view.sequence_number, view.state, view.delivery_count) == (7, "Deferred", 3)
    assert (view.enqueued, view.locked_until, view.time_to_live) == (NOON, NOON + 5, 60_000)
    assert view.expires == 0  # in a dead-letter queue nothing expires
    assert (view.message_id, view.session_id, view.partition_key) == ("m", "s", "k")
    assert (view.correlation_id, view.subject, view.content_type) == ("c", "subject", "application/json")
    assert (view.to, view.reply_to, view.reply_to_session_id) == ("t", "r", "rs")
    assert (view.dead_letter_reason, view.dead_letter_description) == ("Broken", "why")
    assert view.dead_letter_source == "orders"
    assert view.properties == {"n": 5, "DeadLetterReason": "Broken", "DeadLetterErrorDescription": "why"}
    assert view.annotations == {"x-opt-via-partition-key": "other"}
    shown = as_json(view)
    assert shown["lockedUntilUtc"] == "2026-01-31T12:00:00.005Z" and shown["expiresAtUtc"] is None
    assert json.loads(json.dumps(shown))["body"] == '{"a": 1}'


def test_a_message_expires_its_time_to_live_after_it_was_enqueued() -> None:
    view = view_of(peeked(bare(OutgoingMessage(b"x")), enqueued_time=Timestamp(NOON)))
    assert view.expires == NOON + 60_000


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (section(0x77, "text"), "value", "text"),
        (section(0x77, {"k": [1, None, True]}), "value", '{"k": [1, null, true]}'),
        (section(0x77, None), "value", ""),
        (section(0x77, b"\x00\x01"), "value", None),
        (section(0x76, [1, "two"]) + section(0x76, [3]), "sequence", '[[1, "two"], [3]]'),
        (section(0x75, b"one ") + section(0x75, b"two"), "data", "one two"),
    ],
)
def test_bodies_of_every_kind(body: bytes, kind: str, text: str | None) -> None:
    view = view_of(peeked(section(0x73, ["m"]) + body))
    assert (view.body_kind, text_of(view.body)) == (kind, text)


def test_a_message_that_cannot_be_decoded_is_shown_with_the_reason() -> None:
    wrong = peeked(section(0x74, {5: "a number is no name"}) + section(0x75, b"x"), sequence_number=9)
    view = view_of(wrong)
    assert view.sequence_number == 9 and "application property" in view.problem
    assert view.body == wrong.payload and as_json(view)["problem"] == view.problem


def test_values_of_amqp_as_values_of_json() -> None:
    uuid = UUID(int=5)
    values = [
        Timestamp(NOON),
        uuid,
        b"\x00",
        Array(0x81, [1, 2]),
        {Symbol("k"): [None]},
        Described(Symbol("d"), 1),
    ]
    assert [plain(value) for value in values] == [
        "2026-01-31T12:00:00.000Z",
        str(uuid),
        "AA==",
        [1, 2],
        {"k": [None]},
        1,
    ]
    assert plain(float("nan")) == "nan" and plain(float("inf")) == "inf" and plain(1.5) == 1.5
    assert json.dumps([plain(UInt(5)), plain(Symbol("s")), plain(True)]) == '[5, "s", true]'


def test_times() -> None:
    assert time_text(0) == "" and time_text(NOON) == "2026-01-31T12:00:00.000Z"
    assert time_text(1 << 62) == str(1 << 62) and time_text(-5) == "-5"


@pytest.mark.parametrize(
    ("form", "body", "shown"),
    [
        (BodyForm.AUTO, b'{"b":[1,{}],"a":"x"}', '{\n  "b": [\n    1,\n    {}\n  ],\n  "a": "x"\n}'),
        (BodyForm.JSON, b"[]", "[]"),
        (BodyForm.JSON, b"[1.10, 12345678901234567890.5]", "[\n  1.10,\n  12345678901234567890.5\n]"),
        (BodyForm.JSON, b'{"k": "a,\\"}b", "k": 2}', '{\n  "k": "a,\\"}b",\n  "k": 2\n}'),
        (BodyForm.JSON, b"[NaN]", "[\n  NaN\n]"),
        (BodyForm.AUTO, b"{no json", "{no json"),
        (BodyForm.AUTO, b"5", "5"),
        (BodyForm.AUTO, b"\xff\x00A", "00000000  ff 00 41" + " " * 41 + "..A"),
        (BodyForm.TEXT, b"\xffA", "\\xffA"),
        (BodyForm.JSON, b"\xffA", "\\xffA"),
        (BodyForm.TEXT, b'{"a":1}', '{"a":1}'),
        (BodyForm.AUTO, b"[" * 100_000, "[" * 100_000),
        (BodyForm.HEX, b"", ""),
    ],
)  # fmt: skip
def test_forms_of_a_body(form: BodyForm, body: bytes, shown: str) -> None:
    assert body_text(body, form) == shown


def test_hexadecimal_digits_in_lines_of_sixteen() -> None:
    lines = hex_text(bytes(range(65, 65 + 20))).splitlines()
    assert lines[0].endswith("ABCDEFGHIJKLMNOP") and lines[1].startswith("00000010  51 52 53 54")
    assert all(len(line) <= 80 for line in lines)


def test_a_selection_by_reason_has_messages_without_a_reason_only_if_it_says_so() -> None:
    message = peeked(bare(OutgoingMessage(b"x")), sequence_number=5)
    assert DeadLetterSelection(numbers=frozenset({5})).has(message)
    assert not DeadLetterSelection(numbers=frozenset({6})).has(message)
    assert not DeadLetterSelection(reasons=frozenset({"Broken"})).has(message)
    assert DeadLetterSelection(reasons=frozenset({""})).has(message)
    assert DeadLetterSelection(everything=True).has(message)
