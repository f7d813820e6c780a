"""`busbar history`: what happened to a message, by whom and when, with one broker process and with several."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from busbar.cli.main import run
from busbar.client import MessagingFactory
from busbar.model.sas import sign
from harness.serving import Busbar
from harness.waiting import until
from tests.interop.forwarding import Forwarding

RULES = [
    {"Name": right, "Rights": [right], "PrimaryKey": f"to {right}", "SecondaryKey": "another"}
    for right in ("Listen", "Send")
]
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("server", ["1", "2"], indirect=True),
    pytest.mark.server({}, rules=RULES),
]


@pytest_asyncio.fixture(loop_scope="session")
async def here(server: Busbar) -> AsyncIterator[Forwarding]:
    async with await MessagingFactory.connect(server.connection_string, name="tester") as factory:
        yield Forwarding(server, factory)


def cli(server: Busbar, *arguments: str, code: int = 0) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run(["history", *arguments, "--data", str(server.data)]) == code, err.getvalue()
    return out.getvalue() if code == 0 else err.getvalue()


def steps(server: Busbar, message_id: str, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cli(server, message_id, *arguments, "-o", "json"))
    assert [step["time"] for step in found] == sorted(step["time"] for step in found)
    return found


def whats(server: Busbar, message_id: str, *arguments: str) -> list[tuple[str, str]]:
    return [(step["entity"], step["what"]) for step in steps(server, message_id, *arguments)]


@pytest.fixture(autouse=True)
def recording(server: Busbar) -> None:
    cli(server, "--on")


@pytest.mark.parametrize("partitioned", [False, True])
async def test_a_queue(here: Forwarding, partitioned: bool) -> None:
    server = here.server
    queue = here.queue(EnablePartitioning=partitioned, MaxDeliveryCount=2)
    message = f"m-{queue}"
    await here.send(queue, message)
    receiver = await here.factory.receiver(queue, credit=1)
    for settle in (receiver.abandon, receiver.abandon):
        await settle(await receiver.receive(1, 15))
    await receiver.close()
    await here.dead_letters(queue)

    found = steps(server, message)
    assert [step["what"] for step in found] == [
        "sent",
        "delivered",
        "abandoned",
        "delivered",
        "abandoned",
        "dead-lettered",
        "delivered",
        "completed",
    ]
    assert {step["entity"] for step in found} == {queue} and {step["messageId"] for step in found} == {
        message
    }
    assert len({step["sequenceNumber"] for step in found}) == 1 and found[0]["sequenceNumber"] > 0
    assert found[5]["reason"] == "MaxDeliveryCountExceeded" and found[5]["deliveryCount"] == 2
    clients = [step["client"] for step in found]
    assert {client["container"] for client in clients} == {"tester"}
    assert {client["address"] for client in clients} == {"127.0.0.1"}
    links = {
        client["link"] for step, client in zip(found, clients, strict=True) if step["what"] == "delivered"
    }
    assert len(links) == 2 and all(links)
    assert len({step["connection"] for step in found}) == 1


async def test_a_topic_and_forwarding(here: Forwarding) -> None:
    """The entities of a chain are in different stores, and so with several brokers in different processes."""
    server = here.server
    end = here.queue("end", EnablePartitioning=True)
    middle = here.queue("middle", ForwardTo=end)
    topic = here.topic()
    forwarding = here.subscription(topic, ForwardTo=middle)
    kept = here.subscription(topic)
    message = f"m-{topic}"
    await here.send(topic, message)
    await here.take(end, 1)
    await here.take(kept, 1)

    found = steps(server, message)
    by_entity = {
        entity: [step["what"] for step in found if step["entity"] == entity]
        for entity in (topic, forwarding, kept, middle, end)
    }
    assert by_entity == {
        topic: ["sent", "published"],
        forwarding: ["copied", "forwarded"],
        kept: ["copied", "delivered", "completed"],
        middle: ["arrived", "forwarded"],
        end: ["arrived", "delivered", "completed"],
    }
    assert sum(len(what) for what in by_entity.values()) == len(found)
    assert {step["reason"] for step in found if step["what"] == "forwarded"} == {middle, end}
    assert [step["reason"] for step in found if step["what"] == "published"] == ["2 copies"]
    assert all(
        step["byClient"] == (step["what"] in ("sent", "published", "delivered", "completed"))
        for step in found
    )
    assert {entity for entity, _ in whats(server, message, "--entity", topic)} == {topic, forwarding, kept}
    assert whats(server, message, "--entity", middle.upper()) == [(middle, "arrived"), (middle, "forwarded")]
    table = cli(server, message)
    assert "dead-lettered" not in table and "tester at 127.0.0.1, link " in table and "2 copies" in table


async def test_a_message_that_nobody_gets(here: Forwarding) -> None:
    """No subscription selects it, it is a duplicate, or it expires."""
    server = here.server
    topic = here.topic(RequiresDuplicateDetection=True)
    await here.send(topic, "lonely")
    await here.send(topic, "lonely")
    found = steps(server, "lonely", "--entity", topic)
    assert [step["what"] for step in found] == ["sent", "published", "dropped as a duplicate"]
    assert found[1]["reason"] == "no subscription selects it"

    queue = here.queue(LockDuration="PT5S")
    await here.send(queue, "short", time_to_live=1)
    await until(lambda: steps(server, "short") and _expired(here, queue), pause=0.05)
    receiver = await here.factory.receiver(queue)
    assert await receiver.receive(1, 0.2) == []
    await receiver.close()
    assert [step["what"] for step in steps(server, "short")] == ["sent", "expired"]
    assert steps(server, "short")[1]["client"] is None


def _expired(here: Forwarding, queue: str) -> bool:
    (sent,) = [step for step in steps(here.server, "short") if step["what"] == "sent"]
    return bool(time.time() * 1000 > sent["time"] + 10)


async def test_only_what_is_switched_on_is_recorded(here: Forwarding) -> None:
    server = here.server
    recorded, other = here.queue(), here.queue()
    cli(server, "--off")
    assert "No entity records" in _said(server)
    cli(server, "--on", "--entity", recorded.upper())
    assert json.loads(cli(server, "-o", "json")) == {"everything": False, "entities": [recorded]}
    await here.send(recorded, "first")
    await here.send(other, "first")
    assert whats(server, "first") == [(recorded, "sent")]
    cli(server, "--off", "--entity", recorded)
    await here.take(recorded, 1)
    assert whats(server, "first") == [(recorded, "sent")]
    assert "nothing is recorded of message 'nobody'" in cli(server, "nobody", code=3)
    assert "no entity records its history" in cli(server, "nobody", code=3)
    assert "does not exist" in cli(server, "--on", "--entity", "nowhere", code=3)
    assert "one of them" in cli(server, "--on", "--off", code=2)


def _said(server: Busbar) -> str:
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert run(["history", "--data", str(server.data)]) == 0
    return err.getvalue()


async def test_who_may_see_it(here: Forwarding) -> None:
    server = here.server
    queue = here.queue()
    await here.send(queue, "a message & more")
    place = f"/$busbar/history/{queue}?messageId={quote('a message & more')}"
    assert _status(server, "GET", place, "Listen")[0] == 200
    assert [step["what"] for step in json.loads(_status(server, "GET", place, "Listen")[1])] == ["sent"]
    assert _status(server, "GET", place, "Send")[0] == 401
    assert _status(server, "GET", "/$busbar/history?messageId=x", "Listen")[0] == 401
    assert _status(server, "POST", "/$busbar/recording/off", "Listen")[0] == 401
    assert _status(server, "GET", f"/$busbar/history/{queue}", "Listen")[0] == 400
    assert _status(server, "GET", "/$busbar/history/nowhere?messageId=x", "Listen")[0] == 404


def _status(server: Busbar, method: str, place: str, right: str) -> tuple[int, str]:
    token = sign(f"http://127.0.0.1:{server.port}/", right, f"to {right}", int(time.time()) + 60)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, place, headers={"Authorization": token})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


async def test_clients_of_other_kinds(here: Forwarding) -> None:
    """The vendor's SDK, and HTTP; also after they have left."""
    server = here.server
    queue = here.queue()

    def use() -> None:
        with (
            ServiceBusClient.from_connection_string(server.connection_string) as client,
            client.get_queue_sender(queue) as sender,
            client.get_queue_receiver(queue) as receiver,
        ):
            sender.send_messages(ServiceBusMessage("x", message_id=f"sdk-{queue}"))
            (message,) = receiver.receive_messages(1, max_wait_time=15)
            receiver.dead_letter_message(message, reason="unreadable")

    await asyncio.to_thread(use)
    found = steps(server, f"sdk-{queue}")
    assert [step["what"] for step in found] == ["sent", "delivered", "dead-lettered"]
    assert found[2]["reason"] == "unreadable" and all(step["client"]["container"] for step in found)

    dead = f"{queue}/$DeadLetterQueue"
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(["receive", dead, "--data", str(server.data)]) == 0
    last = steps(server, f"sdk-{queue}")[-1]
    assert (last["what"], last["client"]["container"]) == ("completed", "HTTP")


async def test_brokers_that_are_restarted_record_on(here: Forwarding, request: pytest.FixtureRequest) -> None:
    """What they had recorded is gone with them: it is in memory."""
    server = here.server
    if request.node.callspec.params["server"] == "1":
        pytest.skip("one process cannot be restarted while it serves")
    queue = here.queue()
    await here.send(queue, f"before-{queue}")
    assert whats(server, f"before-{queue}") == [(queue, "sent")]
    since = _started(server)
    assert run(["brokers", "restart", "--data", str(server.data)]) == 0
    await until(lambda: min(_started(server).values()) > max(since.values()), seconds=30, pause=0.2)
    await here.send(queue, f"after-{queue}")
    assert whats(server, f"before-{queue}") == []
    assert whats(server, f"after-{queue}") == [(queue, "sent")]


def _started(server: Busbar) -> dict[str, int]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["nodes", "-o", "json", "--data", str(server.data)]) == 0
    return {
        view["name"]: view["since"] if view["state"] == "up" else 0
        for view in json.loads(out.getvalue())
        if view["name"] != "controller"
    }
