"""BrokerProperties, dates and durations as clients write them, and what is wrong with them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.gateway.http.runtime_dates import (
    UNLIMITED,
    date_text,
    read_date,
    read_rfc_1123,
    read_time_span,
    seconds_text,
)
from busbar.gateway.http.runtime_properties import BrokerProperties, parse_broker_properties
from busbar.model.errors import ArgumentError, ArgumentOutOfRange, BusbarError

MOMENT = int(datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC).timestamp() * 1000)


def parse(**properties: object) -> BrokerProperties:
    return parse_broker_properties(json.dumps(properties))


def test_every_key_of_the_reference() -> None:
    assert parse(
        CorrelationId="c",
        ForcePersistence=True,
        Label="l",
        MessageId="m",
        PartitionKey="s",
        ReplyTo="r",
        ReplyToSessionId="rs",
        ScheduledEnqueueTimeUtc="Sun, 06 Nov 1994 08:49:37 GMT",
        SessionId="s",
        TimeToLive=90.5,
        To="t",
        ViaPartitionKey="v",
    ) == BrokerProperties(
        message_id="m",
        correlation_id="c",
        label="l",
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
        session_id="s",
        partition_key="s",
        via_partition_key="v",
        ttl=90_500,
        scheduled=MOMENT,
        force_persistence=True,
    )


@pytest.mark.parametrize(
    "header", [None, "", "  ", "{}", "null", '{"MessageId": null, "Unknown": {"a": []}}']
)
def test_nothing_is_set(header: str | None) -> None:
    assert parse_broker_properties(header) == BrokerProperties()


def test_keys_have_no_case_and_numbers_are_texts_where_a_text_is_expected() -> None:
    assert parse(messageid=12, LABEL=1.5) == BrokerProperties(message_id="12", label="1.5")


@pytest.mark.parametrize(
    "header",
    [
        "{",
        "[]",
        '"text"',
        "7",
        "true",
        "{'MessageId': 'x'}",
        '{"MessageId": NaN}',
        '{"MessageId": "\\ud800"}',
        '{"MessageId": "\udcff"}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"MessageId": ["x"]}',
        '{"MessageId": true}',
        '{"TimeToLive": "soon"}',
        '{"TimeToLive": true}',
        '{"TimeToLive": []}',
        '{"ScheduledEnqueueTimeUtc": 5}',
        '{"ScheduledEnqueueTimeUtc": "tomorrow"}',
        '{"ScheduledEnqueueTimeUtc": "' + "1" * 10_000 + '"}',
        '{"ForcePersistence": "yes"}',
        '{"SessionId": "a", "PartitionKey": "b"}',
    ],
)
def test_what_is_refused(header: str) -> None:
    with pytest.raises(ArgumentError):
        parse_broker_properties(header)


@pytest.mark.parametrize("ttl", [0, -1, "-00:00:01", "00:00:00", -1e300])
def test_a_time_to_live_is_above_zero(ttl: object) -> None:
    with pytest.raises(ArgumentOutOfRange):
        parse(TimeToLive=ttl)


@pytest.mark.parametrize(
    ("ttl", "expected"),
    [
        (40, 40_000),
        (0.0001, 1),
        ("00:00:40", 40_000),
        ("1.02:03:04.5", 93_784_500),
        (922337203685.4775, 0),
        (1e300, 0),
        (10**30, 0),
        ("10675199.02:48:05.4775807", 0),
    ],
)
def test_a_time_to_live_in_all_its_forms(ttl: object, expected: int) -> None:
    assert parse(TimeToLive=ttl).ttl == expected
    assert parse(TimeToLiveTimeSpan=ttl).ttl == expected


@given(st.text())
def test_any_text_is_properties_or_an_error_of_ours(text: str) -> None:
    try:
        parse_broker_properties(text)
    except BusbarError:
        pass


@given(
    st.dictionaries(
        st.sampled_from(["TimeToLive", "MessageId", "ScheduledEnqueueTimeUtc", "To"]), st.floats()
    )
)
def test_any_number_is_taken_or_refused(values: dict[str, float]) -> None:
    try:
        parse(**values)
    except BusbarError:
        pass


def test_dates_are_written_as_rfc_1123() -> None:
    assert date_text(MOMENT + 999) == "Sun, 06 Nov 1994 08:49:37 GMT"
    assert date_text(2**63) == "Fri, 31 Dec 9999 23:59:59 GMT"
    assert date_text(-(2**63)) == "Mon, 01 Jan 0001 00:00:00 GMT"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", MOMENT),
        ("1994-11-06T08:49:37Z", MOMENT),
        ("1994-11-06T08:49:37", MOMENT),
        ("1994-11-06T09:49:37.5000000+01:00", MOMENT + 500),
        ("Sun, 31 Feb 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37", None),
        ("", None),
    ],
)
def test_dates_are_read(text: str, expected: int | None) -> None:
    assert read_date(text) == expected


@given(st.integers(-62_135_596_800, 253_402_300_799))
def test_a_date_comes_back_to_the_second(seconds: int) -> None:
    assert read_rfc_1123(date_text(seconds * 1000)) == seconds * 1000


@given(st.text(alphabet="0123456789.:-", max_size=40))
def test_any_text_is_a_time_span_or_none(text: str) -> None:
    span = read_time_span(text)
    assert span is None or abs(span) < 10 * UNLIMITED


def test_seconds_are_whole_if_they_can_be() -> None:
    assert (seconds_text(40_000), seconds_text(1_500)) == (40, 1.5)
