"""Selected messages of a page: what a condition leaves is what comparing decoded messages leaves, trimmed or whole."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Byte, Described, Float32, Int, Symbol, ULong
from busbar.message.decoded import DecodedMessage, encode_message
from busbar.message.parsing import parse_message
from busbar.model.errors import InternalError
from busbar.model.message import ACTIVE, DEAD, KEPT
from busbar.pages.rows import decode_messages, encode_messages, properties_of, raw_message
from busbar.pages.selection import SESSION, SUBJECT, FieldCondition, PageSelector, PropertyCondition

LATEST = (1 << 63) - 1


@dataclass(frozen=True)
class Sent:
    """A message of a page."""

    session: str | None = None
    subject: str | None = None
    region: object = None
    body: bytes | None = b"body"
    value: object = None
    lane: int = ACTIVE
    changed: object = None
    """A region that was set after the send."""

    @property
    def content(self) -> bytes:
        properties = {} if self.region is None else {"region": self.region}
        message = DecodedMessage(data=self.body, value=self.value, application_properties=properties)
        message.group_id = self.session
        message.subject = self.subject
        payload = encode_message(message)
        return parse_message(payload, 0, len(payload), "fresh", 128).content


def selected(
    sent: list[Sent], pieces: int, **conditions: object
) -> list[tuple[int, bytes, dict[str, object]]]:
    """The number, content and changed properties of each message that is left; their contents come in so many pieces."""
    contents = [each.content for each in sent]
    heads = b"".join(
        struct.pack(">qqqqIBII", n, 0, 1_000 * n, 0, 0, each.lane, 0, len(content))
        for n, (each, content) in enumerate(zip(sent, contents, strict=True), 1)
    )
    split = [b"".join(contents[at : at + pieces]) for at in range(0, len(contents), pieces)]
    overlays = {
        n: {"region": encode_value(each.changed)}
        for n, each in enumerate(sent, 1)
        if each.changed is not None
    }
    given: dict[str, object] = {
        "bodies": True,
        "application": True,
        "lanes": 0,
        "since": 0,
        "until": LATEST,
        "fields": [],
        "properties": [],
    }
    selector = PageSelector(**(given | conditions))  # type: ignore[arg-type]
    selector.select(heads, split, overlays)
    rows = b"".join(
        encode_messages(selector.heads(), selector.contents(), overlays if selector.application else {})
    )
    found = [(row.n, row.content, properties_of(row.overlay)) for row in decode_messages(rows)]
    assert len(found) == selector.count
    return found


def numbers(sent: list[Sent], **conditions: object) -> list[int]:
    return [n for n, _, _ in selected(sent, 2, **conditions)]


def region(*texts: str, absent: bool = False) -> PropertyCondition:
    return PropertyCondition("region", {text.encode() for text in texts}, set(), set(), 0, absent)


SENT = st.builds(
    Sent,
    session=st.sampled_from([None, "a", "b"]),
    subject=st.sampled_from([None, "x", ""]),
    region=st.sampled_from([None, "eu", "us", Symbol("eu"), 5, True]),
    body=st.sampled_from([b"", b"body" * 100]),
    lane=st.sampled_from([ACTIVE, DEAD, KEPT]),
    changed=st.sampled_from([None, None, "us"]),
)


@given(st.lists(SENT, max_size=12), st.integers(1, 12), st.booleans(), st.booleans(), st.booleans())
def test_all_conditions_hold_for_what_is_left(
    sent: list[Sent], pieces: int, by_session: bool, by_region: bool, bodies: bool
) -> None:
    found = selected(
        sent,
        pieces,
        bodies=bodies,
        since=2_000,
        lanes=1 << ACTIVE | 1 << KEPT,
        fields=[FieldCondition(SESSION, {b"a"})] if by_session else [],
        properties=[region("eu")] if by_region else [],
    )
    assert [n for n, _, _ in found] == [
        n
        for n, each in enumerate(sent, 1)
        if n >= 2
        and each.lane != DEAD
        and (not by_session or each.session == "a")
        and (not by_region or (each.region if each.changed is None else each.changed) == "eu")
    ]
    for n, content, changed in found:
        whole = sent[n - 1]
        assert changed == ({} if whole.changed is None else {"region": whole.changed})
        expected = whole if bodies else Sent(whole.session, whole.subject, whole.region, b"")
        assert raw_message(content) == raw_message(expected.content)


def test_every_kind_of_value() -> None:
    kinds = [
        Sent(region=value) for value in ("7", 7, Int(7), Byte(7), ULong(7), 7.0, Float32(7.0), True, False)
    ]
    kinds.append(Sent())

    def found(*parts: object) -> list[int]:
        sets = [set(part) if isinstance(part, list) else part for part in parts]
        return numbers(kinds, properties=[PropertyCondition("region", *sets)])  # type: ignore[arg-type]

    assert found([b"7"], [], [], 0, False) == [1]
    assert found([], [7], [7.0], 0, False) == [2, 3, 4, 5, 6, 7]
    assert found([], [], [], 2, False) == [8]
    assert found([], [], [], 1, False) == [9]
    assert found([], [], [], 0, True) == [10]
    assert found([], [8], [8.0], 0, False) == []


def test_fields_are_texts() -> None:
    sent = [Sent(subject="x"), Sent(subject=""), Sent(session="x"), Sent()]
    assert numbers(sent, fields=[FieldCondition(SUBJECT, {b"x", b""})]) == [1, 2]
    assert numbers(sent, fields=[FieldCondition(SESSION, {b"x"})]) == [3]


@pytest.mark.parametrize(
    ("body", "value", "empty"),
    [
        (b"bytes", None, b"\x00\x53\x75\xa0\x00"),
        (None, "text", b"\x00\x53\x77\xa1\x00"),
        (None, b"bytes", b"\x00\x53\x77\xa0\x00"),
        (None, [1, 2], b"\x00\x53\x77\x40"),
    ],
)
def test_an_empty_body_has_the_kind_of_the_body(body: bytes | None, value: object, empty: bytes) -> None:
    sent = Sent(region="eu", body=body, value=value)
    ((_, content, _),) = selected([sent], 1, bodies=False)
    assert content.endswith(empty) and b"region" in content
    ((_, content, _),) = selected([sent], 1, bodies=False, application=False)
    assert content.endswith(empty) and b"region" not in content
    ((_, content, _),) = selected([sent], 1, application=False)
    assert raw_message(content) == raw_message(Sent(body=body, value=value).content)


def test_delivery_annotations_are_left_out_with_the_body() -> None:
    behind = encode_value(Described(ULong(0x71), {Symbol("key"): True}))
    payload = encode_message(DecodedMessage(data=b"body")) + behind
    content = parse_message(payload, 0, len(payload), "fresh", 128).content
    assert content[0] & 8
    head = struct.pack(">qqqqIBII", 1, 0, 0, 0, 0, 0, 0, len(content))
    selector = PageSelector(False, True, 0, 0, LATEST, [], [])
    selector.select(head, [content], {})
    (trimmed,) = selector.contents()
    assert not trimmed[0] & 8
    assert raw_message(trimmed).endswith(b"\x00\x53\x75\xa0\x00")


def test_contents_that_do_not_fit_their_heads_are_refused() -> None:
    content = Sent().content
    for size in (len(content) + 1, 4):
        head = struct.pack(">qqqqIBII", 1, 0, 0, 0, 0, 0, 0, size)
        with pytest.raises(InternalError):
            PageSelector(True, True, 0, 0, LATEST, [], []).select(head, [content], {})


def test_conditions_on_several_properties_all_hold() -> None:
    sent = [Sent(region="eu"), Sent(region="us"), Sent()]
    other = PropertyCondition("other", {b"x"}, set(), set(), 0, True)
    assert numbers(sent, properties=[region("eu", "us"), other]) == [1, 2]
    assert numbers(sent, properties=[other, region(absent=True)]) == [3]
    present = PropertyCondition("other", {b"x"}, set(), set(), 0, False)
    assert numbers(sent, properties=[region("eu"), present]) == []
