"""A client of a simulated broker, as the gateway's connection stands for it: an origin with requests, consumers and locks.

It checks what it is told against what it asked for, and tells the truth (cluster_truth.py) of it. A check that fails is
reported to the world: an exception here would only end the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, Draft, Record
from tests.simulation.cluster_process import SimulatedBroker
from tests.simulation.cluster_truth import SimulatedMessage, Truth

BATCH_BYTES = 1 << 20


@dataclass(slots=True)
class ClientConsumer:
    """A receiving link, as its client sees it."""

    number: int
    fragment: int
    sub: int
    delete: bool = False
    credit: int = 0
    is_draining: bool = False
    session: str | None = None
    until: int = 0
    """The end of its session lock, as it was told."""
    delivered: set[int] = field(default_factory=set)
    """Numbers that came since it accepted the session."""


@dataclass(slots=True)
class ClientLock:
    message: SimulatedMessage
    fragment: int
    number: int
    nonce: int
    consumer: int
    sub: int


@dataclass(slots=True)
class Asked:
    """A request that has no answer yet."""

    command: c.Command
    at: int
    """A number of the world's log."""
    messages: list[SimulatedMessage] = field(default_factory=list)
    sub: int = ACTIVE
    """Of what is settled: the sub-queue that it was received from."""


class Notes:
    """What clients and world write down: everything that happens, in its order."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.lines: list[str] = []
        self._on_line = on_line
        self.failures: list[BaseException] = []
        self.emitted: dict[tuple[int, int], int] = {}
        """By fragment and nonce: when a delivery was performed by the process that has the store."""

    @property
    def now(self) -> int:
        return len(self.lines)

    def write(self, line: str) -> None:
        self.lines.append(line)
        self._on_line(line)


class SimulatedClient:
    def __init__(
        self,
        name: str,
        process: SimulatedBroker,
        truth: Truth,
        notes: Notes,
        wall: Callable[[], int],
    ) -> None:
        self.name = name
        self.process = process
        self.is_gone = False
        self.consumers: dict[int, ClientConsumer] = {}
        self.locks: list[ClientLock] = []
        self.deferred: list[tuple[int, int, int, str | None]] = []
        """Fragment, sub-queue, number and session of what this client deferred."""
        self.asked: dict[int, Asked] = {}
        self.rivals: Callable[[], list[SimulatedClient]] = list
        """All other clients."""
        self._answered: set[int] = set()
        self._truth = truth
        self._notes = notes
        self._wall = wall
        self._requests = 0
        self._numbers = 0
        self.origin = process.broker.connect(self._effects, self._failed)

    # ---- what it asks for ----

    def submit(self, *commands: c.Command) -> None:
        for command in commands:
            self._note(f"asks {_shown(command)}")
        with self.process.loop.running():
            self.process.broker.submit([*commands])

    def request(self) -> int:
        self._requests += 1
        return self._requests

    def ask(
        self, command: c.Command, messages: list[SimulatedMessage] | None = None, sub: int = ACTIVE
    ) -> None:
        self.asked[command.request] = Asked(command, self._notes.now, messages or [], sub)
        self.submit(command)

    def send(self, messages: list[SimulatedMessage], scheduled: int, atomic: bool) -> None:
        drafts = [Draft(m.content, m.message_id, m.session, m.session, 0, scheduled) for m in messages]
        fragment = messages[0].fragment
        self.ask(c.Send(fragment, self.origin, self.request(), drafts, atomic), messages)

    def consume(self, fragment: int, sub: int, delete: bool) -> ClientConsumer:
        self._numbers += 1
        made = self.consumers[self._numbers] = ClientConsumer(self._numbers, fragment, sub, delete)
        return made

    def demand(self, consumer: ClientConsumer, credit: int, drain: bool) -> None:
        consumer.credit += credit
        consumer.is_draining = drain
        self.submit(
            c.Demand(
                consumer.fragment,
                self.origin,
                consumer.number,
                consumer.sub,
                credit,
                drain,
                consumer.delete,
            )
        )

    def accept(self, fragment: int, session: str | None) -> None:
        self._numbers += 1
        self.ask(c.AcceptSession(fragment, self.origin, self.request(), self._numbers, session))

    def give_up(self, accept: c.AcceptSession) -> None:
        """The link goes before it has its session."""
        del self.asked[accept.request]
        self.submit(c.Leave(accept.fragment, self.origin, accept.consumer))

    def leave(self, consumer: ClientConsumer) -> None:
        del self.consumers[consumer.number]
        if consumer.session is not None:
            self.locks = [lock for lock in self.locks if lock.consumer != consumer.number]
        self.submit(c.Leave(consumer.fragment, self.origin, consumer.number))

    def settle(self, lock: ClientLock, outcome: int) -> None:
        self.locks.remove(lock)
        if outcome == c.COMPLETE:
            lock.message.removals += 1
        self.ask(
            c.Settle(
                lock.fragment,
                self.origin,
                self.request(),
                outcome,
                [lock.number],
                [lock.nonce],
                None,
                False,
            ),
            [lock.message],
            lock.sub,
        )

    def receive_deferred(self, fragment: int, sub: int, number: int, session: str | None) -> None:
        holders = [
            one.number
            for one in self.consumers.values()
            if session is not None and (one.fragment, one.session) == (fragment, session)
        ]
        consumer = holders[0] if holders else 0
        self.ask(c.ReceiveDeferred(fragment, self.origin, self.request(), sub, [number], False, consumer))

    def disconnect(self) -> None:
        """The client closes its connection."""
        self._note("leaves")
        with self.process.loop.running():
            self.process.broker.disconnect(self.origin)
        self.lose()

    def lose(self) -> None:
        """Its connection is gone: it will be told nothing more."""
        self.is_gone = True
        for asked in self.asked.values():
            if isinstance(asked.command, c.Send):
                for message in asked.messages:
                    self._truth.send_refused(message, certain=False)
        self.asked.clear()
        self.consumers.clear()
        self.locks.clear()

    # ---- what it is told ----

    def holds(self, fragment: int, session: str) -> bool:
        """Whether the client believes that it holds a session."""
        return self._has_time(fragment, session, [*self.consumers.values()])

    def _has_time(self, fragment: int, session: str, consumers: list[ClientConsumer]) -> bool:
        now = self._wall()
        return any(
            one.fragment == fragment and one.session == session and one.until > now for one in consumers
        )

    def _effects(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            self._note(f"gets {_shown(effect)}")
            try:
                assert not self.is_gone, "a client that has left is told something"
                self._effect(effect)
            except Exception as error:
                self._note(f"fails: {error}")
                self._notes.failures.append(error)

    def _failed(self) -> None:
        self._notes.failures.append(AssertionError(f"the connection of {self.name} was ended"))

    def _effect(self, effect: e.Effect) -> None:
        if effect.request > 0:
            assert effect.request not in self._answered, "a request is answered twice"
            self._answered.add(effect.request)
            asked = self.asked.pop(effect.request, None)
            if asked is not None:
                self._answer(asked, effect)
        elif isinstance(effect, e.Delivered):
            self._delivered(effect)
        elif isinstance(effect, e.Drained):
            consumer = self.consumers.get(effect.consumer)
            if consumer is not None:
                assert consumer.is_draining, "a drain is answered that was not asked for"
                consumer.is_draining, consumer.credit = False, 0
        elif not isinstance(effect, e.Settled):  # of messages that were given back
            assert isinstance(effect, e.SessionLost), effect
            consumer = self.consumers.get(effect.consumer)
            if consumer is not None:  # the link is closed, and so the consumer leaves
                self.leave(consumer)

    def _delivered(self, effect: e.Delivered) -> None:
        consumer = self.consumers.get(effect.consumer)
        emitted = self._notes.emitted[effect.fragment, effect.nonce]
        messages = [self._truth.seen(effect.fragment, record, emitted) for record in effect.records]
        if consumer is None:  # it has left meanwhile, and a gateway gives messages back then
            if effect.until:
                numbers = [record.n for record in effect.records]
                nonces = [effect.nonce] * len(numbers)
                self.submit(
                    c.Settle(effect.fragment, self.origin, 0, c.RELEASE, numbers, nonces, None, False)
                )
            return
        assert consumer.fragment == effect.fragment
        consumer.credit -= len(effect.records)
        assert consumer.credit >= 0, "more is delivered than was asked for"
        for message, record in zip(messages, effect.records, strict=True):
            if consumer.session is not None and consumer.sub == ACTIVE:
                self._in_order(consumer, message, record)
            if effect.until:
                lock = ClientLock(
                    message, effect.fragment, record.n, effect.nonce, consumer.number, consumer.sub
                )
                self.locks.append(lock)
            else:
                message.removed_at = self._notes.now

    def _in_order(self, consumer: ClientConsumer, message: SimulatedMessage, record: Record) -> None:
        assert message.session == consumer.session, f"{message} was delivered to {consumer}"
        if record.n not in consumer.delivered:
            assert not consumer.delivered or record.n > max(consumer.delivered), "a session is out of order"
            consumer.delivered.add(record.n)

    def _answer(self, asked: Asked, effect: e.Effect) -> None:
        command = asked.command
        if isinstance(command, c.Send):
            self._send_answered(asked.messages, effect)
        elif isinstance(command, c.Settle):
            self._settle_answered(command, asked.messages[0], asked.sub, effect)
        elif isinstance(effect, e.Refused):
            if isinstance(command, c.AcceptSession) and not effect.certain:
                self.submit(c.Leave(command.fragment, self.origin, command.consumer))
        elif isinstance(command, c.AcceptSession):
            assert isinstance(effect, e.SessionAccepted)
            self._accepted(command, effect)
        elif isinstance(command, c.RenewSession):
            assert isinstance(effect, e.Renewed)
            consumer = self.consumers.get(command.consumer)
            if consumer is not None:
                consumer.until = effect.until
        elif isinstance(command, c.Peek):
            assert isinstance(effect, e.Peeked)
            for record in effect.records:
                self._truth.seen(command.fragment, record, asked.at)
        elif isinstance(command, c.ReceiveDeferred):
            assert isinstance(effect, e.DeferredReceived)
            for record in effect.records:
                message = self._truth.seen(command.fragment, record, asked.at)
                self.locks.append(
                    ClientLock(
                        message, command.fragment, record.n, effect.nonce, command.consumer, command.sub
                    )
                )
        elif isinstance(command, c.Renew):
            assert isinstance(effect, e.Renewed)
        else:
            assert isinstance(effect, e.SessionOffered) and isinstance(command, c.AwaitSession)

    def _send_answered(self, messages: list[SimulatedMessage], effect: e.Effect) -> None:
        if isinstance(effect, e.Refused):
            for message in messages:
                self._truth.send_refused(message, effect.certain)
            return
        assert isinstance(effect, e.Sent) and not effect.refused
        assert len(effect.numbers) == len(messages)
        for place, (message, number) in enumerate(zip(messages, effect.numbers, strict=True)):
            if place in effect.duplicates:
                self._truth.dropped(message)
            else:
                self._truth.sent(message, number)

    def _settle_answered(
        self, command: c.Settle, message: SimulatedMessage, sub: int, effect: e.Effect
    ) -> None:
        is_complete = command.outcome == c.COMPLETE
        if isinstance(effect, e.Refused):
            message.removals -= is_complete and effect.certain
            return
        assert isinstance(effect, e.Settled)
        message.removals -= is_complete
        if not effect.lost and is_complete:
            assert not message.removed_at, f"{message} was completed twice"
            message.removed_at = self._notes.now
        elif not effect.lost and command.outcome == c.DEFER:
            self.deferred.append((command.fragment, sub, command.numbers[0], message.session))

    def _accepted(self, command: c.AcceptSession, effect: e.SessionAccepted) -> None:
        assert command.session in (None, effect.session)
        if effect.until > self._wall():
            others = [
                one.name for one in [self, *self.rivals()] if one.holds(command.fragment, effect.session)
            ]
            assert not others, f"{effect.session!r} of {command.fragment} is held by {others}"
        self.consumers[effect.consumer] = ClientConsumer(
            effect.consumer,
            command.fragment,
            ACTIVE,
            session=effect.session,
            until=effect.until,
        )

    def _note(self, text: str) -> None:
        self._notes.write(f"{self._wall() % 1_000_000:6} {self.name} {text}")


def _shown(what: c.Command | e.Effect) -> str:
    """A command or an effect in short."""
    values = [
        f"{name}={_value(value)}"
        for name in _NAMES
        if (value := getattr(what, name, None)) is not None and value != [] and name not in ("origin",)
    ]
    return f"{type(what).__name__}({', '.join(values)})"


_NAMES = (
    "fragment", "request", "consumer", "sub", "session", "credit", "drain", "outcome", "numbers", "drafts", "records",
    "nonce", "until", "lost", "duplicates", "condition", "certain", "awaited",
)  # fmt: skip


def _value(value: object) -> str:
    if isinstance(value, list):
        return "[" + " ".join(_value(one) for one in value) + "]"
    if isinstance(value, Record):
        return f"{value.n}:{(value.content or b'').decode()}"
    if isinstance(value, Draft):
        return f"{value.content.decode()}/{value.message_id}"
    return str(value)
