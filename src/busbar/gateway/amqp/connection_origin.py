"""A client connection as the broker sees it: the origin of commands, to which their effects go back.

Rules:
1. The commands of a turn are submitted at its end, all at once.
2. Each request gets a number of its own. Its effect goes to the part that issued it, once. If the part has cancelled the
   request, the effect is dropped.
3. Each consumer gets a number of its own. Deliveries to a consumer that has left are released at once. Otherwise the
   messages would stay locked until the end of their locks.
4. A part that could not deliver or ask for more is called again after the next bytes of the client (`retry`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from busbar.gateway.amqp.pending import PendingEffect
from busbar.gateway.amqp.session_link import SessionConsumer
from busbar.model.api import BrokerApi
from busbar.model.commands import Command
from busbar.model.effects import Delivered, Drained, Effect, SessionLost
from busbar.partitions.demands import release_of
from busbar.partitions.origin import CreditListener, DeliveryHandler, EffectHandler
from busbar.partitions.session_accept import SessionAwait


class ConnectionOrigin:
    """Commands to the broker, and the parts of the connection that their effects are for."""

    __slots__ = (
        "_broker",
        "_commands",
        "_consumers",
        "_last_consumer",
        "_last_request",
        "_requests",
        "_retrying",
        "number",
    )

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker
        self.number = 0
        """Of the connection at the broker; 0 while it is not connected."""
        self._commands: list[Command] = []
        self._requests: dict[int, EffectHandler] = {}
        self._last_request = 0
        self._consumers: dict[int, DeliveryHandler] = {}
        self._last_consumer = 0
        self._retrying: list[CreditListener] = []

    def connect(self, on_effects: Callable[[list[Effect]], None], on_failure: Callable[[], None]) -> int:
        """Register at the broker; the number of the connection there."""
        self.number = self._broker.connect(on_effects, on_failure)
        return self.number

    def disconnect(self) -> None:
        """Submit the last commands, leave the broker and let go of all parts."""
        if self.number:
            self.submit()
            self._broker.disconnect(self.number)
        self._commands = []
        self._requests.clear()
        self._consumers.clear()
        self._retrying.clear()

    # Commands

    def command(self, command: Command) -> None:
        self._commands.append(command)

    def submit(self) -> None:
        """Submit the commands of this turn."""
        if self._commands:
            commands, self._commands = self._commands, []
            self._broker.submit(commands)

    def discard_commands(self) -> None:
        """Drop the commands of this turn."""
        self._commands.clear()

    # Requests and consumers

    def expect(self, who: EffectHandler) -> int:
        self._last_request += 1
        self._requests[self._last_request] = who
        return self._last_request

    def ask(self, build: Callable[[int], Command]) -> asyncio.Future[Effect]:
        """The effect of the command that is built with a new request number."""
        future: asyncio.Future[Effect] = asyncio.get_running_loop().create_future()
        self.command(build(self.expect(PendingEffect(future))))
        return future

    @property
    def has_requests(self) -> bool:
        """Whether answers of the broker are under way. A session may never be offered, so that is not waited for."""
        return any(not isinstance(who, SessionAwait) for who in self._requests.values())

    def forget_request(self, number: int) -> None:
        self._requests.pop(number, None)

    def consumer(self, who: DeliveryHandler) -> int:
        self._last_consumer += 1
        self._consumers[self._last_consumer] = who
        return self._last_consumer

    def forget_consumer(self, number: int) -> None:
        self._consumers.pop(number, None)

    # Effects

    def route(self, effects: list[Effect], now: int) -> None:
        """Give each effect to the part that it is for, in order."""
        for effect in effects:
            if isinstance(effect, Delivered):
                consumer = self._consumers.get(effect.consumer)
                if consumer is not None:
                    consumer.delivered(effect, now)
                elif effect.until:
                    self.command(release_of(effect.fragment, self.number, effect.records, effect.nonce))
            elif isinstance(effect, Drained):
                consumer = self._consumers.get(effect.consumer)
                if consumer is not None:
                    consumer.drained(now)
            elif isinstance(effect, SessionLost):
                consumer = self._consumers.get(effect.consumer)
                if isinstance(consumer, SessionConsumer):
                    consumer.session_lost()
            elif effect.request:
                waiting = self._requests.pop(effect.request, None)
                if waiting is not None:
                    waiting.answered(effect, now)

    # Credit

    def retry(self, who: CreditListener) -> None:
        self._retrying.append(who)

    def replenish_retrying(self, now: int) -> None:
        """Call the parts that asked to be called when bytes of the client have come."""
        if self._retrying:
            retrying, self._retrying = self._retrying, []
            for consumer in retrying:
                consumer.replenish(now)

    def replenish_all(self, now: int) -> None:
        """Let every consumer ask for more: the client reads again."""
        for consumer in self._consumers.values():
            consumer.replenish(now)
