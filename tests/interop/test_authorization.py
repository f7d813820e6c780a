"""Who may connect: SASL PLAIN, `$cbs` with tokens that are really verified, and nobody else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError
from proton import ConnectionException, Delivery, Message
from proton.utils import LinkDetached

from busbar.model.sas import sign
from harness.serving import Busbar
from tests.interop.azure_sdk import Azure, take_one, text_of
from tests.interop.plain_amqp import KEY_NAME, PlainAmqp

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def anonymous(broker: Busbar) -> Iterator[PlainAmqp]:
    client = PlainAmqp(broker.port, None)
    yield client
    client.close()


def signature(path: str, key: str, *, name: str = KEY_NAME, lifetime: float = 600) -> str:
    """A shared access signature, as the vendor documents it."""
    return sign(f"sb://localhost/{path}", name, key, int(time.time() + lifetime))


def put_token(client: PlainAmqp, token: Any, audience: str) -> int:
    reply = client.request(
        "$cbs",
        "put-token",
        token,
        node_keys={"type": "servicebus.windows.net:sastoken", "name": f"sb://localhost/{audience}"},
    )
    assert isinstance(reply.properties["status-description"], str)
    return int(reply.properties["status-code"])


def message() -> Message:
    return Message(body=b"x", inferred=True)


def test_a_wrong_password_does_not_connect(broker: Busbar) -> None:
    with pytest.raises(ConnectionException):
        PlainAmqp(broker.port, "wrong")
    with pytest.raises(ConnectionException):
        PlainAmqp(broker.port, broker.key, user="Nobody")


@pytest.mark.req("U4")
@pytest.mark.parametrize("node", ["{}", "{}/$management", "{}/$DeadLetterQueue"])
def test_no_link_without_a_token(anonymous: PlainAmqp, queue: str, node: str) -> None:
    with pytest.raises(LinkDetached) as refused:
        anonymous.connection.create_receiver(node.format(queue))
    assert refused.value.condition == "amqp:unauthorized-access"


def test_no_sender_without_a_token_and_no_hint_of_what_exists(anonymous: PlainAmqp, queue: str) -> None:
    for name in (queue, "no-such-queue"):
        with pytest.raises(LinkDetached) as refused:
            anonymous.connection.create_sender(name)
        assert refused.value.condition == "amqp:unauthorized-access"


def test_a_token_opens_its_queue_and_no_other(
    anonymous: PlainAmqp, broker: Busbar, queue: str, queues: Any
) -> None:
    assert put_token(anonymous, signature(queue, broker.key), queue) == 202

    assert anonymous.send(queue, message()).remote_state == Delivery.ACCEPTED
    anonymous.take(anonymous.receiver(queue, 1))
    anonymous.manage(queue, "peek-message", {"from-sequence-number": 1, "message-count": 1})
    with pytest.raises(LinkDetached) as refused:
        anonymous.connection.create_sender(queues.take("plain"))
    assert refused.value.condition == "amqp:unauthorized-access"


def test_a_token_for_the_namespace_opens_every_queue(
    anonymous: PlainAmqp, broker: Busbar, queues: Any
) -> None:
    here, there = queues.take("plain"), queues.take("plain")
    assert put_token(anonymous, signature("", broker.key), here) == 202

    assert anonymous.send(here, message()).remote_state == Delivery.ACCEPTED
    assert anonymous.send(there, message()).remote_state == Delivery.ACCEPTED


@pytest.mark.req("U4")
def test_tokens_that_are_refused(anonymous: PlainAmqp, broker: Busbar, queue: str) -> None:
    good = signature(queue, broker.key)
    refused = {
        "signed with another key": signature(queue, "another key"),
        "of an unknown rule": signature(queue, broker.key, name="Nobody"),
        "expired": signature(queue, broker.key, lifetime=-10),
        "with a longer life than was signed": good.replace("&se=1", "&se=2"),
        "for another path than was signed": good.replace(queue, "other"),
        "without a signature": "&".join(part for part in good.split("&") if not part.startswith("sig=")),
        "of another kind": "eyJhbGciOiJub25lIn0.e30.",
        "empty": "",
    }
    for case, token in refused.items():
        assert put_token(anonymous, token, queue) in (400, 401), case
    assert put_token(anonymous, 42, queue) == 400
    assert put_token(anonymous, signature(queue, broker.key), "another-queue") == 401
    with pytest.raises(LinkDetached):
        anonymous.connection.create_sender(queue)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_connection_string_with_a_signature(azure: Azure, broker: Busbar, queue: str) -> None:
    """A program that was given a token for one queue, not the key."""
    endpoint = broker.connection_string.split(";")[0]
    token = signature(queue, broker.key)
    with_token = f"{endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true"

    await azure.sender(queue, connection_string=with_token).send_messages(ServiceBusMessage("x"))

    assert text_of(await take_one(azure.receiver(queue, connection_string=with_token))) == "x"
    with pytest.raises(ServiceBusError):
        await azure.sender("plain-0", connection_string=with_token).send_messages(ServiceBusMessage("x"))


@pytest.mark.asyncio(loop_scope="session")
async def test_the_sdk_keeps_why_a_token_was_refused(
    azure: Azure, broker: Busbar, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error's text never has the reason. Its inner exception and its log do, if the answer has the shape for it."""
    wrong = broker.connection_string.replace(broker.key, "a wrong key")
    caplog.set_level("INFO", "azure.servicebus")
    with pytest.raises(ServiceBusAuthenticationError) as refused:
        await azure.sender(queue, connection_string=wrong).send_messages(ServiceBusMessage("x"))
    assert "Status code: 401" in str(refused.value.inner_exception)
    for place in (str(refused.value.inner_exception), caplog.text):
        assert "The token has an invalid signature" in place
