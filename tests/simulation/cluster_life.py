"""What happens in a simulation of several brokers: from a seed, what clients do and what goes wrong.

Lives differ in what they are made of, in how often each thing happens, and in how long things take.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from busbar.model import commands as c
from busbar.model.message import ACTIVE, DEAD
from harness.memory_store import Fault
from tests.simulation.cluster_client import ClientConsumer, SimulatedClient
from tests.simulation.cluster_process import SILENT_SECONDS
from tests.simulation.cluster_world import Shape, World

WORLD = "cluster"
STEPS = 200


class ClusterLife:
    def __init__(self, seed: int, on_line: Callable[[str], None] = lambda line: None) -> None:
        r = self.random = Random(seed)
        shape = Shape(
            brokers=r.choice([2, 2, 3, 4]),
            stores=r.choice([1, 1, 2]),
            fragments=r.choice([1, 2, 4]),
            lock_ms=r.choice([700, 2_000, 5_000]),
            max_deliveries=r.choice([2, 10]),
            latency=r.choice([0.001, 0.02, 0.2]),
            disk_latency=r.choice([0.001, 0.02, 0.1]),
            has_nodes=r.random() < 0.4,
        )
        self.world = World(shape, r, on_line)
        self.sessions = [f"s{number}" for number in range(r.choice([1, 3]))]
        self.contended: list[int] = []
        """If there are any, only sessions of these fragments are accepted."""
        self.most_clients = r.choice([2, 4, 6])
        self.pauses = r.choice([[0.0, 0.001, 0.01], [0.0, 0.01, 0.1], [0.0, 0.05, 0.5]])
        clients = [
            (self.connect, 4),
            (self.disconnect, 1),
            (self.send, 10),
            (self.demand, 10),
            (self.leave, 2),
            (self.settle, 14),
            (self.renew, 1),
            (self.accept, 6),
            (self.give_up_accept, 1),
            (self.renew_session, 2),
            (self.await_session, 2),
            (self.cancel_await, 1),
            (self.receive_deferred, 2),
            (self.peek, 2),
        ]
        faults = [
            (self.cut, 2),
            (self.stall, 2),
            (self.freeze, 1),
            (self.kill, 1),
            (self.fail_commit, 2),
            (self.fail_soon, 1),
            (self.hang, 1),
            (self.refuse_opening, 1),
            (self.move, 2),
            (self.doubt, 1 if shape.has_nodes else 0),
        ]
        self.kinds = [kind for kind, _ in clients + faults]
        self.weights = [weight * r.choice([0.1, 1, 1, 4]) for _, weight in clients]
        self.weights += [weight * r.choice([0.0, 0.3, 1, 3]) for _, weight in faults]
        if r.random() < 0.4:
            self._contend()

    def _contend(self) -> None:
        """Let some clients contend for one session of one fragment, while brokers lose each other."""
        r = self.random
        self.sessions = ["s0"]
        self.contended = [r.choice(self._with_sessions())]
        self.most_clients = 4
        self.pauses = [0.0, 0.05, 0.3]
        cuts, kills = r.choice([(6.0, 0.0), (1.0, 3.0)])
        weights = {self.accept: 30.0, self.cut: cuts, self.kill: kills, self.disconnect: 0.3, self.leave: 0.3}
        for kind, weight in weights.items():
            self.weights[self.kinds.index(kind)] = weight

    def step(self) -> None:
        (kind,) = self.random.choices(self.kinds, self.weights)
        kind()
        self.world.run(self.random.choice(self.pauses) * self.random.random())

    # ---- clients ----

    def connect(self) -> None:
        alive = [one for one in self.world.controller.alive() if not one.loop.is_frozen]
        if alive and len(self.world.clients) < self.most_clients:
            self.world.connect(self.random.choice(alive))

    def _client(self) -> SimulatedClient | None:
        if not self.world.clients:
            self.connect()
        clients = self._clients()
        return self.random.choice(clients) if clients else None

    def _clients(self) -> list[SimulatedClient]:
        """Those whose broker reads what they say."""
        return [client for client in self.world.clients if not client.process.loop.is_frozen]

    def _fragment(self) -> int:
        return self.random.choice([*self.world.settings])

    def _consumer(self, client: SimulatedClient) -> ClientConsumer | None:
        return self.random.choice([*client.consumers.values()]) if client.consumers else None

    def disconnect(self) -> None:
        clients = self._clients()
        if clients:
            self.world.disconnect(self.random.choice(clients))

    def send(self) -> None:
        r, client, fragment = self.random, self._client(), self._fragment()
        if client is None:
            return
        settings = self.world.settings[fragment]
        session = r.choice(self.sessions) if settings.requires_session else None
        messages = [
            self.world.truth.message(fragment, f"id{r.randint(1, 30)}", session)
            for _ in range(r.choice([1, 1, 2, 5]))
        ]
        scheduled = self.world.wall() + r.randint(1, 3_000) if r.random() < 0.1 else 0
        client.send(messages, scheduled, r.random() < 0.5)

    def demand(self) -> None:
        r, client = self.random, self._client()
        if client is None:
            return
        consumer = self._consumer(client) if r.random() < 0.7 else None
        if consumer is None:
            fragment = self._fragment()
            has_sessions = self.world.settings[fragment].requires_session
            sub = DEAD if has_sessions or r.random() < 0.2 else ACTIVE
            consumer = client.consume(fragment, sub, fragment in self.world.deletes and sub == ACTIVE)
        if not consumer.is_draining:
            drain = r.random() < 0.2
            client.demand(consumer, r.choice([0, 2]) if drain else r.choice([1, 2, 5]), drain)

    def leave(self) -> None:
        client = self._client()
        if client is not None and (consumer := self._consumer(client)) is not None:
            client.leave(consumer)

    def settle(self) -> None:
        r = self.random
        holding = [client for client in self._clients() if client.locks]
        if holding:
            client = r.choice(holding)
            lock = r.choice(client.locks)
            outcomes = [c.COMPLETE, c.COMPLETE, c.ABANDON, c.DEFER, c.RELEASE]
            client.settle(lock, r.choice(outcomes if lock.sub == DEAD else [*outcomes, c.DEAD_LETTER]))

    def _with_sessions(self) -> list[int]:
        return self.contended or [
            f for f, settings in self.world.settings.items() if settings.requires_session
        ]

    def accept(self) -> None:
        client = self._client()
        if client is not None:
            session = self.random.choice([None, *self.sessions])
            client.accept(self.random.choice(self._with_sessions()), session)

    def give_up_accept(self) -> None:
        accepting = [
            (client, asked.command)
            for client in self._clients()
            for asked in client.asked.values()
            if isinstance(asked.command, c.AcceptSession)
        ]
        if accepting:
            client, command = self.random.choice(accepting)
            client.give_up(command)

    def renew(self) -> None:
        holding = [client for client in self._clients() if client.locks]
        if holding:
            client = self.random.choice(holding)
            lock = self.random.choice(client.locks)
            client.ask(c.Renew(lock.fragment, client.origin, client.request(), [lock.number], [lock.nonce]))

    def renew_session(self) -> None:
        holding = [
            (client, consumer)
            for client in self._clients()
            for consumer in client.consumers.values()
            if consumer.session is not None
        ]
        if holding:
            client, consumer = self.random.choice(holding)
            client.ask(c.RenewSession(consumer.fragment, client.origin, client.request(), consumer.number))

    def await_session(self) -> None:
        client = self._client()
        if client is not None:
            fragment = self.random.choice(self._with_sessions())
            client.ask(c.AwaitSession(fragment, client.origin, client.request()))

    def cancel_await(self) -> None:
        waiting = [
            (client, asked.command)
            for client in self._clients()
            for asked in client.asked.values()
            if isinstance(asked.command, c.AwaitSession)
        ]
        if waiting:
            client, command = self.random.choice(waiting)
            del client.asked[command.request]
            client.submit(c.CancelAwait(command.fragment, client.origin, command.request))

    def receive_deferred(self) -> None:
        deferred = [client for client in self._clients() if client.deferred]
        if deferred:
            client = self.random.choice(deferred)
            client.receive_deferred(*client.deferred.pop(0))

    def peek(self) -> None:
        client = self._client()
        if client is not None:
            sub = self.random.choice([ACTIVE, DEAD])
            client.ask(c.Peek(self._fragment(), client.origin, client.request(), sub, 0, 5, 1 << 20, None))

    # ---- faults ----

    def cut(self) -> None:
        r = self.random
        streams = self.world.controller.streams
        if streams:
            place = r.randrange(len(streams))
            lags = (r.choice([0.0, 0.01, 2.0]) * r.random(), r.choice([0.0, 0.01, 2.0]) * r.random())
            self.world.note(f"stream {place} is cut, {lags}")
            streams[place].cut(lags)

    def stall(self) -> None:
        streams = self.world.controller.streams
        if streams:
            end = self.random.choice(self.random.choice(streams).ends)
            end.stall(self.random.choice([0.1, 1.0, 3.0]) * self.random.random())

    def freeze(self) -> None:
        alive = self.world.controller.alive()
        if alive:
            process = self.random.choice(alive)
            seconds = self.random.choice([0.1, 1.0, 4.0]) * self.random.random()
            self.world.note(f"{process.name} is frozen for {seconds:.3f} s")
            process.loop.frozen_until = self.world.scheduler.clock.now + seconds

    def kill(self) -> None:
        alive = self.world.controller.alive()
        if alive:
            self.world.kill(self.random.choice(alive))

    def move(self) -> None:
        """A store is handed over to another broker, by plan."""
        store = self.random.choice([*self.world.stores])
        alive = self.world.controller.alive()
        if alive:
            self.world.controller.move(store, self.random.choice(alive).name)

    def doubt(self) -> None:
        """A broker is frozen for so long that others claim its stores; then it goes on, and takes them for its own."""
        alive = [one for one in self.world.controller.alive() if not one.loop.is_frozen]
        if len(alive) > 1:
            process = self.random.choice(alive)
            seconds = SILENT_SECONDS + 0.2 + 2 * self.random.random()
            self.world.note(f"{process.name} is frozen for {seconds:.3f} s, and suspected")
            process.loop.frozen_until = self.world.scheduler.clock.now + seconds
            self.world.controller.loop.call_later(
                SILENT_SECONDS + 0.1, self.world.controller.usurp, process.name
            )

    def fail_commit(self) -> None:
        store = self.random.choice([*self.world.stores.values()])
        fault = self.random.choice([*Fault])
        self.world.note(f"the next commit of {store.name} is {fault.name}")
        store.disk.fail_next_commit(fault)

    def fail_soon(self) -> None:
        """Also while it is read or opened, and between the commit and the reads of one job."""
        store = self.random.choice([*self.world.stores.values()])
        calls = self.random.randint(0, 6)
        self.world.note(f"{store.name} fails after {calls} calls")
        store.disk.fail_after(calls)

    def hang(self) -> None:
        store = self.random.choice([*self.world.stores.values()])
        store.disk.hang = self.random.choice([0.2, 1.0, 4.0]) * self.random.random()
        self.world.note(f"{store.name} hangs for {store.disk.hang:.3f} s")

    def refuse_opening(self) -> None:
        store = self.random.choice([*self.world.stores.values()])
        store.disk.refuses = self.random.randint(1, 3)
        self.world.note(f"{store.name} cannot be opened {store.disk.refuses} times")


def live(seed: int, steps: int = STEPS, on_line: Callable[[str], None] = lambda line: None) -> list[str]:
    """One life; what happened in it. A failure has the seed and the last of what happened with it."""
    life = ClusterLife(seed, on_line)
    with life.world.watched():
        try:
            life.world.run(1.0)
            for _ in range(steps):
                life.step()
            life.world.finish()
        except Exception as error:
            replay = f"make simulate WORLD={WORLD} SEED={seed} STEPS={steps}"
            error.add_note("\n".join([replay, *life.world.notes.lines[-60:]]))
            raise
    return life.world.notes.lines
