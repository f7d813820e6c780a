"""What a receiver of a partitioned entity does when time passes: no event loop, the test is the clock."""

from __future__ import annotations

from typing import TypeVar

from busbar.model.api import EntityView
from busbar.model.commands import RELEASE, Command, Demand, Settle
from busbar.model.effects import Delivered, Refused
from busbar.model.entities import QueueDescription
from busbar.model.message import ACTIVE, Record
from busbar.partitions.client_drain import DRAIN_WAIT_MS
from busbar.partitions.credit_allocation import FragmentCredit
from busbar.partitions.origin import DeliveryHandler, EffectHandler, Wakeable
from busbar.partitions.rebalancing import REBALANCE_MS
from busbar.partitions.receiver import REVOKE_MS, PartitionedReceiver

C = TypeVar("C", bound=Command)
FRAGMENTS = (101, 102, 103)
LOCK_MS = 30_000
LONG_AGO = 10


class Client:
    """A receiving client with its connection, and the fragments, which answer when the test tells them to."""

    def __init__(self) -> None:
        self.origin = 7
        self.now = 1_000
        self.wake = 0
        self.granted = 0
        self.drains: list[int] = []
        self.got: list[int] = []
        self.commands: list[Command] = []
        self._consumers: dict[int, DeliveryHandler] = {}
        self._requests: dict[int, EffectHandler] = {}
        entity = EntityView(
            "q", QueueDescription(enable_partitioning=True), FRAGMENTS, stores=("a", "b", "c")
        )
        self.receiver = PartitionedReceiver(self, self, entity, ACTIVE, False)

    # ReceivingClient

    def credit(self) -> int:
        return self.granted

    def capacity(self) -> int:
        return self.granted

    def wanted(self, most: int) -> int:
        return min(self.granted, most)

    def deliver(self, demand: FragmentCredit, records: list[Record], nonce: int, until: int) -> None:
        self.got += [record.n for record in records]
        self.granted -= len(records)

    def drained(self) -> None:
        self.drains.append(self.now)
        self.granted = 0

    # Origin

    def command(self, command: Command) -> None:
        self.commands.append(command)

    def expect(self, who: EffectHandler) -> int:
        self._requests[len(self._requests) + 1] = who
        return len(self._requests)

    def consumer(self, who: DeliveryHandler) -> int:
        self._consumers[len(self._consumers) + 1] = who
        return len(self._consumers)

    def forget_consumer(self, number: int) -> None:
        del self._consumers[number]

    def wake_at(self, who: Wakeable, at: int) -> None:
        assert who is self.receiver
        self.wake = at

    def flush(self) -> None: ...

    # The test's side

    def grant(self, credit: int) -> None:
        self.granted = credit
        self.receiver.replenish(self.now)

    def drain(self, credit: int) -> None:
        self.granted = credit
        self.receiver.drain(self.now)

    def pass_time(self, milliseconds: int) -> None:
        """Wake the receiver whenever it asked for it."""
        end = self.now + milliseconds
        while 0 < self.wake <= end:
            self.now = self.wake
            self.wake = self.receiver.wake(self.now)
            assert not 0 < self.wake <= self.now, "it asks to be woken for ever"
        self.now = end

    def take(self, kind: type[C]) -> list[C]:
        """The new commands of a kind; all others are dropped."""
        taken = [command for command in self.commands if isinstance(command, kind)]
        self.commands.clear()
        return taken

    def revoked(self) -> set[int]:
        return {demand.fragment for demand in self.take(Demand) if demand.drain}

    def returned(self) -> list[int]:
        return [n for settle in self.take(Settle) if settle.outcome == RELEASE for n in settle.numbers]

    def give(self, fragment: int, *numbers: int, enqueued: int = LONG_AGO) -> None:
        records = [Record(n, enqueued, 0, 0, 0, 3, b"xyz", None) for n in numbers]
        consumer = FRAGMENTS.index(fragment) + 1
        effect = Delivered(self.origin, consumer, fragment, records, 9, self.now + LOCK_MS)
        self._consumers[consumer].delivered(effect, self.now)

    def answer_drain(self, fragment: int) -> None:
        self._consumers[FRAGMENTS.index(fragment) + 1].drained(self.now)

    def refuse(self, request: int) -> None:
        self._requests[request].answered(Refused(self.origin, request, "busy", "no"), self.now)


def test_unused_credit_is_revoked_soon_after_the_client_wants_nothing_more() -> None:
    client = Client()
    client.grant(1)
    client.give(101, 1)
    assert client.got == [1]
    client.pass_time(REVOKE_MS - 1)
    assert client.revoked() == set()
    client.pass_time(1)
    assert client.revoked() == {102, 103}
    assert not client.wake


def test_credit_stays_while_the_client_receives_in_a_loop() -> None:
    client = Client()
    for n in range(1, 6):
        client.grant(1)
        client.give(101, n)
        client.pass_time(REVOKE_MS - 1)
    assert client.got == [1, 2, 3, 4, 5]
    assert client.revoked() == set()


def test_cached_messages_return_when_half_their_lock_is_over() -> None:
    client = Client()
    client.grant(1)
    client.give(101, 1)
    client.give(102, 2)
    client.pass_time(1_000)
    client.give(103, 3)
    client.pass_time(LOCK_MS // 2 - 1_001)
    assert client.returned() == []
    client.pass_time(1)
    assert client.returned() == [2]
    client.pass_time(1_000)
    assert client.returned() == [3]
    assert not client.wake


def test_a_message_that_came_after_the_client_was_satisfied_returns_at_once() -> None:
    client = Client()
    client.grant(1)
    client.give(101, 1)
    client.give(102, 2, enqueued=client.now + 1)
    assert client.returned() == [2]


def test_a_drain_waits_once_and_not_for_long_for_a_fragment_that_does_not_answer() -> None:
    client = Client()
    client.drain(10)
    client.answer_drain(101)
    client.answer_drain(102)
    client.pass_time(DRAIN_WAIT_MS - 1)
    assert client.drains == []
    client.pass_time(1)
    assert client.drains == [1_000 + DRAIN_WAIT_MS]
    client.drain(10)
    client.answer_drain(101)
    client.answer_drain(102)
    assert len(client.drains) == 2, "it is not waited for again before it has answered"


def test_a_fragment_without_credit_gets_some_when_the_others_hold_theirs_in_vain() -> None:
    client = Client()
    client.grant(600)
    for n, fragment in enumerate(FRAGMENTS):
        asked = [demand.credit for demand in client.commands if isinstance(demand, Demand)][n]
        client.give(fragment, *range(1_000 * n, 1_000 * n + asked))
    while not client.wake:  # windows grow until one fragment holds all there is
        client.grant(600)
        largest = max(client.receiver._demands.credits, key=lambda credit: credit.outstanding)
        client.give(largest.fragment, *range(largest.outstanding))
    starved = {credit.fragment for credit in client.receiver._demands.credits if not credit.outstanding}
    assert starved
    client.commands.clear()
    client.granted = 600
    client.pass_time(3 * REBALANCE_MS)
    assert starved & {demand.fragment for demand in client.take(Demand) if demand.credit}


def test_a_closed_receiver_is_woken_no_more() -> None:
    client = Client()
    client.grant(1)
    client.give(101, 1)
    client.give(102, 2)
    assert client.wake
    client.receiver.close()
    assert not client.wake and client.returned() == [2]


def test_when_locks_cannot_be_renewed_together_each_is_tried() -> None:
    client = Client()
    client.grant(1)
    client.give(101, 1, 2, 3)
    client.pass_time(LOCK_MS // 4)
    client.commands.clear()
    client.grant(2)
    client.refuse(1)
    assert sorted(client._requests) == [1, 2, 3], "one by one"
    client.refuse(2)
    assert client.returned() == [2]
