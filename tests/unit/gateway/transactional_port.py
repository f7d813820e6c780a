"""A gateway on a scripted port whose fragments agree to transactions, or refuse what a test names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from busbar.amqp.events import Delivery
from busbar.gateway.authority import Authority
from busbar.gateway.gateway import Gateway
from busbar.message.parsing import parse_message
from busbar.model.api import EntityView, NamespaceProperties, RuleChange
from busbar.model.commands import Command, Demand, Probe, ReserveNumbers, Send, Settle, Transact
from busbar.model.effects import Delivered, Done, Effect, NumbersReserved, Refused, Sent, Settled
from busbar.model.entities import Description, Tier
from busbar.model.errors import BusbarError
from busbar.model.limits import Limits
from busbar.model.message import Record
from busbar.model.sas import SasRule
from harness.amqp_driver import KEY_NAME
from harness.transaction_driver import WireReceiver
from harness.waiting import until
from tests.unit.gateway.scripted_port import ScriptedPort
from tests.unit.partitions.messages import encoded
from tests.unit.partitions.transactions import (
    OTHER,
    PARTITIONED,
    PARTITIONED_SUBSCRIPTION,
    PARTITIONED_TOPIC,
    QUEUE,
    SESSIONS,
    SUBSCRIPTION,
    TOPIC,
)

KEY = "SAS_KEY_VALUE"
ENTITIES = (
    QUEUE,
    OTHER,
    SESSIONS,
    TOPIC,
    SUBSCRIPTION,
    PARTITIONED,
    PARTITIONED_TOPIC,
    PARTITIONED_SUBSCRIPTION,
)
LOCK_END = 1 << 45


class TransactionalPort(ScriptedPort):
    """Answers each command at once, after `refusals` for its class; commands in `held` are not answered."""

    def __init__(self, *entities: EntityView, tier: Tier = Tier.STANDARD) -> None:
        super().__init__(*entities)
        self.tier = tier
        self.refusals: dict[type[Command], list[BusbarError]] = {}
        self.held: set[type[Command]] = set()
        self.changes: list[tuple[str, Description | None]] = []
        self.checked: list[list[RuleChange]] = []
        self.rule_error: BusbarError | None = None
        """With which a check of rules is refused."""
        self._numbers = 0

    def submit(self, commands: list[Command]) -> None:
        super().submit(commands)
        asyncio.get_running_loop().call_soon(self._answer, [c for c in commands if type(c) not in self.held])

    def release(self, kind: type[Command]) -> None:
        """Answer the commands of a kind that were held."""
        self.held.discard(kind)
        self._answer([command for command in self.commands if type(command) is kind])

    def _answer(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if command.origin not in self._sinks:
                continue
            refusals = self.refusals.get(type(command))
            if refusals:
                error = refusals.pop(0)
                refused = Refused(command.origin, command.request, error.condition, error.text, error.certain)
                self.emit(refused)
            else:
                effect = self._effect(command)
                if effect is not None:
                    self.emit(effect)

    def _effect(self, command: Command) -> Effect | None:
        origin, request = command.origin, command.request
        if isinstance(command, Probe | Transact):
            return Done(origin, request)
        if isinstance(command, ReserveNumbers):
            self._numbers += command.count
            return NumbersReserved(origin, request, 1 + self._numbers - command.count)
        if isinstance(command, Send):
            return Sent(origin, request, [0] * len(command.drafts), [])
        if isinstance(command, Settle) and request:
            return Settled(origin, request, [])
        return None

    def deliver(self, count: int = 1, first: int = 1) -> None:
        """Give the last consumer that asked some messages."""
        demand = self.said(Demand)[-1]
        payload = encoded()
        content = parse_message(payload, 0, len(payload), "id", 128, 65_536).content
        records = [Record(n, 1, 0, 0, 0, len(content), content, None) for n in range(first, first + count)]
        self.emit(Delivered(demand.origin, demand.consumer, demand.fragment, records, 7, LOCK_END))

    # The rest of what a gateway asks

    async def namespace(self) -> NamespaceProperties:
        return NamespaceProperties("test", self.tier, 0, 0)

    async def create(self, path: str, description: Description) -> EntityView:
        self.changes.append((path, description))
        return EntityView(path, description, ())

    async def delete(self, path: str) -> None:
        self.changes.append((path, None))

    async def change_rules(self, changes: Sequence[RuleChange]) -> None:
        self.changes += changes

    async def check_rules(self, changes: Sequence[RuleChange]) -> None:
        self.checked.append([*changes])
        if self.rule_error is not None:
            raise self.rule_error

    def in_use(self, paths: Sequence[str]) -> None: ...

    def out_of_use(self, paths: Sequence[str]) -> None: ...


@asynccontextmanager
async def gateway_on(
    port: TransactionalPort, limits: Limits | None = None, rules: list[SasRule] | None = None
) -> AsyncIterator[tuple[Gateway, int]]:
    everything = SasRule(KEY_NAME, (KEY,), frozenset(("Manage", "Send", "Listen")))
    authority = Authority(rules or [everything], lambda path: ())
    gateway = Gateway(port, authority, limits or Limits(), None)  # type: ignore[arg-type]
    await gateway.start()
    try:
        yield gateway, await gateway.listen("127.0.0.1", 0)
    finally:
        await gateway.stop()


async def received(broker: TransactionalPort, receiver: WireReceiver, count: int = 1) -> list[Delivery]:
    """Messages that the broker delivers as soon as the receiver has asked for some."""
    await until(lambda: bool(broker.said(Demand)))
    broker.deliver(count)
    return [await receiver.take() for _ in range(count)]
