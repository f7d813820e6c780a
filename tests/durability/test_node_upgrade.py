"""The nodes of a cluster are upgraded one after the other, under load by the Azure SDK, as it is by default.

The release before is this one, which offers the level before (`--node-level`), and takes no call of a later one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    SessionLockLostError,
)

from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.catalogue import asked
from harness.promises import require_kept
from harness.waiting import eventually
from tests.durability.test_hand_over import SESSIONS
from tests.durability.test_nodes import SHORT, Cluster, cluster
from tests.durability.test_rolling_restart import DefaultLoad

__all__ = ["cluster"]

pytestmark = pytest.mark.timeout(200)


class UpgradeLoad(DefaultLoad):
    def work(self, session: str) -> Callable[[str, ServiceBusClient], None]:
        """Receive the messages of a session. It ends with its connection, which the SDK reports: then it is accepted again.
        No other error is expected."""

        def work(name: str, client: ServiceBusClient) -> None:
            while not self.all_sent.is_set() or not self._has_all(session):
                try:
                    with client.get_queue_receiver("s", session_id=session) as receiver:
                        while not self.all_sent.is_set() or not self._has_all(session):
                            for message in receiver.receive_messages(5, max_wait_time=0.3):
                                self.received[session].append(str(message))
                                receiver.complete_message(message)
                except (SessionLockLostError, ServiceBusConnectionError, OperationTimeoutError):
                    self.lost += 1
                except ServiceBusError as error:
                    self.faults.append(f"{name}: {type(error).__name__}: {error}")

        return work

    lost = 0
    repeated = 0

    def complete(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        """If the answer to a completion is lost with its connection, the SDK repeats it, and reports that the lock is not
        held any more. It reports the same if the lock has ended while it waited to try again."""
        try:
            super().complete(receiver, message)
        except MessageLockLostError:
            self.repeated += 1

    def _has_all(self, session: str) -> bool:
        return {*self.sent[session]} <= {*self.received[session]}

    def check(self) -> None:
        super().check()
        for session in SESSIONS:
            first = [*dict.fromkeys(self.received[session])]
            require_kept(f"{session} is in order", [] if first == self.sent[session] else first)


def levels(cluster: Cluster) -> dict[str, int]:
    """What each node offers, as the cluster has it."""
    address = parse_address(cluster.catalogue, "catalogue")
    return dict(asked(address, lambda connection: connection.fetch("SELECT name, level FROM member")))


@pytest.mark.req("P2", "P3", "P14", "P25", "P26")
def test_nodes_are_upgraded_one_after_the_other_and_no_client_gets_an_error(cluster: Cluster) -> None:
    cluster.more = dict.fromkeys("abc", ("--node-level", "1"))
    # What was on its way to a client when its connection was closed comes again after the lock.
    cluster.queues = {name: {**SHORT[name], "LockDuration": "PT6S"} for name in SHORT}
    cluster.start("a", "b", "c")
    assert levels(cluster) == {"a": 1, "b": 1, "c": 1}
    load = UpgradeLoad(cluster.front)  # type: ignore[arg-type]  # it has a connection string
    load.begin_all()
    for name in "ab":
        before = cluster.nodes[name]
        cluster.front.drain(before)
        assert before.stop() == 0
        del cluster.nodes[name], cluster.more[name]
        cluster.start(name)
    load.until_sent(0.0)
    load.end()
    load.check()
    print(
        f"{len(load.completed)} messages, {load.lost} sessions were accepted again, {load.repeated} completions repeated"
    )
    assert load.repeated <= len(load.completed) // 100, "only those under way when a connection ended"
    assert levels(cluster) == {"a": 2, "b": 2, "c": 1}
    # Takeovers use calls that the node of the earlier release does not have.
    os.kill(cluster.nodes["a"].processes()[1], signal.SIGKILL)
    eventually(lambda: len(cluster.loads("b")) == 3, "all stores are open, and balanced again")
    for name, node in cluster.nodes.items():
        assert "Traceback" not in node.error_text and "is closed" not in node.error_text, (
            name,
            node.error_text,
        )
