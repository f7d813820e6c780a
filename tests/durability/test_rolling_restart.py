"""All brokers of a namespace are restarted under load by the Azure SDK, as it is by default: no client gets an error."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)
from azure.servicebus.exceptions import ServiceBusError

from harness.processes import brokers_of
from harness.serving import Busbar
from harness.waiting import eventually
from tests.durability.test_hand_over import KEYS, StrictLoad, owners, serving

CUT_OFF = "Management Operation error occurred"


class DefaultLoad(StrictLoad):
    """Clients that repeat what the SDK repeats by itself. A repeated send can make a message twice, and an answer to a
    completion can be lost, so only what was acknowledged is checked."""

    cut_off = 0
    receive_seconds = (
        None  # the SDK repeats a receive operation only within its time, and its first pause is 0.8 s
    )

    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self._server.connection_string)

    def end(self) -> None:
        """Send something until every receiver has noticed the end: they wait without a limit."""
        self.end_sending()
        receivers = [thread for thread in self._threads if thread.name.startswith("receiver")]
        with self.client() as client, client.get_queue_sender("p") as sender:

            def have_ended() -> bool:
                sender.send_messages([ServiceBusMessage("the end") for _ in receivers])
                return not any(thread.is_alive() for thread in receivers)

            eventually(have_ended, pause=0.2)
        super().end()

    def complete(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        """The SDK repeats no request whose connection ends before the answer. It settles by requests what came over a
        connection that has ended since."""
        try:
            super().complete(receiver, message)
        except ServiceBusError as error:
            if CUT_OFF not in str(error):
                raise
            self.cut_off += 1

    def left(self) -> int:
        return len({body for key in KEYS for body in self.sent[key]} - {*self.completed})

    def check(self) -> None:
        assert self.faults == []
        assert not self.left(), "acknowledged and lost"


def restart(server: Busbar) -> str:
    command = [sys.executable, "-m", "busbar", "brokers", "restart"]
    options = ["--connection-string", server.connection_string]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(120)
@pytest.mark.req("P2", "P3", "P14", "P25", "P26")
def test_all_brokers_are_restarted_under_load_and_no_client_gets_an_error(tmp_path: Path) -> None:
    limits: dict[str, object] = {"balance_delay": 600_000}
    # What was on its way to a client when its connection was closed comes again after the lock.
    served = serving(tmp_path / "data", limits, "--brokers", "2", "--stores", "4", lock="PT5S")
    with served as (server, operator):
        load = DefaultLoad(server)
        for number in range(2):
            load.begin(f"sender-{number}", load.send_keyed)
            load.begin(f"receiver-{number}", load.receive)
        load.until_sent(0.0)
        before, processes = owners(operator), brokers_of(server)
        started = time.monotonic()
        assert restart(server).splitlines() == ["broker-0 was restarted.", "broker-1 was restarted."]
        took = time.monotonic() - started
        assert not {*brokers_of(server).values()} & {*processes.values()}
        eventually(lambda: sorted(owners(operator).values()) == sorted(before.values()), "load is even again")
        load.until_sent(time.monotonic())
        load.end()
        load.check()
        # A client that sleeps before it tries again does not see that its connection was closed.
        assert load.cut_off <= 2, "at most one request of each receiver"
        print(
            f"in {took:.1f} s; {len(load.completed)} messages, the longest pause {load.longest_pause():.2f} s"
        )
