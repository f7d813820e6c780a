"""Who has not proven what it may do gets nothing, is told so, and does not stay."""

from __future__ import annotations

import time

import pytest

from harness.serving import Busbar
from tests.robustness.bystander import Bystander
from tests.robustness.wire import (
    ATTACH,
    CLOSE,
    DETACH,
    RECEIVER,
    SENDER,
    Wire,
    connected,
    logged_in,
    message,
    sas_token,
)


@pytest.mark.parametrize("role", [SENDER, RECEIVER])
@pytest.mark.parametrize("address", ["q", "q/$DeadLetterQueue", "q/$management", "no-such-queue"])
def test_a_link_without_a_token_is_refused(
    server: Busbar, bystander: Bystander, role: bool, address: str
) -> None:
    with connected(server.port) as wire:
        refusal = wire.attach(0, role, address)
        assert refusal.code == DETACH
        assert refusal.field(1) is True, "a refusal closes the link"
        assert refusal.condition == "amqp:unauthorized-access"


@pytest.mark.parametrize(
    ("token", "audience"),
    [
        (sas_token("sb://localhost/q", key="another key"), "sb://localhost/q"),
        (sas_token("sb://localhost/q", name="NoSuchRule"), "sb://localhost/q"),
        (sas_token("sb://localhost/q", lifetime=-5), "sb://localhost/q"),
        (sas_token("sb://localhost/other"), "sb://localhost/q"),
        (sas_token("sb://localhost/q").replace("sig=", "sig=x"), "sb://localhost/q"),
        ("SharedAccessSignature sr=x", "sb://localhost/q"),
        ("not a token", "sb://localhost/q"),
        ("SharedAccessSignature " + "x" * 60_000, "sb://localhost/q"),
    ],
    ids=["key", "rule", "expired", "another entity", "signature", "fields", "no token", "long"],
)
@pytest.mark.req("U4")
def test_a_token_that_proves_nothing_is_answered_401(
    server: Busbar, bystander: Bystander, token: str, audience: str
) -> None:
    with connected(server.port) as wire:
        assert wire.put_token(token, audience) == 401
        assert wire.attach(0, SENDER, "q").condition == "amqp:unauthorized-access"


def test_a_token_for_one_entity_opens_only_that(server: Busbar, bystander: Bystander) -> None:
    with connected(server.port) as wire:
        assert wire.put_token(sas_token("sb://localhost/q"), "sb://localhost/q") == 202
        assert wire.attach(0, SENDER, "q").code == ATTACH
        assert wire.attach(1, SENDER, "other").condition == "amqp:unauthorized-access"
        assert wire.attach(2, SENDER, "qq").condition == "amqp:unauthorized-access"
        assert wire.attach(3, RECEIVER, "Q/$deadletterqueue").code == ATTACH
        assert wire.send_message(0, 1, message(b"hello", "m")).outcome == 0x24


def test_a_token_for_the_namespace_opens_everything(server: Busbar, bystander: Bystander) -> None:
    with connected(server.port) as wire:
        assert wire.put_token(sas_token("sb://localhost/"), "sb://localhost/") == 202
        for handle, queue in enumerate(("q", "other")):
            assert wire.attach(handle, SENDER, queue).code == ATTACH


def test_an_unknown_entity_is_told_only_to_who_may_ask(server: Busbar, bystander: Bystander) -> None:
    with logged_in(server.port) as wire:
        assert wire.attach(0, SENDER, "no-such-queue").condition == "amqp:not-found"


@pytest.mark.parametrize("stage", ["silent", "header", "sasl", "open", "bad token"])
def test_a_connection_without_a_token_is_dropped_in_time(
    server: Busbar, bystander: Bystander, stage: str
) -> None:
    """The documented time is 20 s; this server's is lowered to 1 s."""
    with Wire(server.port, 5) as wire:
        began = time.monotonic()
        if stage == "header":
            wire.send(b"AMQP")
        elif stage != "silent":
            assert wire.sasl() == 0
        if stage in ("open", "bad token"):
            wire.open()
            wire.begin()
        if stage == "bad token":
            assert wire.put_token("nonsense", "q") == 401
        if stage in ("open", "bad token"):
            assert wire.until(CLOSE).condition == "amqp:connection:forced"
        try:
            while True:
                wire.read(1)
        except EOFError:
            pass
        assert 0.5 < time.monotonic() - began < 4
