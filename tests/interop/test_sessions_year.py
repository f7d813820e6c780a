"""A message session never expires: what comes a year later belongs to it, finds its state, and is behind what was left.

The server is stopped, and started again with a clock that is a year ahead (harness/faults/set_clock.c).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import repeat
from pathlib import Path

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)

from harness.faults.shims import build_shim
from harness.serving import Busbar, config_text
from tests.interop.administration import BareHttp
from tests.interop.azure_sdk import text_of

pytestmark = pytest.mark.timeout(60)

YEAR = timedelta(days=366)
SESSIONS = {"RequiresSession": True}
QUEUES = {"regular": SESSIONS, "partitioned": {**SESSIONS, "EnablePartitioning": True}}
TOPIC = {"Name": "t", "Properties": {}, "Subscriptions": [{"Name": "s", "Properties": SESSIONS}]}
ENTITIES = [*QUEUES, "t"]


def send(client: ServiceBusClient, entity: str, *texts: str) -> None:
    with client.get_topic_sender("t") if entity == "t" else client.get_queue_sender(entity) as sender:
        for text in texts:
            sender.send_messages(ServiceBusMessage(text, session_id="same"))


def accept(client: ServiceBusClient, entity: str) -> ServiceBusReceiver:
    """The next available session: nothing says which one it will be."""
    if entity == "t":
        return client.get_subscription_receiver("t", "s", session_id=NEXT_AVAILABLE_SESSION)
    return client.get_queue_receiver(entity, session_id=NEXT_AVAILABLE_SESSION)


def enqueued(message: ServiceBusReceivedMessage) -> datetime:
    assert message.enqueued_time_utc is not None
    return message.enqueued_time_utc


def client_of(server: Busbar) -> ServiceBusClient:
    """With a token that is good for longer than the SDK would sign one."""
    token = BareHttp(server).token(life=2 * int(YEAR.total_seconds()))
    endpoint = f"Endpoint=sb://localhost:{server.port};UseDevelopmentEmulator=true;"
    return ServiceBusClient.from_connection_string(f"{endpoint}SharedAccessSignature={token}", retry_total=0)


def first_steps(server: Busbar, entity: str) -> None:
    with client_of(server) as client:
        send(client, entity, "first", "left behind")
        with accept(client, entity) as receiver:
            assert receiver.session.session_id == "same", "one message makes a session"
            (first,) = receiver.receive_messages(max_message_count=1, max_wait_time=20)
            assert text_of(first) == "first"
            receiver.complete_message(first)
            receiver.session.set_state(b"after the first")


def a_year_later(server: Busbar, entity: str) -> None:
    with client_of(server) as client:
        send(client, entity, "a year later")
        with accept(client, entity) as receiver:
            assert receiver.session.session_id == "same"
            assert receiver.session.get_state() == b"after the first"
            taken: list[ServiceBusReceivedMessage] = []
            while len(taken) < 2:
                more = receiver.receive_messages(max_message_count=2, max_wait_time=20)
                assert more, f"{len(taken)} came"
                for message in more:
                    receiver.complete_message(message)
                taken += more
        assert [text_of(message) for message in taken] == ["left behind", "a year later"]
        assert enqueued(taken[1]) - enqueued(taken[0]) >= YEAR
        listed = (
            client.list_subscription_sessions("t", "s")
            if entity == "t"
            else client.list_queue_sessions(entity)
        )
        assert list(listed) == ["same"], "without messages, its state is what is left of it"


@pytest.mark.req("S4")
def test_a_message_a_year_later_belongs_to_the_same_session(tmp_path: Path) -> None:
    config = config_text(QUEUES, topics=[TOPIC])
    clock = tmp_path / "clock"
    clock.write_text(str(int(YEAR.total_seconds())))
    later = {"LD_PRELOAD": str(build_shim("set_clock", tmp_path)), "SET_CLOCK_FILE": str(clock)}
    for environment, steps in (({}, first_steps), (later, a_year_later)):
        server = Busbar(tmp_path / "data", config, environment=environment).start()
        try:
            with ThreadPoolExecutor() as programs:  # the SDK mostly sleeps
                list(programs.map(steps, repeat(server), ENTITIES))
        finally:
            assert server.stop() == 0, server.error_text
        assert "Traceback" not in server.error_text, server.error_text
