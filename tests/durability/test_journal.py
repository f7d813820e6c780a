"""The journal of a store under `busbar serve`: idle, killed, and found without its segments."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from busbar.store.journal.segment_names import segments_of
from harness.serving import Busbar, ServerDied, config_text
from harness.waiting import eventually

MESSAGES = 50
SIZE = 20_000


def send(server: Busbar, first: int) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender("q") as sender,
    ):
        for n in range(first, first + MESSAGES, 10):
            sender.send_messages(
                [ServiceBusMessage(b"%08d" % each + bytes(SIZE)) for each in range(n, n + 10)]
            )


def received(server: Busbar, count: int) -> list[int]:
    numbers: list[int] = []
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver("q", max_wait_time=15, receive_mode="receiveanddelete") as receiver,
    ):
        while len(numbers) < count:
            messages = receiver.receive_messages(count - len(numbers))
            assert messages, f"only {len(numbers)} messages are there"
            numbers += [int(b"".join(message.body)[:8]) for message in messages]
    return numbers


@pytest.mark.req("U6", "U7")
def test_what_is_pending_is_moved_while_idle_and_found_after_a_crash(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config_text({"q": {}}), arguments=("--stores", "1")).start()
    path = server.data / "store-0.db"
    log = path.with_name("store-0.db-wal")
    try:
        send(server, 0)
        eventually(lambda: log.stat().st_size > MESSAGES * SIZE, "the idle store moves what is pending")
        send(server, MESSAGES)
        server.kill()
        taken = {segment: segment.with_suffix(".away") for segment in segments_of(path)}
        assert taken
        for segment, away in taken.items():
            segment.rename(away)
        with pytest.raises(
            ServerDied, match=r"store-0\.db was not closed cleanly, and its journal is missing"
        ):
            server.start()
        for segment, away in taken.items():
            away.rename(segment)
        server.start()
        assert sorted(received(server, 2 * MESSAGES)) == list(range(2 * MESSAGES))
        assert server.stop() == 0, server.error_text
        assert segments_of(path) == [] and not log.exists()
    finally:
        server.stop()
