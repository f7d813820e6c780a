"""One read of several entities: by name and by pattern, in batches and in streams that entities join."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from pyspark.errors import PySparkException

from busbar.spark import entity_discovery
from busbar.spark.errors import SourceError
from pyspark_busbar import DefaultSource
from tests.spark.conftest import Collected, Namespace, received, run_now
from tests.spark.stepping import Checkpoint, Stepper

_numbers = itertools.count()


class Shop:
    """Queues below a path of their own, and a topic with a subscription."""

    def __init__(self, namespace: Namespace, *queues: str) -> None:
        self.path = f"shop{next(_numbers)}"
        self._namespace = namespace
        for queue in queues:
            self.add(queue)

    def _administration(self) -> ServiceBusAdministrationClient:
        server = self._namespace.server
        return ServiceBusAdministrationClient.from_connection_string(
            server.connection_string, connection_verify=str(server.data / "tls" / "ca.pem")
        )

    def add(self, queue: str, **options: Any) -> str:
        with self._administration() as administration:
            administration.create_queue(f"{self.path}/{queue}", **options)
        return f"{self.path}/{queue}"

    def add_topic(self) -> str:
        with self._administration() as administration:
            administration.create_topic(f"{self.path}/events")
            administration.create_subscription(f"{self.path}/events", "audit")
        return f"{self.path}/events"

    def remove(self, queue: str) -> None:
        with self._administration() as administration:
            administration.delete_queue(f"{self.path}/{queue}")

    def send(self, queue: str, *bodies: bytes) -> None:
        self._namespace.send(f"{self.path}/{queue}", bodies)


def options(namespace: Namespace, **more: str) -> dict[str, str]:
    return {"connectionStringFile": str(namespace.secret), "waitForBroker": "20s", **more}


def bodies(rows: list[dict[str, Any]]) -> list[tuple[str, bytes]]:
    return sorted((row["entity"].partition("/")[2], row["body"]) for row in rows)


@pytest.fixture
def listed_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entities are listed for every batch."""
    monkeypatch.setattr(entity_discovery, "REFRESH_SECONDS", 0.0)


@pytest.mark.req("D1")
def test_queues_subscriptions_and_dead_letters_in_one_batch(namespace: Namespace) -> None:
    shop = Shop(namespace, "orders")
    shop.add("bills", enable_partitioning=True)
    topic = shop.add_topic()
    shop.send("orders", b"a", b"b")
    shop.send("bills", b"c")
    shop.send("events", b"d")
    with namespace.factory.receiver(f"{shop.path}/orders") as receiver:
        receiver.dead_letter(received(receiver, 1), "why")
    names = f"{shop.path}/ORDERS,{shop.path}/orders/$DeadLetterQueue,{shop.path}/bills,{topic}/Subscriptions/audit"
    frame = namespace.spark.read.format("busbar").options(**options(namespace, entities=names)).load()
    rows = frame.select("entity", "sub_queue", "body").collect()
    assert sorted((row.entity, row.sub_queue, bytes(row.body)) for row in rows) == [
        (f"{shop.path}/bills", "", b"c"),
        (f"{shop.path}/events/Subscriptions/audit", "", b"d"),
        (f"{shop.path}/orders", "", b"b"),
        (f"{shop.path}/orders", "deadletter", b"a"),
    ]


def planned(namespace: Namespace, **more: str) -> list[str]:
    """The entities that the tasks of a batch read, as Spark plans it."""
    source = DefaultSource(options(namespace, **more))
    partitions: Any = source.reader(source.schema()).partitions()
    return sorted(
        f"{part.entity.partition('/')[2]}{'!' * bool(part.sub_queue)}"
        for each in partitions
        for part in each.parts
    )


def test_a_pattern_selects_queues_subscriptions_and_dead_letters(namespace: Namespace) -> None:
    shop = Shop(namespace, "orders", "bills", "eu/orders")
    shop.add_topic()
    for queue in ("orders", "bills", "eu/orders", "events"):
        shop.send(queue, b"a", b"b")
    with namespace.factory.receiver(f"{shop.path}/bills") as receiver:
        receiver.dead_letter(received(receiver, 1), "why")
    assert planned(namespace, entityPattern=f"{shop.path}/*") == ["bills", "orders"]
    assert planned(namespace, entityPattern=f"{shop.path}/**") == [
        "bills",
        "eu/orders",
        "events/Subscriptions/audit",
        "orders",
    ]
    assert planned(namespace, entityPattern=f"{shop.path}/*/$DeadLetterQueue") == ["bills!"]
    assert planned(namespace, entityPattern=f"{shop.path}/events/subscriptions/*, {shop.path}/b*") == [
        "bills",
        "events/Subscriptions/audit",
    ]
    with pytest.raises(PySparkException, match="No queue or subscription matches 'nowhere/"):
        planned(namespace, entityPattern="nowhere/*")


def test_a_pattern_needs_manage(namespace: Namespace) -> None:
    wrong = namespace.secret.with_name("wrong")
    wrong.write_text(namespace.server.connection_string.replace(namespace.server.key, "c29tZXRoaW5nIGVsc2U="))
    source = DefaultSource(options(namespace, entityPattern="*", connectionStringFile=str(wrong)))
    with pytest.raises(SourceError, match="needs Manage on the namespace") as caught:
        source.reader(source.schema()).partitions()
    assert caught.value.condition == "BUSBAR_UNAUTHORIZED"


@pytest.mark.usefixtures("listed_always")
def test_an_entity_that_begins_to_match_joins_the_stream_with_its_first_message(namespace: Namespace) -> None:
    shop = Shop(namespace, "orders")
    shop.send("orders", b"before")
    given = options(namespace, entityPattern=f"{shop.path}/*")  # from the latest on
    checkpoint = Checkpoint()
    stream = Stepper(given, checkpoint)
    stream.plan()
    assert stream.finish() == []
    shop.add("bills")
    shop.send("bills", b"first of bills")
    shop.send("orders", b"second")
    assert stream.plan()
    assert bodies(stream.read()) == [("bills", b"first of bills"), ("orders", b"second")]
    # The reader dies before the commit: its successor reads the same, also of the queue that joined.
    shop.send("bills", b"later")
    stream = Stepper(given, checkpoint)
    assert bodies(stream.run_now()) == [
        ("bills", b"first of bills"),
        ("bills", b"later"),
        ("orders", b"second"),
    ]
    (tap,) = namespace.taps(f"{shop.path}/bills").list()
    (other,) = namespace.taps(f"{shop.path}/orders").list()
    assert (tap.name, tap.owner, tap.fragments[0].position) == (other.name, other.owner, 2)
    # A stream that begins with no entity waits for the first.
    empty = Stepper(options(namespace, entityPattern="later/*"), Checkpoint())
    assert empty.run_now() == []


def test_a_checkpoint_of_one_entity_goes_on_with_several(namespace: Namespace) -> None:
    shop = Shop(namespace, "orders", "bills")
    checkpoint = Checkpoint()
    orders = f"{shop.path}/orders"
    shop.send("orders", b"1")
    one = options(namespace, entity=orders, tap="t", startingPosition="earliest")
    assert bodies(Stepper(one, checkpoint).run_now()) == [("orders", b"1")]
    assert json.loads(checkpoint.offsets[0])["busbar"] == 1
    shop.send("orders", b"2")
    shop.send("bills", b"3")
    several = options(namespace, entities=f"{orders},{shop.path}/bills", tap="t", startingPosition="earliest")
    assert bodies(Stepper(several, checkpoint).run_now()) == [("bills", b"3"), ("orders", b"2")]
    assert namespace.taps(f"{shop.path}/bills").show("t").owner == namespace.taps(orders).show("t").owner
    with pytest.raises(SourceError, match="BUSBAR_CHECKPOINT_MISMATCH"):
        Stepper(one, checkpoint).run_now()


def test_a_limit_is_shared_by_the_entities(namespace: Namespace) -> None:
    shop = Shop(namespace, "orders", "bills")
    shop.send("orders", *[f"o{number}".encode() for number in range(30)])
    shop.send("bills", *[f"b{number}".encode() for number in range(10)])
    given = options(
        namespace,
        entities=f"{shop.path}/orders,{shop.path}/bills",
        startingPosition="earliest",
        maxMessagesPerTrigger="20",
    )
    checkpoint = Checkpoint()
    rows = Stepper(given, checkpoint).run_now()
    assert len(rows) == 40 and len(checkpoint.offsets) == 2
    first = json.loads(checkpoint.offsets[0])["entities"]
    assert {label.partition("/")[2]: each["positions"]["0"] for label, each in first.items()} == {
        "orders": 15,
        "bills": 5,
    }


@pytest.mark.usefixtures("listed_always")
def test_a_deleted_entity_is_an_error_that_can_be_accepted(namespace: Namespace) -> None:
    shop = Shop(namespace, "orders", "bills")
    shop.send("bills", b"1")
    given = options(namespace, entityPattern=f"{shop.path}/*", startingPosition="earliest")
    checkpoint = Checkpoint()
    assert bodies(Stepper(given, checkpoint).run_now()) == [("bills", b"1")]
    shop.remove("bills")
    shop.send("orders", b"2")
    with pytest.raises(SourceError, match=r"BUSBAR_NOT_FOUND.*bills"):
        Stepper(given, checkpoint).run_now()
    accepted = given | {"failOnDataLoss": "false"}
    assert bodies(Stepper(accepted, checkpoint).run_now()) == [("orders", b"2")]


@pytest.mark.req("D1")
def test_a_stream_of_a_pattern(namespace: Namespace, collected: Collected) -> None:
    shop = Shop(namespace, "orders")
    given = options(namespace, entityPattern=f"{shop.path}/*", tap="all", startingPosition="earliest")
    frame = namespace.spark.readStream.format("busbar").options(**given).load()
    checkpoint = namespace.checkpoint()
    shop.send("orders", b"1")
    run_now(frame, checkpoint, collected)
    shop.add("bills")
    shop.send("bills", b"2")
    shop.send("orders", b"3")
    run_now(frame, checkpoint, collected)
    assert bodies([row.asDict() for row in collected.rows]) == [
        ("bills", b"2"),
        ("orders", b"1"),
        ("orders", b"3"),
    ]
