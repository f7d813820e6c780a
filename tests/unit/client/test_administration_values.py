"""What the administration client writes and reads: durations, times, addresses, and the same properties everywhere."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from busbar.client import (
    UNLIMITED,
    AdministrationClient,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from busbar.client.administration_descriptions import read_properties, settable, write_properties
from busbar.client.administration_properties import QueueOptions, SubscriptionOptions, TopicOptions
from busbar.client.administration_xml import (
    NotAtomReply,
    read_entry,
    read_error,
    read_feed,
    read_time,
    write_entry,
    write_span,
)
from busbar.client.connection_string import management_address
from busbar.model.duration import read_duration


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(seconds=30), "PT30S"),
        (timedelta(minutes=1), "PT1M"),
        (timedelta(days=14), "P14D"),
        (timedelta(days=1, hours=2, minutes=3, seconds=4.5), "P1DT2H3M4.5S"),
        (timedelta(microseconds=1), "PT0.000001S"),
        (timedelta(0), "PT0S"),
        (timedelta(seconds=-5), "-PT5S"),
        (UNLIMITED, "P10675199DT2H48M5.4775807S"),
        (timedelta.max, "P10675199DT2H48M5.4775807S"),
    ],
)
def test_durations(value: timedelta, text: str) -> None:
    assert write_span(value) == text


@pytest.mark.parametrize("seconds", [0.001, 0.5, 1, 59, 60, 61, 3_599, 3_600, 86_399, 86_400, 90_061.25])
def test_a_duration_is_read_as_it_was_written(seconds: float) -> None:
    assert read_duration(write_span(timedelta(seconds=seconds))) == seconds * 1000


def test_times() -> None:
    moment = datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=UTC)
    assert read_time("2026-05-04T03:02:01.1234567Z") == moment
    assert read_time("2026-05-04T03:02:01.123456") == moment
    assert read_time("2026-05-04T03:02:01Z") == moment.replace(microsecond=0)
    assert read_time("0001-01-01T00:00:00Z") is read_time(None) is None
    with pytest.raises(NotAtomReply, match="yesterday"):
        read_time("yesterday")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (QueueProperties, QueueOptions),
        (TopicProperties, TopicOptions),
        (SubscriptionProperties, SubscriptionOptions),
    ],
)
def test_arguments_objects_and_elements_have_the_same_properties(kind: type[Any], options: type[Any]) -> None:
    assert set(settable(kind)) == set(options.__annotations__)
    assert {each.name for each in fields(kind)} == set(settable(kind)) | {"name", "availability_status"}
    annotations = {each.name: each.type for each in fields(kind)}
    assert {name: annotations[name] for name in options.__annotations__} == {
        name: reference.__forward_arg__ for name, reference in options.__annotations__.items()
    }


def test_an_entity_is_read_as_it_was_written() -> None:
    written = write_properties(
        QueueProperties, {"lock_duration": timedelta(seconds=7), "user_metadata": "a<b"}
    )
    content = read_entry(write_entry(written))
    assert content is not None and content.kind == "QueueDescription"
    found = read_properties(QueueProperties, content)
    assert (found.lock_duration, found.user_metadata) == (timedelta(seconds=7), "a<b")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not xml",
        b"\xff\xfe<\x00",
        b'<!DOCTYPE entry [<!ENTITY a "aaaa">]><entry><title>&a;</title></entry>',
        b"<entry><title>x</title></entry>",
        b"<entry><content/></entry>",
    ],
)
def test_what_is_not_atom_is_refused(body: bytes) -> None:
    with pytest.raises(NotAtomReply):
        read_entry(body)
    with pytest.raises(NotAtomReply):
        read_feed(body)


def test_errors_are_read_without_their_tracking_id() -> None:
    body = b"<Error><Code>409</Code><Detail>SubCode=40900. It is there. TrackingId:x, SystemTracker:y</Detail></Error>"
    assert read_error(body) == (40900, "It is there.")
    assert read_error(b"<Error><Detail>Plain text.</Detail></Error>") == (0, "Plain text.")
    assert read_error(b"<html>") == (0, "")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("Endpoint=sb://name.example/", "https://name.example:443"),
        ("Endpoint=sb://localhost;UseDevelopmentEmulator=true", "http://localhost:5300"),
        ("Endpoint=sb://localhost:5672;UseDevelopmentEmulator=true", "http://localhost:5672"),
        ("Endpoint=https://[::1]:9000", "https://[::1]:9000"),
        ("Endpoint=http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("Endpoint=amqps://h:9000;UseDevelopmentEmulator=true", "https://h:9000"),
        ("Endpoint=amqp://h:9000", "http://h:9000"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    address = management_address(f"{text};SharedAccessKeyName=n;SharedAccessKey=secret")
    assert address.url == url
    assert "secret" not in repr(address)


def test_every_method_of_the_vendor_is_there() -> None:
    management = pytest.importorskip("azure.servicebus.management")
    vendors = {name for name in dir(management.ServiceBusAdministrationClient) if not name.startswith("_")}
    assert vendors <= set(dir(AdministrationClient))
