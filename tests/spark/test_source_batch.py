"""spark.read: what a queue holds, what a tap keeps, and every column of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import Row

from busbar.client import OutgoingMessage, encode
from busbar.spark.schema import EVENTS, MESSAGES
from pyspark_busbar import DefaultSource
from tests.spark.conftest import Namespace, received


def sorted_bodies(rows: list[Row]) -> list[bytes]:
    return sorted(bytes(row.body) for row in rows)


@pytest.mark.req("D1")
def test_every_field_of_a_message_is_a_column(namespace: Namespace, queue: str) -> None:
    message = OutgoingMessage(
        body=b"\x00body",
        message_id="id",
        session_id="session",
        partition_key="session",
        correlation_id="correlation",
        subject="subject",
        content_type="text/plain",
        to="to",
        reply_to="reply",
        reply_to_session_id="reply-session",
        time_to_live=3_600_000,
        application_properties={"word": "a", "number": 5, "yes": True, "half": 0.5},
    )
    with namespace.factory.sender(queue) as sender:
        sender.send([encode(message)])
    frame = namespace.read(queue)
    assert frame.schema.fieldNames() == MESSAGES.fieldNames()
    (row,) = frame.collect()
    assert (row.entity, row.fragment, row.sequence_number) == (queue, 0, 1)
    assert (row.message_id, row.session_id, row.partition_key) == ("id", "session", "session")
    assert (row.correlation_id, row.subject, row.content_type) == ("correlation", "subject", "text/plain")
    assert (row.to, row.reply_to, row.reply_to_session_id) == ("to", "reply", "reply-session")
    assert (row.delivery_count, row.state, row.body_type) == (0, "active", "data")
    assert bytes(row.body) == b"\x00body"
    assert (row.expires_at - row.enqueued_time).total_seconds() == 3600
    assert {name: value.type for name, value in row.properties.items()} == {
        "word": "string",
        "number": "long",
        "yes": "boolean",
        "half": "double",
    }
    assert row.properties["word"].string == "a"
    assert row.properties["number"].long == 5
    assert row.properties["yes"].boolean is True
    assert row.properties["half"].double == 0.5
    assert row.annotations["x-opt-partition-key"].string == "session"
    # What is sent again is the same message.
    with namespace.factory.sender(queue) as sender:
        sender.send([bytes(row.raw)])
    first, second = namespace.read(queue).orderBy("sequence_number").collect()
    changed = {"sequence_number", "enqueued_time", "expires_at"}
    assert {k: v for k, v in first.asDict().items() if k not in changed} == {
        k: v for k, v in second.asDict().items() if k not in changed
    }


@pytest.mark.req("D1")
def test_a_partitioned_queue_is_read_whole_and_in_sql(namespace: Namespace, wide: str) -> None:
    bodies = [f"body {number}".encode() for number in range(500)]
    namespace.send(wide, bodies, keyed=True)
    frame = namespace.read(wide, maxPartitions="3")
    assert sorted_bodies(frame.collect()) == sorted(bodies)
    frame.createOrReplaceTempView("messages")
    (found,) = namespace.spark.sql(
        "SELECT count(*) AS messages, count(DISTINCT fragment) AS fragments, "
        "count(DISTINCT sequence_number) AS numbers FROM messages"
    ).collect()
    assert (found.messages, found.numbers) == (500, 500)
    assert found.fragments > 1


def test_a_tap_keeps_what_receivers_are_done_with(namespace: Namespace, queue: str) -> None:
    namespace.taps(queue).create("kept", from_earliest=True)
    bodies = [f"{number}".encode() for number in range(20)]
    namespace.send(queue, bodies)
    namespace.receive(queue, 15)
    assert namespace.read(queue).count() == 5
    rows = namespace.read(queue, tap="kept").orderBy("sequence_number").collect()
    assert [bytes(row.body) for row in rows] == bodies
    assert [row.state for row in rows] == ["done"] * 15 + ["active"] * 5
    namespace.taps(queue).advance("kept", "", {0: 18})
    assert namespace.read(queue, tap="kept").count() == 2


def test_ranges_of_numbers_and_times(namespace: Namespace, queue: str) -> None:
    namespace.send(queue, [f"early {number}".encode() for number in range(10)])
    rows = namespace.read(queue, startingPosition='{"0": 3}', endingPosition='{"0": 6}').collect()
    assert [row.sequence_number for row in rows] == [3, 4, 5]
    middle = datetime.now(UTC).isoformat()
    namespace.send(queue, [f"late {number}".encode() for number in range(5)])
    late = namespace.read(queue, startingPosition=middle)
    assert sorted_bodies(late.collect()) == [f"late {number}".encode() for number in range(5)]
    assert namespace.read(queue, endingPosition=middle).count() == 10
    assert namespace.read(queue, startingPosition="latest").count() == 0


def test_dead_letters_say_why(namespace: Namespace, queue: str) -> None:
    namespace.send(queue, [b"a", b"b", b"c"])
    with namespace.factory.receiver(queue) as receiver:
        first = received(receiver, 1)
        receiver.dead_letter(first, "TooSmall", "one letter only")
    (row,) = namespace.read(queue, subQueue="deadletter").collect()
    assert (row.dead_letter_reason, row.dead_letter_description) == ("TooSmall", "one letter only")
    assert (row.state, row.dead_letter_number) == ("dead-lettered", 1)
    assert row.properties["DeadLetterReason"].string == "TooSmall"


def test_bodies_can_stay_behind(namespace: Namespace, queue: str) -> None:
    namespace.send(queue, [b"a"])
    (row,) = namespace.read(queue, includeBody="false").collect()
    assert (row.body, row.raw, row.body_type, row.message_id) == (None, None, "data", "a")


def test_events(namespace: Namespace, queue: str) -> None:
    namespace.taps(queue).create("history", events=True, from_earliest=True)
    namespace.send(queue, [b"a", b"b"])
    namespace.receive(queue, 1)
    with namespace.factory.receiver(queue) as receiver:
        receiver.dead_letter(received(receiver, 1), "why")
    frame = namespace.read(queue, tap="history", stream="events")
    assert frame.schema.fieldNames() == EVENTS.fieldNames()
    rows = frame.orderBy("position").collect()
    assert [(row.sequence_number, row.outcome, row.reason) for row in rows] == [
        (1, "completed", None),
        (2, "dead-lettered", "why"),
    ]


def test_an_error_is_one_of_spark(namespace: Namespace) -> None:
    with pytest.raises(PySparkException) as caught:
        namespace.read("nowhere").collect()
    assert "[BUSBAR_NOT_FOUND] The entity 'nowhere' (option 'entity')" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tap": "none"}, "[BUSBAR_OPTION] The option 'tap' names 'none'"),
        ({"maxPartition": "2"}, "Did you mean 'maxPartitions'?"),
        ({"stream": "events"}, "The option 'tap' is missing"),
        ({"startingPosition": '{"7": 1}'}, "names fragments [7]"),
        ({"connectionStringFile": "/nowhere/secret"}, "cannot read"),
    ],
)
def test_mistakes_are_named(namespace: Namespace, options: dict[str, str], said: str) -> None:
    """As Spark plans a read, without Spark."""
    source = DefaultSource(namespace.options("queue0") | options)
    with pytest.raises(PySparkException) as caught:
        source.reader(source.schema()).partitions()
    assert said in str(caught.value)


def test_a_key_without_the_right_is_refused(namespace: Namespace) -> None:
    wrong = namespace.secret.with_name("wrong")
    wrong.write_text(namespace.server.connection_string.replace(namespace.server.key, "c29tZXRoaW5nIGVsc2U="))
    source = DefaultSource(namespace.options("queue0", connectionStringFile=str(wrong)))
    with pytest.raises(PySparkException, match="BUSBAR_UNAUTHORIZED"):
        source.reader(source.schema()).partitions()


def test_a_certificate_of_its_own(namespace: Namespace, queue: str, tmp_path: Path) -> None:
    """Over TLS, in the driver and in the workers, with the authority that `trustFile` names."""
    secret = tmp_path / "connection"
    secret.write_text(namespace.server.connection_string.replace("UseDevelopmentEmulator=true", ""))
    options = namespace.options(queue, connectionStringFile=str(secret))
    trusted = options | {"trustFile": str(namespace.server.data / "tls" / "ca.pem")}
    frame = namespace.spark.createDataFrame([("first", b"body")], "message_id string, body binary")
    frame.write.format("busbar").options(**trusted).mode("append").save()
    rows = (
        namespace.spark.read.format("busbar").options(**trusted).load().select("message_id", "body").collect()
    )
    assert [(row.message_id, bytes(row.body)) for row in rows] == [("first", b"body")]
    for given, said in (
        (options | {"waitForBroker": "1s"}, "not trusted"),
        (options | {"trustFile": "/nowhere/ca.pem"}, "The option 'trustFile' names '/nowhere/ca.pem'"),
    ):
        source = DefaultSource(given)
        with pytest.raises(PySparkException, match=said):
            source.reader(source.schema()).partitions()
