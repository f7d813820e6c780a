"""Delivery annotations: the lock token, and what the sender set."""

from __future__ import annotations

import uuid

import pytest

from busbar.amqp.codec import DecodeError, decode_value, encode_value
from busbar.amqp.types import Described, Int, Symbol
from busbar.message.content import rewritten, with_enqueued_number
from busbar.message.delivery import STATE_DEFERRED, encode_delivery, encode_peeked
from busbar.message.lock_token import lock_tag, tag_to_uuid
from busbar.message.parsing import parse_message
from busbar.message.sections import find_sections
from busbar.model.errors import MalformedMessage, MessageSizeExceeded
from busbar.model.message import Overlay, Record
from busbar.pages.rows import raw_message
from tests.unit.message.delivered import delivered

NOW = 1767225600000
TOKEN = Symbol("x-opt-lock-token")
STATE = Symbol("x-opt-message-state")
BODY = encode_value(Described(0x75, b"hi"))
ID = encode_value(Described(0x73, ["m"]))


def set_by_sender(pairs: dict[object, object]) -> bytes:
    return encode_value(Described(0x71, pairs))


def record(raw: bytes, n: int = 5, overlay: Overlay | None = None) -> Record:
    content = parse_message(raw, 0, len(raw), "fresh", 128).content
    return Record(n, NOW, 0, 0, 0, len(content), content, overlay)


def sections(raw: bytes) -> list[tuple[int, object]]:
    """In the order in which a receiver reads them."""
    found: list[tuple[int, object]] = []
    pos = 0
    while pos < len(raw):
        value, pos = decode_value(raw, pos, len(raw))
        assert isinstance(value, Described) and isinstance(value.descriptor, int)
        found.append((int(value.descriptor), value.value))
    return found


@pytest.mark.parametrize(
    ("fragment", "n", "nonce"),
    [(0, 1, 0), (7, 5, 99), (0x33221100, 0x554477668899, 0xAABBCCDDEEFF), (2**32 - 1, 2**48 - 1, 2**48 - 1)],
)
def test_a_locked_delivery_has_the_token_that_clients_read_in_its_tag(
    fragment: int, n: int, nonce: int
) -> None:
    tags, payloads = delivered([record(ID + BODY, n)], fragment, 0, nonce, NOW, -1)
    assert tags == [lock_tag(fragment, n, nonce)]
    assert payloads == [encode_delivery(record(ID + BODY, n), n, NOW, -1, tags[0])]
    code, value = sections(payloads[0])[1]
    assert isinstance(value, dict) and code == 0x71
    assert type(value[TOKEN]) is uuid.UUID and value == {TOKEN: tag_to_uuid(tags[0])}


def test_an_unlocked_delivery_has_the_section_without_a_token() -> None:
    _, payloads = delivered([record(ID + BODY)], 7, 0, 0, 0, -1)
    assert [code for code, _ in sections(payloads[0])] == [0x70, 0x71, 0x72, 0x73, 0x75]
    assert sections(payloads[0])[1] == (0x71, {})


@pytest.mark.parametrize("in_front", [True, False], ids=["in front", "behind, as the Python SDK writes them"])
def test_what_the_sender_set_arrives_beside_the_token(in_front: bool) -> None:
    forged = {Symbol("hop"): 1, TOKEN: uuid.uuid4(), Symbol("long"): "x" * 300, 7: None}
    mine = {Symbol("hop"): 1, Symbol("long"): "x" * 300, 7: None}
    sent = set_by_sender(forged) + ID + BODY if in_front else ID + BODY + set_by_sender(forged)
    tags, payloads = delivered([record(sent)], 7, 0, 99, NOW, -1)
    out = sections(payloads[0])
    assert [code for code, _ in out] == [0x70, 0x71, 0x72, 0x73, 0x75]
    assert out[1][1] == {TOKEN: tag_to_uuid(tags[0])} | mine
    assert sections(delivered([record(sent)], 7, 0, 0, 0, -1)[1][0])[1] == (0x71, mine)
    assert sections(encode_peeked(record(sent), 5, -1, 0, False))[1] == (0x71, mine)
    assert 0x71 not in dict(sections(encode_peeked(record(ID + BODY), 5, -1, 0, False)))


def test_a_token_that_a_client_sends_again_is_not_kept() -> None:
    sent = ID + BODY + set_by_sender({TOKEN: uuid.uuid4()})
    assert record(sent).content == record(ID + BODY).content


def test_they_stay_when_the_message_is_changed() -> None:
    footer = encode_value(Described(0x78, {Symbol("f"): 1}))
    sent = record(
        ID + BODY + footer + set_by_sender({Symbol("hop"): 1}),
        overlay={"DeadLetterReason": encode_value("r")},
    )
    assert sections(encode_delivery(sent, 5, 0, -1))[1:] == [
        (0x71, {Symbol("hop"): 1}),
        *sections(encode_delivery(sent, 5, 0, -1))[2:3],
        (0x73, ["m"]),
        (0x74, {"DeadLetterReason": "r"}),
        (0x75, b"hi"),
        (0x78, {Symbol("f"): 1}),
    ]
    content = sent.content
    assert content is not None
    content = with_enqueued_number(content, 3)
    content = rewritten(content, True, {}, {3: encode_value("subject")}, {"a": ("a", encode_value(1))})
    out = sections(encode_delivery(Record(5, NOW, 0, 0, 0, 1, content, None), 5, 0, -1))
    assert out[1] == (0x71, {Symbol("hop"): 1}) and [code for code, _ in out][2:] == [
        0x72,
        0x73,
        0x74,
        0x75,
        0x78,
    ]


def test_they_were_for_one_hop_when_a_message_is_taken_out_of_a_tap() -> None:
    content = record(ID + BODY + set_by_sender({Symbol("hop"): 1})).content
    assert content is not None
    assert raw_message(content) == ID + BODY
    with pytest.raises(DecodeError):
        raw_message(content[:-1])


def test_they_count_as_header() -> None:
    large = set_by_sender({Symbol("a"): "x" * 66_000})
    for sent in (large + ID + BODY, ID + BODY + large):
        with pytest.raises(MessageSizeExceeded):
            record(sent)


@pytest.mark.parametrize("broken", ["005371c1020140", "005371c10402404040"])
def test_what_is_no_pairs_is_refused(broken: str) -> None:
    with pytest.raises(MalformedMessage, match=r"pairs|longer"):
        record(bytes.fromhex(broken) + ID + BODY)
    with pytest.raises(MalformedMessage, match=r"pairs|longer"):
        record(ID + BODY + bytes.fromhex(broken))


def test_a_deferred_message_says_so() -> None:
    tag = lock_tag(7, 5, 99)
    out = dict(sections(encode_delivery(record(ID + BODY), 5, NOW, -1, tag, STATE_DEFERRED)))
    shown = out[0x72]
    assert isinstance(shown, dict)
    assert shown[STATE] == 1 and type(shown[STATE]) is Int
    assert out[0x71] == {TOKEN: tag_to_uuid(tag)}


def test_sections_end_where_late_annotations_begin() -> None:
    raw = ID + BODY + set_by_sender({Symbol("hop"): 1})
    found = find_sections(raw, 0, len(raw))
    assert (found.end, found.whole) == (len(ID + BODY), len(raw))
