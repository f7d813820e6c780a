"""What a namespace has done, as a scrape shows it: every counter after a known piece of work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

from harness.serving import PATIENCE, Busbar, serving
from harness.waiting import eventually
from tests.interop.metrics import RULES, Samples, scrape

QUEUES: dict[str, dict[str, object]] = {
    "work": {},
    "once": {"RequiresDuplicateDetection": True},
    "hasty": {"LockDuration": "PT1S"},
    "spread": {"EnablePartitioning": True},
    "sessions": {"RequiresSession": True},
    "old": {},
}
TOPIC = {"Name": "news", "Subscriptions": [{"Name": "all"}]}
LIMITS = {**PATIENCE, "min_lock_duration": 1_000}
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.server(
        QUEUES,
        LIMITS,
        topics=[TOPIC],
        rules=RULES,
        arguments=("--brokers", "1"),
    ),
]


@pytest.fixture
def client(server: Busbar) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as made:
        yield made


def send(client: ServiceBusClient, queue: str, *messages: ServiceBusMessage) -> None:
    with client.get_queue_sender(queue) as sender:
        for message in messages:
            sender.send_messages(message)


def counters(samples: Samples, entity: str) -> dict[str, float]:
    """The counters of an entity, by the names of their families and the rest of their labels."""
    mark = f'{{entity="{entity}"'
    return {
        name.replace(f"{mark},", "{").replace(f"{mark}}}", ""): value
        for name, value in samples.items()
        if mark in name and name.partition("{")[0].endswith("_total")
    }


@pytest.mark.req("U28")
def test_each_outcome_is_counted_once(server: Busbar, client: ServiceBusClient) -> None:
    assert counters(scrape(server), "work") == {}, "an entity that has done nothing has no counters"
    send(client, "work", *[ServiceBusMessage(b"x" * 100, message_id=str(n)) for n in range(7)])
    with client.get_queue_receiver("work", max_wait_time=5) as receiver:
        first = receiver.receive_messages(max_message_count=7, max_wait_time=5)
        while len(first) < 7:
            first += receiver.receive_messages(max_message_count=7 - len(first), max_wait_time=5)
        held = scrape(server)
        assert held['busbar_messages_locked{entity="work"}'] == 7
        assert held["busbar_links"] == 1
        for message in first[:3]:
            receiver.complete_message(message)
        receiver.abandon_message(first[3])
        receiver.defer_message(first[4])
        receiver.dead_letter_message(first[5], reason="no such customer")
        receiver.dead_letter_message(first[6], reason="TTLExpiredException")
        (again,) = receiver.receive_messages(max_wait_time=5)
        receiver.complete_message(again)
        with pytest.raises((ServiceBusError, ValueError)):
            receiver.receive_deferred_messages([4_000_000_000])
    after = scrape(server)
    found = counters(after, "work")
    assert found.pop("busbar_bytes_in_total") > 700
    assert found.pop("busbar_bytes_out_total") > 800
    assert found == {
        "busbar_messages_in_total": 7,
        "busbar_messages_out_total": 8,
        'busbar_settlements_total{outcome="completed"}': 4,
        'busbar_settlements_total{outcome="abandoned"}': 1,
        'busbar_settlements_total{outcome="deferred"}': 1,
        'busbar_settlements_total{outcome="dead_lettered"}': 2,
        'busbar_settlements_total{outcome="released"}': 0,
        "busbar_locks_lost_total": 0,
        "busbar_duplicates_dropped_total": 0,
        "busbar_entity_dead_letters_total": 2,
    }
    grown = {
        name: value - held[name]
        for name, value in after.items()
        if name.startswith(("busbar_dead_letters_total", "busbar_refusals_total")) and value > held[name]
    }
    assert grown == {
        'busbar_dead_letters_total{reason="other"}': 1,
        'busbar_dead_letters_total{reason="TTLExpiredException"}': 1,
        'busbar_refusals_total{condition="com.microsoft:message-not-found"}': 1,
    }


def test_duplicates_and_lost_locks_are_counted(server: Busbar, client: ServiceBusClient) -> None:
    for _ in range(3):
        send(client, "once", ServiceBusMessage(b"x", message_id="the same"))
    send(client, "hasty", ServiceBusMessage(b"x"))
    with client.get_queue_receiver("hasty", max_wait_time=5) as receiver:
        assert len(receiver.receive_messages(max_wait_time=5)) == 1
        eventually(lambda: counters(scrape(server), "hasty")["busbar_locks_lost_total"] == 1)
    once = counters(scrape(server), "once")
    assert (once["busbar_messages_in_total"], once["busbar_duplicates_dropped_total"]) == (1, 2)


def test_fragments_sessions_and_copies_are_summed_up(server: Busbar, client: ServiceBusClient) -> None:
    send(client, "spread", *[ServiceBusMessage(b"x", partition_key=f"{n}") for n in range(20)])
    send(client, "sessions", *[ServiceBusMessage(b"x", session_id="a") for _ in range(3)])
    with client.get_queue_receiver("sessions", session_id="a", max_wait_time=5) as receiver:
        got = 0
        while got < 3:
            for message in receiver.receive_messages(max_message_count=3, max_wait_time=5):
                receiver.complete_message(message)
                got += 1
    with client.get_topic_sender("news") as sender:
        sender.send_messages([ServiceBusMessage(b"x" * 50) for _ in range(5)])
    samples = scrape(server)
    assert counters(samples, "spread")["busbar_messages_in_total"] == 20
    of_sessions = counters(samples, "sessions")
    assert of_sessions["busbar_messages_out_total"] == 3
    assert of_sessions['busbar_settlements_total{outcome="completed"}'] == 3
    topic, copies = counters(samples, "news"), counters(samples, "news/Subscriptions/all")
    assert topic["busbar_messages_in_total"] == copies["busbar_messages_in_total"] == 5
    assert topic["busbar_bytes_in_total"] >= 250 and copies["busbar_bytes_in_total"] >= 250


def test_times_are_histograms(server: Busbar, client: ServiceBusClient) -> None:
    before = scrape(server)
    send(client, "work", ServiceBusMessage(b"x"))
    with client.get_queue_receiver("work", max_wait_time=5) as receiver:
        for message in receiver.receive_messages(max_wait_time=5):
            receiver.complete_message(message)
    after = scrape(server)
    assert after["busbar_delivery_seconds_count"] - before["busbar_delivery_seconds_count"] == 1
    for name in ("busbar_delivery_seconds", 'busbar_commit_seconds{store="store-0"'):
        bare, _, labels = name.partition("{")
        prefix = f"{bare}_bucket{{{labels}{',' if labels else ''}le="
        buckets = [value for sample, value in after.items() if sample.startswith(prefix)]
        assert len(buckets) > 10 and buckets == sorted(buckets), "each bucket has those below it, too"
        assert buckets[-1] == after[f"{bare}_count{'{' + labels + '}' if labels else ''}"]
    commits = [name for name in after if name.startswith("busbar_commit_seconds_count")]
    assert sum(after[name] - before[name] for name in commits) >= 2, "a send and a settlement"
    assert after["busbar_cpu_seconds_total"] > before["busbar_cpu_seconds_total"]
    free = [value for name, value in after.items() if name.startswith("busbar_store_free_bytes")]
    assert free and all(value > 0 for value in free)


def test_the_age_is_that_of_the_first_active_message(server: Busbar, client: ServiceBusClient) -> None:
    age = 'busbar_oldest_message_seconds{entity="old"}'
    assert scrape(server)[age] == 0
    send(client, "old", ServiceBusMessage(b"x"))
    eventually(lambda: scrape(server)[age] >= 1)
    with client.get_queue_receiver("old", max_wait_time=5) as receiver:
        (message,) = receiver.receive_messages(max_wait_time=5)
        assert scrape(server)[age] >= 1, "it is locked, and not gone"
        receiver.dead_letter_message(message)
    assert scrape(server)[age] == 0
    with client.get_queue_receiver("old", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        assert receiver.peek_messages()


def test_figures_of_several_brokers_name_theirs() -> None:
    with serving(
        {"q": {}, "spread": {"EnablePartitioning": True}}, rules=RULES, arguments=("--brokers", "2")
    ) as two:
        with ServiceBusClient.from_connection_string(two.connection_string) as client:
            send(client, "q", ServiceBusMessage(b"x"))
            send(client, "spread", *[ServiceBusMessage(b"x", partition_key=f"{n}") for n in range(20)])
        samples = scrape(two)
        brokers = {f"broker-{n}" for n in range(2)}
        assert {f'busbar_cpu_seconds_total{{broker="{name}"}}' for name in brokers} <= samples.keys()
        came = {
            name: value
            for name, value in samples.items()
            if name.startswith('busbar_messages_in_total{entity="spread"')
        }
        assert came.keys() == {
            f'busbar_messages_in_total{{entity="spread",broker="{name}"}}' for name in brokers
        }, "its fragments are in stores of both"
        assert sum(came.values()) == 20
        stores = [name for name in samples if name.startswith("busbar_commit_seconds_count")]
        assert len(stores) == 4 and all("broker=" in name for name in stores)


def test_the_first_message_is_found_after_a_restart() -> None:
    age = 'busbar_oldest_message_seconds{entity="q"}'
    with serving({"q": {}}, PATIENCE, rules=RULES, arguments=("--brokers", "1")) as server:
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            send(client, "q", ServiceBusMessage(b"x"))
        server.stop()
        server.start()
        assert "busbar_messages_in_total" not in "".join(scrape(server)), "counters begin again"
        eventually(lambda: scrape(server)[age] >= 1)
