"""What busbar.client raises when a broker refuses it: an error of its own for each reason, and at once.

All factories here have the default Retry, which is patient with lost connections for half a minute.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio

from busbar.client import (
    NO_RETRY,
    BusbarClientError,
    CannotConnect,
    ConnectionLost,
    MessagingFactory,
    NotFound,
    OutgoingMessage,
    QuotaExceeded,
    Unauthorized,
    blocking,
)
from harness.serving import PATIENCE, Busbar

CONNECTIONS = 6
ENTITY_CONNECTIONS = 2
AT_ONCE = 5.0
"""Seconds that a refused call may take: far less than the patience of the default Retry."""
RULES = [{"Name": "listener", "Rights": ["Listen"], "PrimaryKey": "to listen", "SecondaryKey": "another"}]
LIMITS = PATIENCE | {"max_connections": CONNECTIONS, "max_entity_connections": ENTITY_CONNECTIONS}
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(120),
    pytest.mark.parametrize("server", ["1", "2"], indirect=True),
    pytest.mark.server(
        {"q": {}, "sessions": {"RequiresSession": True}}, LIMITS, rules=RULES, arguments=("--stores", "2")
    ),
]


@pytest_asyncio.fixture(loop_scope="session")
async def full(server: Busbar) -> AsyncIterator[list[MessagingFactory]]:
    """The factories of a namespace that has as many connections as it may have."""
    factories: list[MessagingFactory] = []
    deadline = time.monotonic() + 20
    while len(factories) < CONNECTIONS:  # those of the test before may still be closing
        assert time.monotonic() < deadline
        try:
            factories.append(await MessagingFactory.connect(server.connection_string))
        except QuotaExceeded:
            await asyncio.sleep(0.05)
    yield factories
    for factory in factories:
        await factory.close()


@contextmanager
def refused(kind: type[BusbarClientError], text: str) -> Iterator[None]:
    """The block raises exactly this error, with this text, without any retries."""
    began = time.monotonic()
    with pytest.raises(kind, match=text) as caught:
        yield
    assert type(caught.value) is kind and not caught.value.retryable
    assert caught.value.condition == kind.default_condition
    assert time.monotonic() - began < AT_ONCE


async def calls(factory: MessagingFactory) -> dict[str, Callable[[], Awaitable[object]]]:
    """Calls of clients that need a connection, each the first one of its client."""

    async def transaction() -> None:
        async with factory.transaction():
            pass

    return {
        "send": lambda: factory.message_sender("q").send_messages(OutgoingMessage(b"x")),
        "send a list": lambda: factory.message_sender("q").send_messages([OutgoingMessage(b"x")] * 2),
        "receive": lambda: factory.message_receiver("q").receive_messages(1, 20),
        "peek": lambda: factory.message_receiver("q").peek_messages(),
        "accept a session": lambda: factory.accept_session("sessions", "s"),
        "declare a transaction": transaction,
        "attach a sender": lambda: factory.sender("q"),
        "attach a receiver": lambda: factory.receiver("q"),
        "read taps": lambda: factory.taps("q"),
    }


@pytest.mark.req("B12")
async def test_a_full_namespace_exceeds_its_quota(server: Busbar, full: list[MessagingFactory]) -> None:
    with refused(QuotaExceeded, "AMQP connections.*HTTP"):
        await MessagingFactory.connect(server.connection_string)
    async with MessagingFactory(server.connection_string) as factory:
        for name, call in (await calls(factory)).items():
            try:
                with refused(QuotaExceeded, "AMQP connections"):
                    await call()
            except BaseException as error:
                error.add_note(name)
                raise
        await full.pop().close()
        sender = factory.message_sender("q")
        deadline = time.monotonic() + 10
        while True:  # the gateway notices the end of the connection in a moment
            try:
                await sender.send_messages(OutgoingMessage(b"x"))
                break
            except QuotaExceeded:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)


@pytest.mark.req("B12")
async def test_a_full_namespace_exceeds_its_quota_for_blocking_calls(
    server: Busbar, full: list[MessagingFactory]
) -> None:
    def connect() -> None:
        with refused(QuotaExceeded, "AMQP connections.*HTTP"):
            blocking.connect(server.connection_string)

    await asyncio.to_thread(connect)
    await full.pop().close()

    def connect_again() -> blocking.BlockingFactory:
        deadline = time.monotonic() + 10
        while True:
            try:
                return blocking.connect(server.connection_string)
            except QuotaExceeded:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    (await asyncio.to_thread(connect_again)).close()


async def test_a_client_whose_place_was_taken_is_refused(
    server: Busbar, full: list[MessagingFactory]
) -> None:
    factory = full[0]
    receiver = factory.message_receiver("q")
    await receiver.peek_messages()
    (await factory.connection()).abort(ConnectionLost("cut"))
    deadline = time.monotonic() + 10
    while True:
        try:
            full.append(await MessagingFactory.connect(server.connection_string))
            break
        except QuotaExceeded:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
    with refused(QuotaExceeded, "AMQP connections"):
        await receiver.receive_messages(1, 20)


async def test_a_full_entity_exceeds_its_quota(server: Busbar) -> None:
    async with (
        MessagingFactory(server.connection_string) as one,
        MessagingFactory(server.connection_string) as two,
        MessagingFactory(server.connection_string) as three,
        MessagingFactory(server.connection_string) as four,
    ):
        admitted = 0
        for factory in (one, two, three, four):
            try:
                await factory.message_sender("q").send_messages(OutgoingMessage(b"x"))
                admitted += 1
            except QuotaExceeded as error:
                assert error.condition == QuotaExceeded.default_condition and not error.retryable
        assert admitted <= ENTITY_CONNECTIONS < 4


def string_with(server: Busbar, name: str, key: str) -> str:
    text = re.sub(r"SharedAccessKeyName=[^;]*", f"SharedAccessKeyName={name}", server.connection_string)
    return re.sub(r"SharedAccessKey=[^;]*", f"SharedAccessKey={key}", text)


async def test_a_wrong_key_and_a_missing_right_are_not_authorized(server: Busbar) -> None:
    for name, key, text in (
        ("RootManageSharedAccessKey", "wrong", "token for 'q' was refused"),
        ("nobody", "wrong", "token for 'q' was refused"),
        ("listener", "to listen", "Send"),
    ):
        wrong = string_with(server, name, key)
        async with MessagingFactory(wrong) as factory:
            with refused(Unauthorized, text):
                await factory.message_sender("q").send_messages(OutgoingMessage(b"x"))
            with refused(Unauthorized, text):
                await factory.sender("q")

        def send(wrong: str = wrong, text: str = text) -> None:
            with blocking.connect(wrong) as factory, refused(Unauthorized, text):
                factory.message_sender("q").send_messages(OutgoingMessage(b"x"))

        await asyncio.to_thread(send)


async def test_an_unknown_entity_is_not_found(server: Busbar) -> None:
    async with MessagingFactory(server.connection_string) as factory:
        with refused(NotFound, "missing"):
            await factory.message_sender("missing").send_messages(OutgoingMessage(b"x"))
        with refused(NotFound, "missing"):
            await factory.message_receiver("missing").receive_messages(1, 20)

    def receive() -> None:
        with blocking.connect(server.connection_string) as factory, refused(NotFound, "missing"):
            factory.message_receiver("missing").receive_messages(1, 20)

    await asyncio.to_thread(receive)


async def test_an_unknown_namespace_cannot_be_reached(server: Busbar) -> None:
    """Nothing answers there, so this is repeated if the Retry has patience."""
    text = re.sub(
        r"Endpoint=sb://[^;/]*", "Endpoint=sb://no-such-namespace.invalid", server.connection_string
    )
    with pytest.raises(CannotConnect, match=r"no-such-namespace\.invalid") as caught:
        await MessagingFactory.connect(text, retry=NO_RETRY)
    assert caught.value.retryable
    with pytest.raises(CannotConnect, match=r"no-such-namespace\.invalid"):
        await asyncio.to_thread(blocking.connect, text, retry=NO_RETRY)
