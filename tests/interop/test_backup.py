"""Backups of a database with stores and a catalogue, made while Busbar serves, and restored when everything is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from harness.postgresql import PostgresqlServer, call_program, own_database
from harness.serving import Busbar, config_text

pytestmark = pytest.mark.timeout(120)
QUEUES = {"p": {"EnablePartitioning": True}}
SENT = sorted(f"before {n}" for n in range(20))


def start(database: PostgresqlServer, data: Path) -> Busbar:
    """Catalogue and stores are in one server; the data directory has the keys and addresses."""
    stores = [argument for number in range(2) for argument in ("--stores", database.url(f"store_{number}"))]
    return Busbar(
        data, config_text(QUEUES), arguments=("--catalogue", database.url("catalogue"), *stores)
    ).start()


def is_restored(server: Busbar) -> None:
    """What was sent before the backup is there, nothing else is, and messages can be sent and received."""
    found: list[str] = []
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        client.get_queue_sender("p").send_messages(ServiceBusMessage("new"))
        with client.get_queue_receiver("p") as receiver:
            while len(found) <= len(SENT):
                messages = receiver.receive_messages(max_message_count=30, max_wait_time=10)
                assert messages, f"only {found} are there"
                found += map(str, messages)
                for message in messages:
                    receiver.complete_message(message)
    assert sorted(found) == [*SENT, "new"]
    assert server.stop() == 0, server.error_text


def test_backups_of_a_running_namespace_are_restored(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with own_database() as database:
        server = start(database, data)
        address = f"--dbname=host=127.0.0.1 port={database.port} user=busbar dbname=postgres"
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            sender = client.get_queue_sender("p")
            for body in SENT:
                sender.send_messages(ServiceBusMessage(body))
            copy = database.backup()
            dump = copy / "dump.sql"
            # One dump is one snapshot: of all stores in the server, and of the catalogue.
            schemas = [f"--schema={schema}" for schema in ("catalogue", "store_0", "store_1")]
            call_program("pg_dump", address, *schemas, "--clean", "--if-exists", f"--file={dump}")
            sender.send_messages(ServiceBusMessage("after"))
        server.kill()
        call_program("psql", address, "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}")
        is_restored(start(database, data))

        database.kill()
        shutil.rmtree(database.data)
        shutil.move(copy, database.data)
        database.start()
        is_restored(start(database, data))
