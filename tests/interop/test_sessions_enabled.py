"""How a queue gets message sessions: by the command line, the management API and the SDKs (by the console:
tests/console/test_enabling.py, by a template: test_apply.py); and in which tiers it can."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient

from harness.amqp_driver import LinkRefused, connect, session_payload
from harness.serving import Busbar, config_text
from tests.interop.administration import BareHttp, administrations, entry

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="session")]


async def serves_sessions(server: Busbar, queue: str) -> bool:
    """Send to two sessions, accept one of them, get what belongs to it; a plain receiver is refused."""
    connection = await connect(server.port)
    try:
        sender = await connection.sender(queue, session_payload(lambda n: "ab"[n % 2]))
        await sender.send(4)
        receiver = await connection.receiver(queue, session="b")
        await receiver.settled(2)
        with pytest.raises(LinkRefused, match="requires sessions"):
            await connection.receiver(queue)
        return receiver.received == 2 and not sender.refused
    finally:
        await connection.close()


@pytest.mark.req("S17")
async def test_the_command_line(session_broker: Busbar) -> None:
    def created(name: str, flag: str) -> bool:
        command = [sys.executable, "-m", "busbar", "queue", "create", name, flag, "true"]
        done = subprocess.run(
            [*command, "--data", str(session_broker.data), "-o", "json"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return bool(json.loads(done.stdout)["requiresSession"])

    assert await asyncio.to_thread(created, "by-command", "--enable-session")
    assert await serves_sessions(session_broker, "by-command")


@pytest.mark.req("S17")
async def test_the_management_api(session_broker: Busbar) -> None:
    http = BareHttp(session_broker)
    body = entry("QueueDescription <RequiresSession>true</RequiresSession>")
    status, _type, text = http.request("PUT", "/by-api?api-version=2021-05", body)
    assert status == 201 and "<RequiresSession>true</RequiresSession>" in text
    assert await serves_sessions(session_broker, "by-api")


@pytest.mark.req("S17")
async def test_the_sdks(session_broker: Busbar) -> None:
    async with administrations(session_broker) as clients:
        for client, name in zip(clients, ("by-sync", "by-async"), strict=True):
            assert (await client.create_queue(name, requires_session=True)).requires_session
            assert await serves_sessions(session_broker, name)


def keeps_a_large_state(server: Busbar, queue: str) -> None:
    """Larger than any message of that queue, which has the tier's default of 1 MB; the tier allows 100 MB."""
    large = bytes(range(256)) * 12_000
    client = ServiceBusClient.from_connection_string(server.connection_string)
    with client, client.get_queue_receiver(queue, session_id="large") as receiver:
        receiver.session.set_state(large)
        assert receiver.session.get_state() == large


@pytest.mark.req("S2")
@pytest.mark.parametrize("tier", ["Basic", "Premium"])
async def test_tiers(tmp_path: Path, tier: str) -> None:
    """All other tests of sessions run in the Standard tier."""
    document = json.loads(config_text({}))
    document["Busbar"] = {"Tier": tier}
    server = Busbar(tmp_path / "data", json.dumps(document))
    await asyncio.to_thread(server.start)
    try:
        async with administrations(server) as clients:
            client = next(iter(clients))
            assert (await client.get_namespace_properties()).messaging_sku == tier
            if tier == "Basic":
                with pytest.raises(HttpResponseError) as refused:
                    await client.create_queue("q", requires_session=True)
                assert refused.value.status_code == 403
                await client.create_queue("q")
                connection = await connect(server.port)
                with pytest.raises(LinkRefused, match="does not require sessions"):
                    await connection.receiver("q", session="s")
                await connection.close()
            else:
                await client.create_queue("q", requires_session=True)
                assert await serves_sessions(server, "q")
                await asyncio.to_thread(keeps_a_large_state, server, "q")
    finally:
        await asyncio.to_thread(server.stop)
