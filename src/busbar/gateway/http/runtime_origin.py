"""An HTTP connection at the broker: an origin of its own, from its first runtime request to its end.

A connection has one request at a time, so it waits for one message at a time:

    state       begins                              ends
    waiting     the receiver requests one           Delivered: the message goes to the client
    draining    the time is up: the receiver        Delivered (the message came in between, and goes to the client), or
                drains                              Drained: no message. If neither comes for DRAIN_WAIT, the origin is
                                                    closed, and the broker releases what still comes for it
    either      interrupted                         the receiver ends its wait; messages that still come are released
    either      the connection is lost              the broker ends the consumers and releases messages under way

When the broker stops, every wait ends as if its time were up.

Receivers (runtime_receiver.py) of partitioned entities are kept from request to request. Their cached messages return when
the connection is lost.

So a message either goes to the client or is still in the entity: none stays locked without a receiver. In ReceiveAndDelete
mode a message is deleted when it is delivered. If the client disconnects in that moment, the message is lost: at most once.
"""

from __future__ import annotations

import asyncio
import secrets
from asyncio import FIRST_COMPLETED
from collections.abc import Callable

from busbar.clock import wall_clock
from busbar.gateway.http.errors import EntityDeleted
from busbar.gateway.http.runtime_receiver import HttpReceiver, PartitionedHttpReceiver, RegularHttpReceiver
from busbar.gateway.routers import new_router
from busbar.gateway.wake_timer import WakeTimer
from busbar.model.api import EntityView, FragmentApi
from busbar.model.commands import Command
from busbar.model.effects import Delivered, Drained, Effect, Refused, Sent
from busbar.model.errors import BusbarError, EntityNotFound, ServerBusy, error_of
from busbar.model.message import Draft
from busbar.partitions.demands import release_of
from busbar.partitions.origin import DeliveryHandler, EffectHandler, Wakeable
from busbar.partitions.routing import Router
from busbar.partitions.sends import BatchSend

DRAIN_WAIT = 10.0
"""Seconds after which a fragment that does not answer is abandoned."""
MAX_RECEIVERS = 16
"""The maximum number of partitioned entities with a receiver of this connection. Beyond it the oldest receiver ends."""


class HttpOrigin:
    def __init__(self, port: FragmentApi, failed: Callable[[], None] = lambda: None) -> None:
        """`failed` closes the connection."""
        self._port = port
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._waits: set[_Wait] = set()
        self._last_request = 0
        self._last_consumer = 0
        self._receipt: asyncio.Future[Delivered | None] | None = None
        self._stopping: asyncio.Future[None] = self._loop.create_future()
        self._lost = False
        self._receivers: dict[tuple[tuple[int, ...], int], PartitionedHttpReceiver] = {}
        self._routers: dict[tuple[int, ...], Router] = {}
        self._consumers: dict[int, DeliveryHandler] = {}
        self._expecting: dict[int, EffectHandler] = {}
        self._commands: list[Command] = []
        self._wakes = WakeTimer(self.flush)
        self._id_base = ""
        self._ids_given = 0
        self.number = port.connect(self._perform, failed)

    def leave(self) -> None:
        """End the origin: the connection is lost, and no request waits."""
        self._lost = True
        self._forget_receivers()
        self._wakes.close()
        self._port.disconnect(self.number)
        lost = ConnectionResetError("the client has gone")
        for wait in self._waits:
            wait.fail(lost)
        if self._receipt is not None and not self._receipt.done():
            self._receipt.set_exception(lost)

    def stop(self) -> None:
        """End every wait: the broker stops."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    def interrupt(self, error: BusbarError) -> None:
        """End the wait with `error`."""
        if self._receipt is not None and not self._receipt.done():
            self._receipt.set_exception(error)

    def fresh_id(self) -> str:
        """A message id for a message that came without one."""
        if not self._id_base:
            self._id_base = secrets.token_hex(8)
        self._ids_given += 1
        return f"{self._id_base}{self._ids_given:016x}"

    async def ask(self, build: Callable[[int, int], Command]) -> Effect:
        """Submit the command built with this origin and a request number, and wait for its effect; a refusal is raised."""
        wait = _Wait(self._loop)
        request = self.expect(wait)
        self.command(build(self.number, request))
        try:
            return await self._effect_of(wait)
        finally:
            self._expecting.pop(request, None)

    async def send(self, entity: EntityView, drafts: list[Draft]) -> None:
        """Store messages together. Raises the error of a refusal."""
        wait = _Wait(self._loop)
        BatchSend(self, self._router(entity), drafts, wait).send()
        effect = await self._effect_of(wait)
        assert isinstance(effect, Sent)
        if effect.refused:
            _index, condition, text = effect.refused[0]
            raise error_of(condition, text)

    async def _effect_of(self, wait: _Wait) -> Effect:
        self._waits.add(wait)
        try:
            self.flush()
            effect = await wait.future
        finally:
            self._waits.discard(wait)
        if isinstance(effect, Refused):
            raise _refusal(effect)
        return effect

    async def receive(self, entity: EntityView, sub: int, delete: bool, wait: float) -> Delivered | None:
        """The next message of the entity, or None if none comes within `wait` seconds."""
        receiver = self._receiver(entity, sub)
        receipt: asyncio.Future[Delivered | None] = self._loop.create_future()
        self._receipt = receipt
        try:
            receiver.ask(receipt, delete=delete, drain=wait <= 0)
            if wait > 0:
                await asyncio.wait((receipt, self._stopping), timeout=wait, return_when=FIRST_COMPLETED)
                if not receipt.done():
                    receiver.drain()
            if not receipt.done():
                await asyncio.wait((receipt,), timeout=DRAIN_WAIT)
            if not receipt.done():
                self._renew()
                raise ServerBusy(f"The entity did not answer within {DRAIN_WAIT:g} s.")
            return receipt.result()
        except asyncio.CancelledError:
            if receipt.done() and not receipt.cancelled() and receipt.exception() is None:
                self.release(receipt.result())
            raise
        finally:
            self._receipt = None
            if not self._lost:
                receiver.end()

    def _router(self, entity: EntityView) -> Router:
        """The router of this connection for the entity. It is kept, so that messages without a key go round robin."""
        router = self._routers.get(entity.fragments)
        if router is None:
            if len(self._routers) >= MAX_RECEIVERS:
                self._routers.clear()
            router = self._routers[entity.fragments] = new_router(self._port, entity)
        return router

    def _receiver(self, entity: EntityView, sub: int) -> HttpReceiver:
        if len(entity.fragments) == 1:
            return RegularHttpReceiver(self, entity.fragments[0], sub)
        key = entity.fragments, sub
        receiver = self._receivers.get(key)
        if receiver is None:
            if len(self._receivers) >= MAX_RECEIVERS:
                self._receivers.pop(next(iter(self._receivers))).close()
            receiver = self._receivers[key] = PartitionedHttpReceiver(self, entity, sub)
        return receiver

    def _forget_receivers(self) -> None:
        for receiver in self._receivers.values():
            receiver.give_back()
        self._receivers.clear()
        self._consumers.clear()
        self._expecting.clear()
        self.flush()

    # Origin

    @property
    def origin(self) -> int:
        return self.number

    def command(self, command: Command) -> None:
        self._commands.append(command)

    def expect(self, who: EffectHandler) -> int:
        self._last_request += 1
        self._expecting[self._last_request] = who
        return self._last_request

    def consumer(self, who: DeliveryHandler) -> int:
        self._last_consumer += 1
        self._consumers[self._last_consumer] = who
        return self._last_consumer

    def forget_consumer(self, number: int) -> None:
        self._consumers.pop(number, None)

    def wake_at(self, who: Wakeable, at: int) -> None:
        self._wakes.wake_at(who, at)

    def flush(self) -> None:
        if self._commands:
            commands, self._commands = self._commands, []
            self._port.submit(commands)

    def release(self, delivered: Delivered | None) -> None:
        """Return a message without a change of its delivery count: its client has disconnected."""
        if delivered is None or not delivered.until:
            return
        self._port.submit([release_of(delivered.fragment, 0, delivered.records, delivered.nonce)])

    def _renew(self) -> None:
        self._forget_receivers()
        self._port.disconnect(self.number)
        self.number = self._port.connect(self._perform, self._failed)

    def _perform(self, effects: list[Effect]) -> None:
        now = wall_clock()
        for effect in effects:
            if isinstance(effect, Delivered):
                consumer = self._consumers.get(effect.consumer)
                if consumer is not None:
                    consumer.delivered(effect, now)
                else:
                    self.release(effect)
            elif isinstance(effect, Drained):
                consumer = self._consumers.get(effect.consumer)
                if consumer is not None:
                    consumer.drained(now)
            elif effect.request:
                expecting = self._expecting.pop(effect.request, None)
                if expecting is not None:
                    expecting.answered(effect, now)
            elif isinstance(effect, Refused):
                self.interrupt(_refusal(effect))  # of the receiver's demand: it has no number of its own
        self.flush()


class _Wait:
    """A request that waits for its effect."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Effect] = loop.create_future()

    def answered(self, effect: Effect, now: int) -> None:
        if not self.future.done():
            self.future.set_result(effect)

    def batch_done(self, index: int, effect: Effect) -> None:
        if not self.future.done():
            self.future.set_result(effect)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _refusal(effect: Refused) -> BusbarError:
    if effect.condition == EntityNotFound.condition:
        return EntityDeleted(effect.text)  # the entity existed when the request found it
    return error_of(effect.condition, effect.text, effect.certain)
