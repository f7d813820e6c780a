"""Messages written from their fields are those that every reader of this project reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.amqp.codec import EncodeError
from busbar.amqp.types import Timestamp
from busbar.message.compose import compose, has_message_id, pack_batch, with_message_id
from busbar.message.decoded import decode_message
from busbar.message.parsing import parse_batch, parse_message
from busbar.model.errors import MalformedMessage
from busbar.model.message import Draft

texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


def parsed(payload: bytes) -> Draft:
    return parse_message(payload, 0, len(payload), "fresh", 1000, 65536)


@given(
    st.binary(max_size=600),
    st.lists(texts, min_size=9, max_size=9),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 42),
    st.none() | st.dictionaries(st.text("abc", max_size=5), st.integers(-5, 5) | st.text("xyz", max_size=5)),
)
def test_all_fields_come_back(
    body: bytes, fields: list[str | None], ttl: int, scheduled: int, properties: dict[str, object] | None
) -> None:
    one, two, three, four, five, six, seven, eight, nine = fields
    payload = compose(
        body,
        one,
        two,
        three,
        four,
        five,
        six,
        seven,
        eight,
        nine,
        ttl,
        scheduled,
        properties,
        1_700_000_000_000,
    )
    message = decode_message(payload)
    assert message.data == body
    assert [
        message.message_id,
        message.group_id,
        message.correlation_id,
        message.subject,
        message.content_type,
        message.to,
        message.reply_to,
        message.reply_to_group_id,
    ] == [fields[0], fields[1], *fields[3:]]
    assert message.application_properties == (properties or {})
    draft = parsed(payload)
    assert (draft.message_id, draft.session_id) == (fields[0] or "fresh", fields[1])
    assert (draft.partition_key, draft.ttl, draft.scheduled) == (fields[2], ttl, scheduled)


@pytest.mark.parametrize("ttl", [0, 5_000, 1 << 40])
def test_a_forced_message_is_durable_in_its_header_whatever_its_time_to_live(ttl: int) -> None:
    for forced in (False, True):
        payload = compose(b"x", "id", time_to_live=ttl, created=1_700_000_000_000, forced=forced)
        draft = parsed(payload)
        assert draft.forced is forced
        assert draft.ttl == ttl
        assert decode_message(payload).data == b"x"


def test_a_message_that_says_nothing() -> None:
    assert compose(b"") == b"\x00\x53\x75\xa0\x00"


def test_values_that_amqp_cannot_carry() -> None:
    with pytest.raises(EncodeError, match="lone surrogate"):
        compose(b"", "\ud800")
    with pytest.raises(EncodeError, match="needs the time of creation"):
        compose(b"", time_to_live=1 << 33)
    with pytest.raises(EncodeError, match="no AMQP encoding"):
        compose(b"", application_properties={"a": object()})
    sent = compose(b"", application_properties={"at": Timestamp(5)})
    assert type(decode_message(sent).application_properties["at"]) is Timestamp


def test_batches_are_packed_up_to_their_limit() -> None:
    messages = [compose(b"x" * 92, str(number)) for number in range(10)]  # 100 bytes and the properties
    each = len(messages[0]) + 8
    packed, stop = pack_batch(messages, 0, 10, 3 * each)
    assert (len(packed), stop) == (3 * each, 3)
    assert [draft.message_id for draft in parse_batch(packed, str, 128, 65536)] == ["0", "1", "2"]
    packed, stop = pack_batch(messages, 8, 10, 1)
    assert stop == 9, "at least one"
    assert pack_batch(messages, 3, 5, 10_000)[1] == 5


@given(
    st.binary(max_size=300),
    st.lists(texts, min_size=9, max_size=9),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
)
def test_another_id_changes_nothing_else(body: bytes, fields: list[str | None], other: str) -> None:
    behind = {"time_to_live": 5000, "application_properties": {"a": 1}}
    payload = compose(body, *fields, **behind)  # type: ignore[arg-type,misc]
    assert with_message_id(payload, other) == compose(body, other, *fields[1:], **behind)  # type: ignore[arg-type,misc]
    assert has_message_id(payload) == bool(fields[0])
    assert has_message_id(with_message_id(payload, other))


def test_a_message_without_properties_gets_an_id() -> None:
    payload = b"\x00\x53\x75\xa0\x01x"
    assert not has_message_id(payload)
    assert decode_message(with_message_id(payload, "id")).message_id == "id"
    with pytest.raises(MalformedMessage):
        has_message_id(b"\x00\x53")
