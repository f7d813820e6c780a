"""Nodes of a cluster die, or freeze, under load by the Azure SDK. The others claim their stores and go on.

The nodes are processes of this machine, with real PostgreSQL servers, and a load balancer in front of them. Nothing that
was acknowledged is lost, nothing is completed twice, and each session has one holder and its order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from busbar.cli.failure import CommandFailure
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.catalogue import asked
from harness.load_balancer import LoadBalancer
from harness.node_network import NodeNetwork
from harness.postgresql import PostgresqlServer, own_database
from harness.promises import require_kept
from harness.serving import Busbar, Properties, config_text
from harness.waiting import eventually
from tests.durability.test_store_outage import Operator
from tests.durability.test_takeover import KEYS, QUEUES, Load

LEASE = 2.5
"""Seconds. An idle owner shows each second that it works, on a busy machine a little later."""
SHORT: dict[str, Properties] = {
    # Clients of a dead node have locks, for which others have to wait.
    name: {**properties, "LockDuration": "PT3S"}
    for name, properties in QUEUES.items()
}
LIMITS = {"min_lock_duration": 1_000, "balance_delay": 500}

pytestmark = pytest.mark.timeout(200)


class Cluster:
    """Nodes that share a catalogue and stores, each with a data directory of its own."""

    def __init__(self, directory: Path, databases: list[PostgresqlServer]) -> None:
        self.nodes: dict[str, Busbar] = {}
        self._directory = directory
        self.urls = [databases[number % len(databases)].url(f"store_{number}") for number in range(4)]
        self.catalogue = databases[0].url("catalogue")
        self.front = LoadBalancer()
        self.lease = LEASE
        self.limits = dict(LIMITS)
        self.queues = SHORT
        self.more: dict[str, tuple[str, ...]] = {}
        """More arguments for some of them."""
        self.environments: dict[str, dict[str, str]] = {}

    def start(self, *names: str) -> None:
        config = config_text(self.queues, {**self.limits, "store_lease": int(self.lease * 1000)})
        for name in names:
            arguments: tuple[str, ...] = ("--node", name, "--catalogue", self.catalogue)
            if not self.nodes:  # the others find the stores beside the catalogue
                arguments += ("--stores", *self.urls)
            arguments += self.more.get(name, ())
            self.nodes[name] = Busbar(
                self._directory / name,
                config,
                arguments=arguments,
                environment=self.environments.get(name),
            )
        with ThreadPoolExecutor(len(names)) as pool:
            [*pool.map(lambda name: self.nodes[name].start(), names)]
        for name in names:
            self.front.put_in(self.nodes[name])

    def owners(self, asking: str) -> dict[str, tuple[str, str]]:
        """State and broker of every store, as a node reports it."""
        try:
            stores = Operator(self.nodes[asking]).ask("GET", "stores")
        except CommandFailure:  # there is no controller now
            return {}
        return {store["name"]: (store["state"], store["broker"]) for store in stores}

    def loads(self, asking: str) -> dict[str, int]:
        """How many stores each broker has, if all are open."""
        owners = self.owners(asking).values()
        return Counter(broker for _, broker in owners) if all(state == "open" for state, _ in owners) else {}

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        node = self.nodes[name]
        for process in node.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self, name: str) -> None:
        self.front.take_out(self.nodes[name])
        self.signal(name, signal.SIGKILL)
        self.nodes.pop(name).kill()

    def stop(self) -> None:
        with ThreadPoolExecutor(3) as pool:
            [*pool.map(lambda node: node.stop(), self.nodes.values())]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with own_database() as first, own_database() as second:
        made = Cluster(tmp_path, [first, second])
        try:
            with made.front:
                yield made
        finally:
            made.stop()


def begin(load: Load) -> None:
    for number in range(2):
        load.begin(load.send, f"sender-{number}")
    for number in range(6):
        load.begin(load.work, f"worker-{number}")
    load.begin(load.receive, "receiver-0")
    eventually(lambda: all(load.book.at[key] for key in KEYS), seconds=60)


def check(load: Load, since: float) -> None:
    """Wait until every fragment has taken a message since then, end the load, and judge what clients were told."""
    book = load.book
    for key in KEYS:
        eventually(lambda key=key: book.at[key][-1] > since, f"{key} is not served", seconds=60)  # type: ignore[misc]
    print(f"all fragments took messages after {time.monotonic() - since:.2f} s")
    load.end()
    print(f"all was completed after {time.monotonic() - since:.2f} s, {len(book.acknowledged['p'])} in p")
    require_kept("nothing is doubled or comes back", book.faults)
    for queue in QUEUES:
        require_kept(f"nothing acknowledged is lost in {queue}", book.left(queue))
        twice = [number for number, count in book.numbers[queue].items() if count > 1]
        require_kept(f"nothing is completed twice in {queue}", twice)
    for session, received in book.received.items():
        first = [*dict.fromkeys(received)]
        assert first == sorted(first), f"{session} is out of order"


def all_open_without(cluster: Cluster, asking: str, victim: str) -> bool:
    owners = cluster.owners(asking).values()
    return bool(owners) and all(
        state == "open" and not broker.startswith(f"{victim}.") for state, broker in owners
    )


def holder_of_catalogue(cluster: Cluster) -> str:
    """The node that is the controller."""
    address = parse_address(cluster.catalogue, "catalogue")
    return str(asked(address, lambda connection: connection.fetch("SELECT holder FROM owner")[0][0]))


@pytest.mark.req("P2", "P4", "P14", "P18", "P19", "P25", "S8", "S10", "S15")
def test_a_frozen_node_is_replaced_and_comes_back(cluster: Cluster) -> None:
    """All its processes stand still, with their connections: nothing but silence shows it. It is the controller, and owns
    stores, so that the leases of both have to end."""
    cluster.start("a", "b", "c")
    eventually(lambda: len(cluster.loads("a")) == 3, "balance")
    owner = holder_of_catalogue(cluster)
    other = next(name for name in cluster.nodes if name != owner)
    load = Load(cluster.front, retry_backoff_factor=0.05, retry_backoff_max=0.5)
    begin(load)
    frozen = time.monotonic()
    cluster.signal(owner, signal.SIGSTOP)
    cluster.front.take_out(cluster.nodes[owner])
    eventually(lambda: all_open_without(cluster, other, owner), seconds=60)
    print(f"all stores were open after {time.monotonic() - frozen:.2f} s, with leases of {LEASE} s")
    moved = cluster.owners(other)
    cluster.signal(owner, signal.SIGCONT)
    cluster.front.put_in(cluster.nodes[owner])
    check(load, frozen)
    eventually(lambda: served(cluster.nodes[owner]), "the thawed node serves clients again", seconds=60)
    assert {broker for _, broker in moved.values()}.isdisjoint({f"{owner}.0"})
    for name, node in cluster.nodes.items():
        if "Traceback" in node.error_text:
            print(name, node.error_text)
        assert "Traceback" not in node.error_text, name
    assert holder_of_catalogue(cluster) in {*cluster.nodes} - {owner}


def served(node: Busbar) -> bool:
    """Whether clients of a node get answers."""
    try:
        with (
            ServiceBusClient.from_connection_string(node.connection_string, retry_total=0) as client,
            client.get_queue_sender("p") as sender,
        ):
            sender.send_messages(ServiceBusMessage("after the thaw"))
    except ServiceBusError:
        return False
    return True


@pytest.mark.req("P2", "P4", "P14", "P18", "P19", "P25", "S8", "S10", "S15")
def test_the_node_that_is_the_controller_is_killed(cluster: Cluster) -> None:
    cluster.start("a", "b")
    eventually(lambda: cluster.loads("a") == {"a.0": 2, "b.0": 2}, "balance")
    controller = holder_of_catalogue(cluster)
    other = "b" if controller == "a" else "a"
    load = Load(cluster.front, retry_backoff_factor=0.05, retry_backoff_max=0.5)
    begin(load)
    killed = time.monotonic()
    cluster.kill(controller)
    eventually(lambda: all_open_without(cluster, other, controller), seconds=60)
    print(f"all stores were open after {time.monotonic() - killed:.2f} s")
    cluster.start(controller)  # it finds the stores and the key beside the catalogue
    operator = Operator(cluster.nodes[controller])
    eventually(
        lambda: {view["broker"] for view in operator.ask("GET", "fragments/p")} == {"a.0", "b.0"}, "balance"
    )
    leaving = cluster.nodes[other]  # the controller now, which is stopped in good order
    assert holder_of_catalogue(cluster) == other
    cluster.front.take_out(leaving)
    stopped = time.monotonic()
    assert leaving.stop() == 0
    eventually(lambda: all_open_without(cluster, controller, other), "the stores were handed over")
    check(load, stopped)
    del cluster.nodes[other]
    assert "is claimed by" not in leaving.error_text.partition("stopping")[2], "no store was without an owner"
    for name, node in cluster.nodes.items():
        assert "Traceback" not in node.error_text, (name, node.error_text)


@pytest.mark.req("P2", "P4", "P14", "P18", "P19", "P25", "S8", "S10", "S15")
def test_nodes_are_cut_off_from_each_other_and_not_from_their_stores(cluster: Cluster) -> None:
    """Each serves its own stores. When the network is back, no store has another owner, and nothing is lost."""
    with NodeNetwork() as network:
        places = {"a": "127.0.0.2", "b": "127.0.0.3"}
        cluster.lease = 6.0  # on a busy machine an owner may be late, and is not to be replaced here
        cluster.more = {
            name: ("--node-port", str(network.add(address)), "--node-address", address)
            for name, address in places.items()
        }
        cluster.start("a", "b")
        eventually(lambda: cluster.loads("a") == {"a.0": 2, "b.0": 2}, "balance")
        controller = holder_of_catalogue(cluster)
        other = "b" if controller == "a" else "a"
        before = cluster.owners(controller)
        load = Load(cluster.front, retry_backoff_factor=0.05, retry_backoff_max=0.5)
        begin(load)
        cut = time.monotonic()
        network.cut()
        eventually(lambda: not cluster.owners(other), "without the controller there is no management")
        for name, node in cluster.nodes.items():
            assert served(node), f"{name} takes messages without a key in its own fragments"
        time.sleep(2)  # owners of which nothing is seen for so long are taken for silent
        mended = time.monotonic()
        network.mend()
        eventually(lambda: cluster.owners(other) == before, "the same owners as before")
        check(load, mended)
        print(f"the network was cut for {mended - cut:.2f} s")
        for name, node in cluster.nodes.items():
            assert "Traceback" not in node.error_text and "Fenced" not in node.error_text, (
                name,
                node.error_text,
            )
