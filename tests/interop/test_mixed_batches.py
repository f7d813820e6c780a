"""Batches with different keys, on a link that asked for the capability: split over fragments, answered part by part."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, ULong
from busbar.cli.endpoint import ManagementEndpoint
from busbar.cli.management_client import ManagementClient
from busbar.gateway.amqp.incoming import FAILED, MIXED_BATCHES, UNKNOWN
from busbar.model.partitioning import index_of_key
from harness.amqp_driver import LoadConnection, Payload, Sender, connect
from harness.serving import Busbar

SIZE = 64
QUEUES = {"p": {"EnablePartitioning": True}, "r": {}}

pytestmark = [pytest.mark.timeout(60), pytest.mark.shim("io_error"), pytest.mark.server(QUEUES)]


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A store whose file is named in here has a broken disk."""
    return tmp_path / "broken"


@pytest.fixture
def server_environment(shim: Path, broken: Path) -> dict[str, str]:
    return {"LD_PRELOAD": str(shim), "IO_ERROR_FILE": str(broken)}


def key_of(number: int) -> str | None:
    """Every fourth message has none; a batch has keys of many fragments."""
    return None if number % 4 == 3 else f"key-{number}"


def index_of(number: int) -> int | None:
    key = key_of(number)
    return None if key is None else index_of_key(key, 16)


def mixed(number: int) -> bytes:
    key = key_of(number)
    annotations = {} if key is None else {Symbol("x-opt-partition-key"): key}
    body = encode_value(Described(ULong(0x75), str(number).encode()))
    return encode_value(Described(ULong(0x72), annotations)) + body


async def sender_of_batches(
    connection: LoadConnection, queue: str = "p", payload: Payload = mixed, *, asks: bool = True
) -> Sender:
    capabilities = [MIXED_BATCHES] if asks else None
    return await connection.sender(queue, payload, in_flight=SIZE, batch=SIZE, capabilities=capabilities)


def homes(server: Busbar) -> dict[int, str]:
    """The store of each fragment of the partitioned queue."""
    target = ManagementEndpoint("127.0.0.1", server.port, False, "RootManageSharedAccessKey", server.key)
    with ManagementClient(target) as client:
        views = json.loads(client.expect("GET", "$busbar/fragments/p", "p").body)
    return {view["index"]: view["store"] for view in views}


def change_store(server: Busbar, name: str, to: str) -> None:
    target = ManagementEndpoint("127.0.0.1", server.port, False, "RootManageSharedAccessKey", server.key)
    with ManagementClient(target) as client:
        client.expect("POST", f"$busbar/stores/{name}/{to}", name)


def stored(server: Busbar) -> dict[int, int]:
    """The fragment of each message that is there."""
    found: dict[int, int] = {}
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver("p") as receiver,
    ):
        while some := receiver.receive_messages(max_message_count=SIZE, max_wait_time=1):
            for message in some:
                receiver.complete_message(message)
                number = int(str(message))
                assert number not in found, "twice"
                found[number] = int(message.sequence_number or 0) >> 48
    return found


@pytest.mark.req("P32")
async def test_a_link_that_asked_may_mix_keys_in_a_batch(own_server: Busbar) -> None:
    connection = await connect(own_server.port)
    sender = await sender_of_batches(connection)
    assert sender.link is not None and sender.link.offered_capabilities == [MIXED_BATCHES]
    await sender.send(SIZE)
    assert sender.acknowledged == SIZE and sender.refused == []
    found = await asyncio.to_thread(stored, own_server)
    assert found.keys() == {*range(SIZE)}
    for number, index in found.items():
        assert index_of(number) in (None, index)
    assert len(Counter(found.values())) > 10, "the batch was split"
    await connection.close()


async def test_a_link_that_did_not_ask_may_not(own_server: Busbar) -> None:
    connection = await connect(own_server.port)
    sender = await sender_of_batches(connection, asks=False)
    assert sender.link is not None and not sender.link.offered_capabilities
    await sender.send(SIZE)
    assert sender.refused == [(0, "amqp:not-allowed")]
    assert sender.last_error is not None and "distinct" in sender.last_error.description
    assert await asyncio.to_thread(stored, own_server) == {}
    regular = await sender_of_batches(connection, "r")
    await regular.send(SIZE)
    assert regular.acknowledged == SIZE, "on a regular queue nothing is split"
    await connection.close()


@pytest.mark.req("P14", "P18", "P25")
@pytest.mark.parametrize("known", [True, False], ids=["taken offline", "broken during the commit"])
async def test_the_messages_that_failed_are_named(own_server: Busbar, broken: Path, known: bool) -> None:
    places = await asyncio.to_thread(homes, own_server)
    out = "store-1"
    keyed = {number: index for number in range(SIZE) if (index := index_of(number)) is not None}
    concerned = [number for number, index in keyed.items() if places[index] == out]
    assert len(concerned) > 3
    connection = await connect(own_server.port)
    sender = await sender_of_batches(connection)
    if known:
        await asyncio.to_thread(change_store, own_server, out, "offline")
    else:
        await asyncio.to_thread(broken.write_text, f"{out}.db")
    await sender.send(SIZE)

    error = sender.last_error
    assert error is not None and error.condition == "com.microsoft:server-busy", error
    info = {str(name): value for name, value in (error.info or {}).items()}
    failed, unknown = info[FAILED], info[UNKNOWN]
    assert isinstance(failed, list) and isinstance(unknown, list)
    if known:
        assert (failed, unknown) == (concerned, [])
    else:
        # Messages without a key may have gone to that store, too: then nobody knows about them either.
        assert failed == [] and {*concerned} <= {*unknown}
        assert all(number in concerned or index_of(number) is None for number in unknown)
        await asyncio.to_thread(broken.unlink)
    assert f"Of the {SIZE} messages of the batch {len(failed)} were not stored" in error.description

    if known:
        found = await asyncio.to_thread(stored, own_server)
        assert found.keys() == {*range(SIZE)} - {*failed}
        await asyncio.to_thread(change_store, own_server, out, "online")
    found = await asyncio.to_thread(stored, own_server)
    assert known or {*range(SIZE)} - {*unknown} <= found.keys()
    again = await connect(own_server.port)
    sender = await sender_of_batches(again)
    await sender.send(SIZE)
    assert sender.acknowledged == SIZE
    for one in (connection, again):
        await one.close()
