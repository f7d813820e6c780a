"""A store that is unavailable, as clients of the vendor's SDK and operators at a terminal see it; and a start without
one."""

from __future__ import annotations

import contextlib
import io
import json
import time
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusServerBusyError

from busbar.catalogue.placement import place
from busbar.cli.main import run
from busbar.model.partitioning import index_of_key
from harness.serving import Busbar, ServerDied
from tests.interop.administration import Administration
from tests.interop.http_runtime import Http

OUT = "store-2"
STORES = ["store-0", "store-1", "store-2", "store-3"]
REGULAR_OUT = next(name for name in map("r{}".format, range(99)) if place(name, 1, STORES) == (OUT,))
REGULAR_ON = next(name for name in map("r{}".format, range(99)) if place(name, 1, STORES) != (OUT,))
QUEUES = {"p": {"EnablePartitioning": True}, REGULAR_OUT: {}, REGULAR_ON: {}}

pytestmark = [pytest.mark.timeout(60), pytest.mark.server(QUEUES)]


def busbar(server: Busbar, *arguments: str) -> Any:
    """What a command prints as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run([*arguments, "--data", str(server.data), "-o", "json"]) == 0
    return json.loads(out.getvalue())


def client_of(server: Busbar) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(server.connection_string, retry_total=0)


def key_in(server: Busbar, store: str, *, inside: bool) -> str:
    """A partition key whose fragment lies in that store, or in another one."""
    homes = [fragment["store"] for fragment in busbar(server, "queue", "show", "p", "--fragments")]
    return next(
        key for key in map("key-{}".format, range(999)) if (homes[index_of_key(key, 16)] == store) == inside
    )


@pytest.mark.req("P4", "P14", "P18", "P25")
async def test_the_sdk_while_a_store_is_out(own_server: Busbar) -> None:
    lost, kept = key_in(own_server, OUT, inside=True), key_in(own_server, OUT, inside=False)
    with client_of(own_server) as client, client.get_queue_sender("p") as sender:
        sender.send_messages(ServiceBusMessage("waits", partition_key=lost))
        (shown,) = busbar(own_server, "stores", "offline", OUT)
        assert shown["state"] == "unavailable" and "operator" in shown["reason"]

        with pytest.raises(ServiceBusServerBusyError, match=OUT) as refused:
            sender.send_messages(ServiceBusMessage("no", partition_key=lost))
        assert refused.value.message
        sender.send_messages(ServiceBusMessage("other key", partition_key=kept))
        for number in range(20):
            sender.send_messages(ServiceBusMessage(f"free {number}"))
        # A client that gives itself little time is answered, or gives up by itself: it never hangs.
        began = time.monotonic()
        with contextlib.suppress(ServiceBusServerBusyError, OperationTimeoutError):
            sender.send_messages(ServiceBusMessage("no", partition_key=lost), timeout=1)
        assert time.monotonic() - began < 10

        with client.get_queue_sender(REGULAR_OUT) as other, pytest.raises(ServiceBusServerBusyError):
            other.send_messages(ServiceBusMessage("no"))
        with client.get_queue_sender(REGULAR_ON) as other:
            other.send_messages(ServiceBusMessage("yes"))
        with client.get_queue_receiver(REGULAR_OUT) as other:
            assert other.receive_messages(max_wait_time=1) == []

        received = []
        with client.get_queue_receiver("p") as receiver:
            while some := receiver.receive_messages(max_message_count=30, max_wait_time=1):
                for message in some:
                    receiver.complete_message(message)
                    received.append(str(message))
            assert sorted(received) == sorted(["other key", *(f"free {number}" for number in range(20))])

            administration = Administration(own_server, asynchronous=False)
            assert (await administration.get_queue("p")).availability_status == "Limited"
            assert (await administration.get_queue(REGULAR_OUT)).availability_status == "Limited"
            assert (await administration.get_queue(REGULAR_ON)).availability_status == "Available"
            with pytest.raises(HttpResponseError) as failed:
                await administration.create_queue("new", enable_partitioning=True)
            assert failed.value.status_code == 503
            await administration.delete_queue(REGULAR_OUT)
            await administration.create_queue(REGULAR_OUT)
            (fragment,) = busbar(own_server, "queue", "show", REGULAR_OUT, "--fragments")
            assert fragment["store"] != OUT, "a regular queue is created in a store that is there"
            with client.get_queue_sender(REGULAR_OUT) as other:
                other.send_messages(ServiceBusMessage("yes"))

            (shown,) = busbar(own_server, "stores", "online", OUT)
            assert shown["state"] == "open"
            (waited,) = receiver.receive_messages(max_wait_time=20)
            assert str(waited) == "waits"
            receiver.complete_message(waited)
        sender.send_messages(ServiceBusMessage("yes", partition_key=lost))
        assert (await administration.get_queue("p")).availability_status == "Available"
        await administration.create_queue("new", enable_partitioning=True)
        await administration.delete_queue("p")


@pytest.mark.req("P4", "P27")
async def test_a_start_while_a_store_is_missing(own_server: Busbar) -> None:
    lost, kept = key_in(own_server, OUT, inside=True), key_in(own_server, OUT, inside=False)
    with client_of(own_server) as client, client.get_queue_sender("p") as sender:
        sender.send_messages([ServiceBusMessage("waits", partition_key=lost)])
        sender.send_messages([ServiceBusMessage("is there", partition_key=kept)])
    assert own_server.stop() == 0
    file = own_server.data / f"{OUT}.db"
    away = file.rename(file.with_name("elsewhere"))
    own_server.start()
    assert f"the store {OUT} is unavailable: its file is missing" in own_server.error_text
    assert {store["name"]: store["state"] for store in busbar(own_server, "stores")}[OUT] == "unavailable"
    with client_of(own_server) as client:
        with client.get_queue_sender(REGULAR_OUT) as sender, pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("unavailable, not unknown"))
        with client.get_queue_receiver("p") as receiver:
            (found,) = receiver.receive_messages(max_wait_time=20)
            assert str(found) == "is there"
            receiver.complete_message(found)
            assert (
                await Administration(own_server, asynchronous=False).get_queue("p")
            ).availability_status == "Limited"
            away.rename(file)
            (found,) = receiver.receive_messages(max_wait_time=10)
            assert str(found) == "waits"
            receiver.complete_message(found)


def test_files_that_do_not_belong_there(own_server: Busbar) -> None:
    """Swapped files and a file of another namespace are refused by name."""
    assert own_server.stop() == 0
    one, two = own_server.data / "store-1.db", own_server.data / f"{OUT}.db"
    one.rename(own_server.data / "aside")
    two.rename(one)
    own_server.start()
    assert "store-1 is unavailable: it is the store store-2, not store-1" in own_server.error_text
    assert "the store store-2 is unavailable: its file is missing" in own_server.error_text
    assert own_server.stop() == 0
    one.rename(two)
    own_server.start()
    assert "it is the store" not in own_server.error_text
    shown = {store["name"]: store for store in busbar(own_server, "stores")}
    assert shown["store-1"]["state"] == "unavailable" and "missing" in shown["store-1"]["reason"]
    (shown_anew,) = busbar(own_server, "stores", "reset", "store-1", "--yes")
    assert (shown_anew["state"], shown_anew["lostMessages"]) == ("open", -1)
    assert own_server.stop() == 0
    (own_server.data / "aside").rename(one)
    own_server.start()
    shown = {store["name"]: store for store in busbar(own_server, "stores")}
    assert "another one was made in its place" in shown["store-1"]["reason"]


def test_what_operators_see_and_mistype(own_server: Busbar, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", str(own_server.data))
    assert run(["stores", *data]) == 0
    assert "store-3" in capsys.readouterr().out
    assert run(["stores", "offline", "store-9", *data]) == 4
    assert "store-0, store-1, store-2, store-3" in capsys.readouterr().err
    assert run(["stores", "reset", "store-0", "--yes", *data]) == 4
    assert "is in use" in capsys.readouterr().err
    assert run(["stores", "offline", OUT, *data]) == 0
    assert f"{OUT} is unavailable since" in capsys.readouterr().out
    assert run(["queue", "show", "p", "--fragments", *data]) == 0
    printed = capsys.readouterr().out
    assert printed.count(" unavailable") == 4 and "taken offline by an operator" in printed
    assert run(["queue", "show", "none", "--fragments", *data]) == 3


def test_without_most_or_all_stores_what_is_lost_can_be_given_up(
    own_server: Busbar, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", str(own_server.data))
    lost, kept = key_in(own_server, OUT, inside=True), key_in(own_server, OUT, inside=False)
    homes = [fragment["store"] for fragment in busbar(own_server, "queue", "show", "p", "--fragments")]
    also_out = next(store for store in STORES if store not in (OUT, homes[index_of_key(kept, 16)]))
    with client_of(own_server) as client, client.get_queue_sender("p") as sender:
        sender.send_messages(ServiceBusMessage("is lost", partition_key=lost))
        sender.send_messages(ServiceBusMessage("is there", partition_key=kept))
    assert run(["stores", "reset", OUT, "--stopped", "--yes", *data]) == 1
    assert "Another Busbar" in capsys.readouterr().err
    assert own_server.stop() == 0
    for store in (OUT, also_out):
        for file in own_server.data.glob(f"{store}.db*"):
            file.unlink()
    aside = own_server.data / "aside"
    aside.mkdir()
    others = [file for store in STORES for file in own_server.data.glob(f"{store}.db*")]
    for file in others:
        file.rename(aside / file.name)
    with pytest.raises(ServerDied, match=r"no store can be used.*busbar stores reset store-0 --stopped"):
        own_server.start()
    for file in others:
        (aside / file.name).rename(file)

    assert run(["stores", "reset", "store-9", "--stopped", "--yes", *data]) == 4
    healthy = homes[index_of_key(kept, 16)]
    assert run(["stores", "reset", healthy, "--stopped", "--yes", *data]) == 4
    assert "is in use" in capsys.readouterr().err
    assert run(["stores", "reset", OUT, "--stopped", "--yes", *data]) == 0
    assert "re-created" in capsys.readouterr().out

    own_server.start()
    assert f"the store {also_out} is unavailable: its file is missing" in own_server.error_text
    states = {store["name"]: store["state"] for store in busbar(own_server, "stores")}
    assert states == {store: "unavailable" if store == also_out else "open" for store in STORES}
    with (
        client_of(own_server) as client,
        client.get_queue_sender("p") as sender,
        client.get_queue_receiver("p") as receiver,
    ):
        (found,) = receiver.receive_messages(max_wait_time=20)
        assert str(found) == "is there"
        receiver.complete_message(found)
        sender.send_messages(ServiceBusMessage("new", partition_key=lost))
        (found,) = receiver.receive_messages(max_wait_time=20)
        receiver.complete_message(found)
        number = (found.sequence_number or 0) & ((1 << 48) - 1)
        assert number > 1_000_000_000_000, "no number is given twice, although nobody knows which were"
    (shown,) = busbar(own_server, "stores", "reset", also_out, "--yes")
    assert shown["state"] == "open"


@pytest.mark.req("P4", "P14", "P18", "P25")
async def test_http_while_a_store_is_out(own_server: Busbar) -> None:
    """A message or a batch without a key goes to another fragment; one with a key is refused so that it can be retried."""
    lost, kept = key_in(own_server, OUT, inside=True), key_in(own_server, OUT, inside=False)
    http = Http(own_server.port, own_server.key)
    assert (await http.send("p", b"waits", {"PartitionKey": lost})).status == 201
    busbar(own_server, "stores", "offline", OUT)
    sent = set()
    for number in range(32):  # twice around all fragments
        assert (await http.send("p", f"free {number}".encode())).status == 201
        sent.add(f"free {number}")
    assert (await http.send("p", b"other key", {"PartitionKey": kept})).status == 201
    for number in range(4):
        batch = [{"Body": f"batch {number}.{part}"} for part in range(3)]
        assert (await http.send_batch("p", batch)).status == 201
        sent |= {message["Body"] for message in batch}
    refused = (await http.send("p", b"no", {"PartitionKey": lost})).error(503)
    assert OUT in refused
    assert OUT in (await http.send(REGULAR_OUT, b"no")).error(503)

    received = []
    while (answer := await http.take("p", timeout=1)).status == 200:
        received.append(answer.body.decode())
    assert answer.status == 204
    assert sorted(received) == sorted([*sent, "other key"])
    busbar(own_server, "stores", "online", OUT)
    assert (await http.take("p")).body == b"waits"
    await http.close()
