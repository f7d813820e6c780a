"""AMQP over a WebSocket, as the SDKs do it where only HTTPS gets out."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiohttp
import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusMessage, TransportType

from harness.serving import Busbar, serving
from tests.interop.test_tls import ca_file, client_options, cloud_string
from tests.robustness.wire import SASL_HEADER

pytestmark = pytest.mark.server(
    {"sync": {}, "async": {}, "slow": {}}, {"token_timeout": 2_000, "handshake_timeout": 2_000}
)


def options(server: Busbar) -> dict[str, Any]:
    return client_options(server, transport_type=TransportType.AmqpOverWebsocket)


@pytest.mark.req("B1")
def test_the_sync_sdk(server: Busbar) -> None:
    with azure.servicebus.ServiceBusClient.from_connection_string(
        cloud_string(server), **options(server)
    ) as client:
        with client.get_queue_sender("sync") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}" * 30_000) for n in range(5)])
        with client.get_queue_receiver("sync") as receiver:
            taken = 0
            while taken < 5:
                for message in receiver.receive_messages(max_message_count=5, max_wait_time=5):
                    assert str(message) == f"{taken}" * 30_000
                    receiver.complete_message(message)
                    taken += 1
            assert receiver.peek_messages() == []


@pytest.mark.req("B1")
async def test_the_async_sdk(server: Busbar) -> None:
    async with azure.servicebus.aio.ServiceBusClient.from_connection_string(
        cloud_string(server), **options(server)
    ) as client:
        async with client.get_queue_sender("async") as sender:
            await sender.send_messages(ServiceBusMessage("x" * 250_000))
        async with client.get_queue_receiver("async") as receiver:
            (message,) = await receiver.receive_messages(max_wait_time=20)
            assert str(message) == "x" * 250_000
            await receiver.complete_message(message)


@pytest.mark.parametrize(
    "path", ["/$servicebus/websocket", "/$servicebus/websocket/", "/$ServiceBus/WebSocket"]
)
@pytest.mark.parametrize("protocol", ["AMQPWSB10", "amqp"])
async def test_the_upgrade(server: Busbar, path: str, protocol: str) -> None:
    """Plain, too; and frames may be cut anywhere."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{server.port}{path}", protocols=(protocol,)) as socket,
    ):
        assert socket.protocol == protocol
        for byte in SASL_HEADER:
            await socket.send_bytes(bytes((byte,)))
        assert (await socket.receive_bytes(timeout=3)).startswith(SASL_HEADER)


async def test_a_plain_request_to_the_path_is_refused(server: Busbar) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}/$servicebus/websocket") as answer,
    ):
        assert answer.status == 400
        assert "<Code>400</Code>" in await answer.text()


@pytest.mark.parametrize("misdeed", ["text", "silence", "garbage", "too large"])
async def test_a_websocket_that_misbehaves_is_closed(server: Busbar, misdeed: str) -> None:
    trust = ssl.create_default_context(cafile=ca_file(server))
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(
            f"https://localhost:{server.port}/$servicebus/websocket", protocols=("AMQPWSB10",), ssl=trust
        ) as socket,
    ):
        if misdeed == "text":
            await socket.send_str("AMQP")
        elif misdeed == "garbage":
            await socket.send_bytes(b"\xff" * 64)
        elif misdeed == "too large":
            await socket.send_bytes(bytes(5 * 1024 * 1024))
        async with asyncio.timeout(6):
            while (frame := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
                pass
        assert frame.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    assert "Traceback" not in server.error_text


async def test_a_clean_stop_tells_the_client() -> None:
    with serving({"q": {}}) as server:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(
                f"http://127.0.0.1:{server.port}/$servicebus/websocket", protocols=("AMQPWSB10",)
            ) as socket,
        ):
            await socket.send_bytes(SASL_HEADER)
            await socket.receive_bytes(timeout=3)
            loop = asyncio.get_running_loop()
            stopped = loop.run_in_executor(None, server.stop)
            async with asyncio.timeout(5):
                while (frame := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
                    pass
            assert frame.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
            assert await stopped == 0
