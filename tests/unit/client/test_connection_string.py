"""Connection strings and the tokens made of them; and that their secrets stay where they are."""

from __future__ import annotations

import pickle

import pytest

from busbar.client import (
    BusbarClientError,
    ConnectionLost,
    MessagingFactory,
    NotFound,
    SendFailed,
    SettleFailed,
    parse_connection_string,
)
from busbar.client.errors import error_of
from busbar.gateway.authority import Authority
from busbar.model.sas import SasRule
from tests.unit.client.scripted_broker import ScriptedBroker

KEY = "SharedAccessKeyName=Root;SharedAccessKey=k+/=y="


@pytest.mark.parametrize(
    ("text", "host", "port", "tls"),
    [
        (f"Endpoint=sb://localhost;{KEY};UseDevelopmentEmulator=true", "localhost", 5672, False),
        (f"Endpoint=sb://localhost:1234/;{KEY};", "localhost", 1234, True),
        (f"endpoint = sb://a.b.c ; {KEY}", "a.b.c", 5671, True),
        (f"Endpoint=amqp://[::1]:99;{KEY}", "::1", 99, False),
        (f"Endpoint=amqps://h;{KEY};UseDevelopmentEmulator=true", "h", 5671, True),
    ],
)
def test_addresses(text: str, host: str, port: int, tls: bool) -> None:
    endpoint = parse_connection_string(text)
    assert (endpoint.host, endpoint.port, endpoint.tls) == (host, port, tls)
    assert endpoint.key == "k+/=y=" and "k+/=y=" not in repr(endpoint)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Endpoint=sb://h",
        KEY,
        f"Endpoint=ftp://h;{KEY}",
        f"Endpoint=sb://h:0;{KEY}",
        f"k+/=y;{KEY}",
        f"Endpoint=sb://h SharedAccessKey=k+/=y;{KEY}",
        "k+/y",
    ],
)
def test_what_is_no_connection_string_is_not_quoted(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_connection_string(text)
    assert "k+/" not in str(caught.value)


def test_tokens_are_what_a_broker_verifies() -> None:
    endpoint = parse_connection_string(f"Endpoint=sb://localhost:5672;{KEY};EntityPath=some queue")
    authority = Authority([SasRule("Root", ("k+/=y=",), frozenset({"Send"}))])
    token = endpoint.token_for("some queue", 2_000_000_000)
    grant = authority.verify_token(token, endpoint.resource("some queue"), 1_700_000_000_000)
    assert grant.covers("some queue/$management") and not grant.covers("other")
    assert grant.expires == 2_000_000_000_000
    ready = parse_connection_string(f"Endpoint=sb://h;SharedAccessSignature={token}")
    assert ready.token_for("other", 5) == token and token not in repr(ready)


async def test_secrets_are_not_shown(scripted: ScriptedBroker) -> None:
    scripted.token_status = 401
    async with await MessagingFactory.connect(scripted.connection_string) as factory:
        assert "a-secret" not in repr(factory) and "a-secret" not in repr(factory.endpoint)
        with pytest.raises(BusbarClientError) as caught:
            await factory.sender("q")
        assert scripted.tokens and scripted.tokens[0] not in str(caught.value)


def test_errors_cross_processes() -> None:
    for error in (
        error_of("amqp:not-found", "gone"),
        ConnectionLost("lost"),
        SendFailed("some", "c", {1: ("a", "b")}, (2, 3)),
        SettleFailed("some", "c", {1: ("a", "b")}),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error) and vars(copy) == vars(error) and str(copy) == str(error)
    assert isinstance(error_of("amqp:not-found", "gone"), NotFound)
    assert not error_of("amqp:not-found", "gone").retryable
    assert error_of("com.microsoft:server-busy", "later").retryable
    assert not SendFailed("", "", {1: ("amqp:not-allowed", "")}, ()).retryable
