"""The life of some queues and a topic that move messages to each other, from a seed: what clients do, and what fails."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, DEAD, TRANSFER_DEAD, VIA, Draft
from busbar.model.settings import TARGET_DISABLED, TARGET_OPEN, ForwardSettings
from harness.simulated_host import JobFault, SimulatedHost
from tests.simulation.move_checker import Transaction, make_draft
from tests.simulation.move_world import LETTERS, NOBODY, TOPIC, Held, MoveWorld, Process

OUTCOMES = [c.COMPLETE, c.COMPLETE, c.ABANDON, c.DEAD_LETTER, c.RELEASE]
Kinds = list[tuple[Callable[[], None], float]]


class MoveLife:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = r = Random(seed)
        self.world = MoveWorld(
            seed,
            r.choice([2, 3, 5]),
            r.choice([1, 2, 3]),
            together=r.random() < 0.3,
            with_topic=r.random() < 0.6,
            with_tap=r.random() < 0.3,
            with_sessions=r.random() < 0.3,
            patience_ms=r.choice([20, 2_000]),
        )
        self.names = 0
        self.keys = r.random() < 0.5
        self.ttls = r.choice([[0], [0, 0, 60]])
        self.consumers = count(901)
        self.session_consumers: list[int] = []
        """Consumers that accepted a session. They may have lost it since."""
        self.tap_at = 0
        self.tap_end = 0
        self.accepted_sessions = 0
        kinds: Kinds = [*self.client_kinds(), *self.world_kinds(), *self.fault_kinds(r.choice([0, 1, 1, 3]))]
        kinds += self.reader_kinds()
        self.kinds = [kind for kind, _ in kinds]
        self.weights = [weight * r.choice([0.3, 1, 1, 3]) for _, weight in kinds]

    def client_kinds(self) -> Kinds:
        return [
            (self.send, 10),
            (self.receive, 6),
            (self.settle, 8),
            (self.transact, 5),
            (self.change, 5),
            (self.delete, 0.1),
        ]

    def reader_kinds(self) -> Kinds:
        kinds: Kinds = []
        if self.world.session_queue:
            kinds += [(self.accept_session, 6), (self.receive_session, 6), (self.leave_session, 1)]
        if self.world.tapped:
            kinds += [(self.read_tap, 5), (self.advance_tap, 2)]
        return kinds

    def world_kinds(self) -> Kinds:
        return [
            (self.move, 20),
            (self.carry, 15),
            (self.repeat, 3),
            (self.answer, 4),
            (self.time_passes, 6),
            (self.turn, 10),
            (self.work, 20),
        ]

    def fault_kinds(self, often: float) -> Kinds:
        return [
            (self.fail, 2 * often),
            (self.hang, 0.5 * often),
            (self.crash, 1 * often),
            (self.restart, 0.5 * often),
            (self.break_link, 2 * often),
            (self.find_or_not, 1 * often),
            (self.take_offline, 0.3 * often),
            (self.refuse_opening, 0.3 * often),
        ]

    def live(self, steps: int) -> None:
        try:
            self.world.check()
            for _ in range(steps):
                self.step()
            self.world.heal()
            self.read_rest_of_tap()
        except Exception as error:
            error.add_note("\n".join([f"MoveLife, seed {self.seed}", *self.world.trace.last()]))
            raise

    def step(self) -> None:
        """Outages end sooner or later."""
        waiting = [host for host in self.world.hosts if not host.is_serving]
        if waiting and self.random.random() < 0.4:
            self.recover(self.random.choice(waiting))
        else:
            self.random.choices(self.kinds, self.weights)[0]()
        self.world.check()

    def recover(self, host: SimulatedHost) -> None:
        world, r = self.world, self.random
        if r.random() < 0.2:
            host.place.refusal = None
            if host.lifecycle.is_offline:
                host.bring_online()
        elif host.thread:
            world.work(host, r.choice([None] * 9 + list(JobFault)))
        elif host.has_turn:
            host.turn()
        elif host.wake_at:
            world.pass_time(max(1, host.wake_at - world.now))

    # ---- senders ----

    def _targets(self) -> list[int]:
        return [fragment for fragment in self.world.fragments() if fragment not in LETTERS]

    def _draft(self, via: bool) -> tuple[str, Draft]:
        r, world = self.random, self.world
        self.names += 1
        name = f"m{self.names}"
        session = r.choice(["s1", "s2", None]) if world.session_queue else None
        key = r.choice([None, "k1", "k2"]) if self.keys else None
        if session and r.random() < 0.9:
            key = None  # else they may contradict each other
        ttl = r.choice(self.ttls)
        if ttl:
            world.checker.mortal[name] = world.now + ttl
        due = world.now + r.choice([1, 30]) if not via and r.random() < 0.1 else 0
        draft = make_draft(name, session, key, ttl, due)
        if via:
            draft.target = r.choice([*self._targets(), NOBODY])
            draft.kind, draft.path = VIA, f"entity {draft.target}"
        return f"{name}:", draft

    def send(self) -> None:
        r, checker = self.random, self.world.checker
        fragment = r.choice(self._targets())
        may_go_via = fragment != TOPIC
        made = [self._draft(may_go_via and r.random() < 0.25) for _ in range(r.choice([1, 2, 4]))]
        names = [name for name, _ in made]

        def sent(answer: e.Effect | None) -> None:
            if isinstance(answer, e.Sent):
                refused = {index for index, _, _ in answer.refused}
                checker.accepted.update(name for i, name in enumerate(names) if i not in refused)
                checker.never.update(names[i] for i in refused)
            elif isinstance(answer, e.Refused) and answer.certain:
                checker.never.update(names)

        self.world.submit(c.Send(fragment, 1, 1, [draft for _, draft in made], r.random() < 0.3), sent)

    def transact(self) -> None:
        r, world = self.random, self.world
        fragment = r.choice(world.held).fragment if world.held else r.choice(self._targets())
        home = TOPIC if fragment in LETTERS else fragment
        done = self._take_held(fragment, r.choice([0, 1, 2]))
        if home == TOPIC and r.random() < 0.5:  # of both subscriptions
            done += self._take_held(r.choice(list(LETTERS)), 1)
        made = [self._draft(home != TOPIC and r.random() < 0.5) for _ in range(r.choice([0, 1, 3]))]
        one = Transaction([name for name, _ in made], [held.name for held in done])
        world.checker.transactions.append(one)
        parts: list[c.TransactionPart] = []
        if made:
            parts.append(c.Send(home, 1, 0, [draft for _, draft in made], True))
        for place in dict.fromkeys(held.fragment for held in done):
            mine = [held for held in done if held.fragment == place]
            nonces = [held.nonce for held in mine]
            if r.random() < 0.1:
                nonces[0] += 1  # it is not held any more
            parts.append(c.Settle(place, 1, 0, c.COMPLETE, [held.n for held in mine], nonces, None, True))
        if home != TOPIC and r.random() < 0.2:
            world.submit(c.Probe(home, 1, 1, parts), lambda answer: None)
        world.submit(c.Transact(home, 1, 1, parts), lambda answer: world.checker.transacted(one, answer))

    # ---- receivers ----

    def receive(self) -> None:
        r = self.random
        fragment = r.choice([each for each in self.world.fragments() if each != TOPIC])
        sub = r.choice([ACTIVE, ACTIVE, DEAD, TRANSFER_DEAD])
        if fragment == self.world.session_queue and sub == ACTIVE:
            sub = DEAD
        self.world.submit(c.Demand(fragment, 1, 900, sub, r.choice([1, 3]), True, False))

    def _take_held(self, fragment: int, most: int) -> list[Held]:
        mine = [one for one in self.world.held if one.fragment == fragment]
        some = self.random.sample(mine, min(len(mine), most))
        self.world.held = [one for one in self.world.held if one not in some]
        return some

    def settle(self) -> None:
        r, world = self.random, self.world
        if not world.held:
            return
        fragment = r.choice(world.held).fragment
        some = self._take_held(fragment, r.choice([1, 2]))
        outcome = r.choice(OUTCOMES)

        def settled(answer: e.Effect | None) -> None:
            if outcome != c.COMPLETE:
                return
            if isinstance(answer, e.Settled):
                world.checker.ended.update(one.name for i, one in enumerate(some) if i not in answer.lost)
            elif not isinstance(answer, e.Refused) or not answer.certain:
                world.checker.maybe_ended.update(one.name for one in some)

        numbers, nonces = [one.n for one in some], [one.nonce for one in some]
        world.submit(c.Settle(fragment, 1, 1, outcome, numbers, nonces, None, r.random() < 0.3), settled)

    # ---- message sessions ----

    @property
    def _accepts_sessions(self) -> bool:
        """A message that expires in a session takes the others along, which the checker does not follow."""
        return self.world.session_queue in self.world.home and self.ttls == [0]

    def accept_session(self) -> None:
        r, world = self.random, self.world
        if not self._accepts_sessions:
            self.receive()
            return
        consumer = next(self.consumers)

        def accepted(answer: e.Effect | None) -> None:
            if isinstance(answer, e.SessionAccepted):
                self.session_consumers.append(consumer)
                self.accepted_sessions += 1

        session = r.choice(["s1", "s2", None])
        world.submit(c.AcceptSession(world.session_queue, 1, 1, consumer, session), accepted)

    def receive_session(self) -> None:
        r, world = self.random, self.world
        if not self.session_consumers or not self._accepts_sessions:
            self.accept_session()
            return
        consumer = r.choice(self.session_consumers)
        world.submit(c.Demand(world.session_queue, 1, consumer, ACTIVE, r.choice([1, 3]), True, False))

    def leave_session(self) -> None:
        world = self.world
        if self.session_consumers and world.session_queue in world.home:
            world.submit(c.Leave(world.session_queue, 1, self.session_consumers.pop(0)))

    # ---- the tap ----

    def read_tap(self) -> None:
        """Ask where the queue ends, or read up to there."""
        r, world = self.random, self.world
        if world.tapped not in world.home:
            return
        count = r.choice([1, 3, 50])
        command = c.ReadTap(
            world.tapped, 1, 1, 1, ACTIVE, c.MESSAGES, self.tap_at, self.tap_end, count, 5_000
        )

        def read(answer: e.Effect | None) -> None:
            if isinstance(answer, e.TapPage):
                world.checker.tap_read(command, answer)
                self.tap_at = max(self.tap_at, int(answer.upto))

        def told(answer: e.Effect | None) -> None:
            if isinstance(answer, e.TapStates):
                self.tap_end = max(self.tap_end, int(answer.end))

        if self.tap_at < self.tap_end:
            world.submit(command, read)
        else:
            world.submit(c.ShowTaps(world.tapped, 1, 1), told)

    def read_rest_of_tap(self) -> None:
        """Read the tap up to the end of the queue, when all is at rest."""
        world = self.world
        while world.tapped in world.home:
            before = self.tap_at, self.tap_end
            self.read_tap()
            world.drain(world.hosts[world.home[world.tapped]])
            if (self.tap_at, self.tap_end) == before:
                break

    def advance_tap(self) -> None:
        world = self.world
        if world.tapped in world.home:
            command = c.AdvanceTap(world.tapped, 1, 1, 1, c.MESSAGES, self.tap_at, "")
            world.submit(command, lambda answer: None)

    # ---- settings ----

    def change(self) -> None:
        r, world = self.random, self.world
        fragment = r.choice(world.fragments())
        changed: dict[str, object] = {
            "can_send": r.random() < 0.85,
            "quota_bytes": r.choice([0, 0, 1_000]),
            "duplicate_window_ms": r.choice([0, 0, 0, 1_000]),
            "transfer_patience_ms": r.choice([0, 20, 20]),
            "dead_letter_on_expiration": r.random() < 0.5,
        }
        if fragment in LETTERS:
            changed |= {"can_send": True, "quota_bytes": 0, "duplicate_window_ms": 0}
        if fragment != TOPIC:
            changed["forward"] = self._forward()
            changed["forward_dead_letters"] = self._forward() if r.random() < 0.5 else None
        world.change(fragment, world.make_settings(fragment, **changed))
        if r.random() < 0.3:
            world.submit(c.AvoidTargets(fragment, r.sample(self._targets(), 1)))

    def _forward(self) -> ForwardSettings | None:
        r = self.random
        if r.random() < 0.4:
            return None
        known = self._targets()
        targets = r.sample(known, min(len(known), r.choice([1, 1, 2, 3])))
        takes = TARGET_DISABLED if r.random() < 0.1 else TARGET_OPEN
        return ForwardSettings("target", targets, r.random() < 0.3, 0, takes)

    def delete(self) -> None:
        queues = [fragment for fragment in self._targets() if fragment != TOPIC]
        if len(queues) > 2:
            self.world.delete(self.random.choice(queues))

    # ---- time, turns and work ----

    def _host(self) -> SimulatedHost:
        return self.random.choice(self.world.hosts)

    def _process(self) -> Process:
        return self.random.choice(self.world.processes)

    def move(self) -> None:
        self.world.move(self._process(), self.random.choice([1, 3, 500]))

    def carry(self) -> None:
        links = self.world.links()
        if links:
            self.world.carry(*self.random.choice(links), self.random.random() < 0.5)

    def repeat(self) -> None:
        """A TakeMoved that a link had not delivered, or one that was."""
        r, world = self.random, self.world
        if world.late and r.random() < 0.7:
            world.repeat(world.late.pop(r.randrange(len(world.late))))
        elif world.sent_takes:
            world.repeat(r.choice(world.sent_takes))

    def answer(self) -> None:
        self.world.answer_question(self._process(), self.random.random() < 0.8)

    def time_passes(self) -> None:
        self.world.pass_time(self.random.choice([1, 30, 60, 200, 1_000]))

    def turn(self) -> None:
        self.world.trace.add("turn")
        self._host().turn()

    def work(self) -> None:
        host = self._host()
        if host.has_turn:
            host.turn()
        self.world.work(host)

    # ---- faults ----

    def fail(self) -> None:
        host = self._host()
        host.turn()
        self.world.work(host, self.random.choice(list(JobFault)))

    def hang(self) -> None:
        host = self._host()
        host.turn()
        if host.can_hang:
            self.world.trace.add(f"{host.thread[0]}: hangs")
            host.hang()

    def crash(self) -> None:
        self.world.crash(self._process(), self.random.random() < 0.5)

    def restart(self) -> None:
        self.world.restart(self._process())

    def break_link(self) -> None:
        links = self.world.links()
        if links:
            process, store, _ = self.random.choice(links)
            self.world.break_link(process, store)

    def find_or_not(self) -> None:
        """Movers do not find a fragment, or find it again."""
        self.world.unfound ^= {self.random.choice(self._targets())}

    def take_offline(self) -> None:
        host = self._host()
        self.world.trace.add("taken offline")
        host.take_offline()

    def refuse_opening(self) -> None:
        self.world.refuse_opening(self.random.randrange(len(self.world.hosts)))
