"""What Prometheus scrapes: the numbers of queues and taps, and nothing for strangers."""

from __future__ import annotations

import asyncio
import base64
import gzip
import time
import urllib.request
from collections.abc import Iterator

import pytest
from proton import Delivery, Message, symbol, timestamp

from busbar.client import MessagingFactory, OutgoingMessage, TransactionTimeout, encode
from harness.serving import PATIENCE, Busbar, serving
from harness.waiting import eventually
from tests.interop.http_runtime import sas_token
from tests.interop.metrics import RULES, Samples, basic, get, scrape
from tests.interop.plain_amqp import PlainAmqp
from tests.interop.taps import Taps

STATES = ("active", "dead_letter", "scheduled", "deferred", "transfer", "transfer_dead_letter")
NAMES = ["metrics", "q0", "q1", "q2", "spread", "zzz"]

QUEUES: dict[str, dict[str, object]] = {name: {} for name in NAMES} | {"spread": {"EnablePartitioning": True}}
NEWS = {"Name": "news", "Subscriptions": [{"Name": "all"}]}
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.server(
        QUEUES, {**PATIENCE, "max_metrics_samples": 200}, topics=[NEWS], rules=RULES, checked=True
    ),
]


@pytest.fixture
def client(server: Busbar) -> Iterator[PlainAmqp]:
    connection = PlainAmqp(server.port, server.key)
    yield connection
    connection.close()


def of_tap(samples: Samples, name: str, tap: str, queue: str, fragment: int = 0, sub: str = "main") -> float:
    return samples[
        f'busbar_tap_{name}{{entity="{queue}",sub_queue="{sub}",tap="{tap}",fragment="{fragment}"}}'
    ]


@pytest.mark.req("U28")
def test_a_tap_that_reaches_its_limit_shows(server: Busbar, client: PlainAmqp) -> None:
    taps = Taps(client, "q0")
    taps("create-tap", name="small", owner="me", max_size=2_000)
    taps("create-tap", name="large", owner="me")
    before = scrape(server)
    assert [of_tap(before, name, "small", "q0") for name in ("truncated", "truncations_total")] == [0, 0]
    client.send("q0", *[Message(id=str(n), body=b"x" * 240, inferred=True) for n in range(12)])
    behind = scrape(server)
    assert of_tap(behind, "lag_messages", "small", "q0") == 12
    assert behind['busbar_messages{entity="q0",state="active"}'] == 12
    assert behind['busbar_size_bytes{entity="q0"}'] > 12 * 240
    receiver = client.receiver("q0", 12)
    for _ in range(12):
        client.settle(client.take(receiver)[1], Delivery.ACCEPTED)
    receiver.close()
    eventually(lambda: of_tap(scrape(server), "truncated", "small", "q0") == 1)
    after = scrape(server)
    assert of_tap(after, "truncations_total", "small", "q0") == 1
    assert [of_tap(after, name, "large", "q0") for name in ("truncated", "truncations_total")] == [0, 0]
    assert of_tap(after, "kept_messages", "large", "q0") == 12
    assert of_tap(after, "kept_bytes", "large", "q0") > 12 * 240
    assert after['busbar_messages{entity="q0",state="active"}'] == 0
    taps("advance-tap", name="large", owner="me", positions={0: 12})
    eventually(lambda: of_tap(scrape(server), "kept_messages", "large", "q0") == 0)
    taps("resume-tap", name="small", owner="me")
    resumed = scrape(server)
    assert of_tap(resumed, "truncated", "small", "q0") == 0
    assert of_tap(resumed, "truncations_total", "small", "q0") == 1, "a counter does not go back"
    taps("create-tap", name="another")  # a change of the entity is none of its counters
    assert of_tap(scrape(server), "truncations_total", "small", "q0") == 1


@pytest.mark.req("U28")
def test_entities_and_stores_have_their_numbers(server: Busbar, client: PlainAmqp) -> None:
    later = Message(body=b"later", inferred=True)
    later.annotations = {
        symbol("x-opt-scheduled-enqueue-time"): timestamp(int(time.time() * 1000) + 3_600_000)
    }
    client.send("q1", *[Message(id=str(n), body=b"x", inferred=True) for n in range(3)], later)
    receiver = client.receiver("q1", 1)
    client.settle(client.take(receiver)[1], Delivery.REJECTED)
    receiver.close()
    Taps(client, "q1", dead_letter=True)("create-tap", name="letters", from_earliest=True)
    samples = scrape(server)
    states = {state: samples[f'busbar_messages{{entity="q1",state="{state}"}}'] for state in STATES}
    counted = {"active": 2, "dead_letter": 1, "scheduled": 1, "deferred": 0}
    assert states == counted | {"transfer": 0, "transfer_dead_letter": 0}
    assert samples['busbar_entity_available{entity="q1"}'] == 1
    assert of_tap(samples, "lag_messages", "letters", "q1", sub="dead_letter") == 1
    assert {value for name, value in samples.items() if name.startswith("busbar_store_up{")} == {1}
    assert samples["busbar_entities"] == len(NAMES) + 2 and samples["busbar_entities_omitted"] == 0


@pytest.mark.req("U28")
def test_topics_and_subscriptions_have_theirs(server: Busbar, client: PlainAmqp) -> None:
    subscription = "news/Subscriptions/all"
    Taps(client, subscription)("create-tap", name="small", max_size=1_000)
    client.send("news", *[Message(id=str(n), body=b"x" * 300, inferred=True) for n in range(5)])
    samples = scrape(server, "?prefix=news")
    assert samples["busbar_entities"] == 2
    assert samples['busbar_messages{entity="news",state="active"}'] == 0
    assert samples[f'busbar_messages{{entity="{subscription}",state="active"}}'] == 5
    assert (
        samples['busbar_size_bytes{entity="news"}']
        == samples[f'busbar_size_bytes{{entity="{subscription}"}}']
    )
    receiver = client.receiver(subscription, 5)
    for _ in range(5):
        client.settle(client.take(receiver)[1], Delivery.ACCEPTED)
    receiver.close()
    eventually(lambda: of_tap(scrape(server, "?prefix=news"), "truncated", "small", subscription) == 1)
    Taps(client, subscription)("delete-tap", name="small")


@pytest.fixture
def alone() -> Iterator[Busbar]:
    """A server of one process, whose transactions time out soon."""
    limits = {"transaction_timeout": 1_500}
    with serving({"q2": {}}, limits, rules=RULES, arguments=("--brokers", "1"), checked=True) as made:
        yield made


async def test_transactions_are_counted(alone: Busbar) -> None:
    outcomes = ("committed", "rolled_back", "timed_out", "in_doubt")

    def shown() -> tuple[float, list[float]]:
        samples = scrape(alone)
        totals = [samples[f'busbar_transactions_total{{outcome="{outcome}"}}'] for outcome in outcomes]
        return samples["busbar_transactions_open"], totals

    assert shown() == (0, [0, 0, 0, 0])
    async with await MessagingFactory.connect(alone.connection_string) as factory:
        sender = await factory.sender("q2")
        payload = [encode(OutgoingMessage(b"x"))]
        async with factory.transaction() as tx:
            await sender.send(payload, transaction=tx)
            assert shown() == (1, [0, 0, 0, 0])
        assert shown() == (0, [1, 0, 0, 0])
        for _ in range(2):
            tx = factory.transaction()
            await tx.begin()
            await sender.send(payload, transaction=tx)
            await tx.rollback()
        assert shown() == (0, [1, 2, 0, 0])
        late = factory.transaction()
        await late.begin()
        await sender.send(payload, transaction=late)
        await asyncio.to_thread(eventually, lambda: shown() == (0, [1, 2, 1, 0]))
        with pytest.raises(TransactionTimeout):
            await late.commit()
        for _ in range(3):
            await factory.transaction().begin()
        assert shown() == (3, [1, 2, 1, 0])
    await asyncio.to_thread(
        eventually, lambda: shown() == (0, [1, 5, 1, 0])
    )  # they ended with their connection


async def test_transactions_of_several_brokers_name_theirs() -> None:
    with serving({"q": {}}, rules=RULES, arguments=("--brokers", "2")) as brokers:
        samples = scrape(brokers)
        names = {name for name in samples if name.startswith("busbar_transactions_open")}
        assert len(names) == 1 and names < {
            f'busbar_transactions_open{{broker="broker-{n}"}}' for n in range(2)
        }


def test_a_scrape_is_bounded_and_says_so(server: Busbar, client: PlainAmqp) -> None:
    """The limit is 200 samples: sixteen fragments with three taps have more."""
    for name in ("a", "b", "c"):
        Taps(client, "spread")("create-tap", name=name)
    samples = scrape(server)
    assert samples["busbar_entities_omitted"] == 4, "spread, and all that come behind it"
    assert sum("entity=" in name for name in samples) <= 200
    assert not any('entity="spread"' in name or 'entity="zzz"' in name for name in samples)
    chosen = scrape(server, "?prefix=Z")
    assert (chosen["busbar_entities"], chosen["busbar_entities_omitted"]) == (1, 0)
    assert {name for name in chosen if "entity=" in name} == {
        'busbar_entity_available{entity="zzz"}',
        'busbar_size_bytes{entity="zzz"}',
        'busbar_messages_locked{entity="zzz"}',
        'busbar_oldest_message_seconds{entity="zzz"}',
        *(f'busbar_messages{{entity="zzz",state="{state}"}}' for state in STATES),
    }
    Taps(client, "spread")("delete-tap", name="a")
    Taps(client, "spread")("delete-tap", name="b")
    one = scrape(server, "?prefix=spread")
    assert [of_tap(one, "truncated", "c", "spread", fragment) for fragment in range(16)] == [0] * 16


def test_strangers_learn_nothing(server: Busbar) -> None:
    resource = f"http://localhost:{server.port}/"
    for authorization in (
        "",
        basic("Listen", "wrong"),
        basic("nobody", "to Listen"),
        basic("Listen", ""),
        basic("Send", "to Send"),
        "Basic",
        "Basic not-base-64",
        "Basic " + base64.b64encode(b"\xff\xfe").decode(),
        "Bearer token",
        sas_token(resource, "wrong"),
        sas_token(resource, "to Send", "Send"),
        sas_token(resource + "q0", "to Listen", "Listen"),
    ):
        status, challenge, body = get(server, "metrics", authorization)
        assert (status, challenge) == (401, 'Basic realm="Busbar", charset="UTF-8"'), authorization
        assert "busbar_" not in body and "q1" not in body
    for authorization in (
        basic("Listen", "another"),
        basic("RootManageSharedAccessKey", server.key),
        sas_token(resource, "to Listen", "Listen"),
    ):
        assert get(server, "Metrics/", authorization)[0] == 200


def test_a_queue_may_have_this_name(server: Busbar) -> None:
    token = sas_token(f"http://localhost:{server.port}/", server.key)
    status, _, body = get(server, "metrics?api-version=2021-05", token)
    assert status == 200 and "QueueDescription" in body


@pytest.mark.req("U28")
def test_a_scrape_is_compressed_if_that_is_accepted(server: Busbar) -> None:
    def scraped(accepted: str) -> tuple[str | None, bytes]:
        request = urllib.request.Request(f"http://localhost:{server.port}/metrics")
        request.add_header("Authorization", basic("Listen", "to Listen"))
        request.add_header("Accept-Encoding", accepted)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.headers["Content-Encoding"], answer.read()

    for accepted in ("gzip", "deflate, GZIP;q=0.5"):
        encoding, body = scraped(accepted)
        assert encoding == "gzip" and b"busbar_entities " in gzip.decompress(body)
    for accepted in ("identity", "gzip;q=0", "gzip;q=0.0, br", "notgzip"):
        encoding, body = scraped(accepted)
        assert encoding is None and b"busbar_entities " in body
