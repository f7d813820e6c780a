"""A token counts for as long as it was signed for: an open link ends with it, unless another takes its place."""

from __future__ import annotations

import time

import pytest

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Int, ULong
from harness.serving import Busbar
from tests.interop.administration import BareHttp
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    ACCEPTED,
    ATTACH,
    CLOSE,
    DETACH,
    RECEIVER,
    SENDER,
    TRANSFER,
    connected,
    message,
    performative,
    sas_token,
)

QUEUE = "sb://localhost/q"
UNAUTHORIZED = "amqp:unauthorized-access"
PEEK = (
    performative(0x73, ["request", None, "q/$management", None, "link-end"])
    + encode_value(Described(ULong(0x74), {"operation": "com.microsoft:peek-message"}))
    + encode_value(Described(ULong(0x77), {"from-sequence-number": 1, "message-count": Int(1)}))
)

pytestmark = [
    pytest.mark.req("U19"),
    pytest.mark.server({"q": {}, "bystander": {}}, {"token_grace": 0, "token_timeout": 1_500}),
]


def test_open_links_end_with_their_token_and_can_be_opened_anew(server: Busbar, bystander: Bystander) -> None:
    with connected(server.port) as wire:
        expiry = int(time.time() + 2)
        assert wire.put_token(sas_token(QUEUE, lifetime=2), QUEUE) == 202
        assert wire.attach(0, SENDER, "q").code == ATTACH
        assert wire.attach(1, RECEIVER, "q").code == ATTACH
        assert wire.send_message(0, 1, message(b"in time")).outcome == ACCEPTED
        for _ in range(2):
            ended = wire.until(DETACH)
            assert (ended.field(1), ended.condition) == (True, UNAUTHORIZED)
        assert expiry - 0.1 < time.time() < expiry + 5
        assert wire.attach(2, SENDER, "q").condition == UNAUTHORIZED

        assert wire.put_token(sas_token(QUEUE), QUEUE, handles=(102, 103)) == 202
        assert wire.attach(3, SENDER, "q").code == ATTACH
        assert wire.send_message(3, 2, message(b"again")).outcome == ACCEPTED


def test_a_token_that_is_replaced_in_time_is_not_missed(server: Busbar, bystander: Bystander) -> None:
    with connected(server.port) as wire:
        assert wire.put_token(sas_token(QUEUE, lifetime=2), QUEUE) == 202
        assert wire.attach(0, SENDER, "q").code == ATTACH
        assert wire.put_token(sas_token(QUEUE), QUEUE, handles=(102, 103)) == 202
        time.sleep(1)
        bystander.works()
        time.sleep(1)
        assert wire.send_message(0, 1, message(b"still there")).outcome == ACCEPTED


def test_the_management_of_an_entity_ends_with_the_token(server: Busbar, bystander: Bystander) -> None:
    """The link may stay, the requests on it are refused."""
    with connected(server.port) as wire:
        assert wire.put_token(sas_token(QUEUE, lifetime=2), QUEUE) == 202
        node = "q/$management"
        assert wire.attach(0, SENDER, node).code == ATTACH
        assert wire.attach(1, RECEIVER, node).code == ATTACH
        wire.grant(1, 10)
        time.sleep(max(0.0, int(time.time()) + 2.2 - time.time()))
        wire.transfer(0, 1, PEEK)
        assert b"needs the right Listen" in wire.until(TRANSFER).payload


def test_who_puts_no_other_token_is_asked_to_leave(server: Busbar, bystander: Bystander) -> None:
    with connected(server.port) as wire:
        assert wire.put_token(sas_token(QUEUE, lifetime=1.5), QUEUE) == 202
        assert wire.attach(0, RECEIVER, "q").code == ATTACH
        assert wire.until(DETACH).condition == UNAUTHORIZED
        began = time.monotonic()
        assert wire.until(CLOSE).condition == "amqp:connection:forced"
        assert 1 < time.monotonic() - began < 5


@pytest.mark.alone
def test_a_wait_over_http_ends_with_its_token(server: Busbar, bystander: Bystander) -> None:
    token = sas_token("http://localhost/bystander/messages", lifetime=2)
    began = time.monotonic()
    status, _, _ = BareHttp(server).request("DELETE", "/bystander/messages/head?timeout=30", token=token)
    assert status == 204
    assert time.monotonic() - began < 2.5
    assert BareHttp(server).request("DELETE", "/bystander/messages/head", token=token)[0] == 401
