"""An HTTP connection at the port: an origin of its own, from its first runtime request to its end.

A connection has one request at a time, so it waits for one message at a time:

    state       begins                          ends
    waiting     Demand, one credit              Delivered: the message is handed out
    draining    the time is up: Demand, drain   Delivered (it came in between, and is handed out), or Drained: nothing
                                                neither, for DRAIN_WAIT: the origin is given up, and what still comes
                                                for it is released by the port
    either      interrupted                     the consumer leaves; what still comes for it is released
    either      the connection is lost          the port makes the consumer leave and releases what is on its way

When the broker stops, the time of every wait is up.

From a partitioned entity it receives through a receiver (runtime_receiver.py), which it keeps from request to request. The
messages that are cached there return when the connection is lost.

So a message is either handed out, or still there: none is locked for nobody. In ReceiveAndDelete mode it is deleted when
it is delivered, and what is delivered to a client that vanished in that very moment is lost: at most once.
"""

from __future__ import annotations

import asyncio
import secrets
from asyncio import FIRST_COMPLETED
from collections.abc import Callable

from busbar.gateway.http.errors import EntityDeleted
from busbar.gateway.http.runtime_receiver import HttpReceiver
from busbar.gateway.routers import new_router
from busbar.gateway.services import wall_clock
from busbar.gateway.wake_timer import WakeTimer
from busbar.model.api import EntityView, FragmentApi
from busbar.model.commands import Command, Demand, Leave
from busbar.model.effects import Delivered, Drained, Effect, Refused
from busbar.model.errors import BusbarError, EntityNotFound, ServerBusy, error_of
from busbar.partitions.demands import release_of
from busbar.partitions.origin import DeliveryHandler, EffectHandler, Wakeable
from busbar.partitions.routing import Router

DRAIN_WAIT = 10.0
"""Seconds after which a fragment that does not answer is given up."""
MAX_RECEIVERS = 16
"""Partitioned entities that one connection keeps messages of; beyond it the one that was used first is left."""


class HttpOrigin:
    def __init__(self, port: FragmentApi, failed: Callable[[], None] = lambda: None) -> None:
        """`failed` ends the connection."""
        self._port = port
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, asyncio.Future[Effect]] = {}
        self._last_request = 0
        self._last_consumer = 0
        self._receipt: asyncio.Future[Delivered | None] | None = None
        self._stopping: asyncio.Future[None] = self._loop.create_future()
        self._lost = False
        self._receivers: dict[tuple[tuple[int, ...], int], HttpReceiver] = {}
        self._routers: dict[tuple[int, ...], Router] = {}
        self._consumers: dict[int, DeliveryHandler] = {}
        self._expecting: dict[int, EffectHandler] = {}
        self._commands: list[Command] = []
        self._wakes = WakeTimer(self.flush)
        self._id_base = ""
        self._ids_given = 0
        self.number = port.connect(self._perform, failed)

    def leave(self) -> None:
        """The connection is lost: nobody waits here any more."""
        self._lost = True
        self._forget_receivers()
        self._wakes.close()
        self._port.disconnect(self.number)
        lost = ConnectionResetError("the client has gone")
        for future in (*self._answers.values(), self._receipt):
            if future is not None and not future.done():
                future.set_exception(lost)

    def stop(self) -> None:
        """Wait for nothing from here on: the broker stops."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    def interrupt(self, error: BusbarError) -> None:
        """What is waited for will not come, because of `error`."""
        if self._receipt is not None and not self._receipt.done():
            self._receipt.set_exception(error)

    def router(self, entity: EntityView) -> Router:
        """Where messages of this connection go: kept, so that those without a key go round robin."""
        router = self._routers.get(entity.fragments)
        if router is None:
            if len(self._routers) >= MAX_RECEIVERS:
                self._routers.clear()
            router = self._routers[entity.fragments] = new_router(entity)
        return router

    def fresh_id(self) -> str:
        """A message id for a message that came without one."""
        if not self._id_base:
            self._id_base = secrets.token_hex(8)
        self._ids_given += 1
        return f"{self._id_base}{self._ids_given:016x}"

    async def ask(self, build: Callable[[int, int], Command]) -> Effect:
        """Submit the command built with this origin and a request number, and wait for its effect; a refusal is raised."""
        self._last_request += 1
        request = self._last_request
        answer: asyncio.Future[Effect] = self._loop.create_future()
        self._answers[request] = answer
        try:
            self._port.submit([build(self.number, request)])
            effect = await answer
        finally:
            del self._answers[request]
        if isinstance(effect, Refused):
            raise _refusal(effect)
        return effect

    async def receive(self, fragment: int, sub: int, delete: bool, wait: float) -> Delivered | None:
        """The next message, or None if none comes within `wait` seconds."""
        self._last_consumer += 1
        consumer = self._last_consumer
        receipt: asyncio.Future[Delivered | None] = self._loop.create_future()
        self._receipt = receipt
        try:
            self._demand(fragment, consumer, sub, 1, wait <= 0, delete)
            if wait > 0:
                await asyncio.wait((receipt, self._stopping), timeout=wait, return_when=FIRST_COMPLETED)
                if not receipt.done():
                    self._demand(fragment, consumer, sub, 0, True, delete)
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
                self._port.submit([Leave(fragment, self.number, consumer)])

    async def receive_any(self, entity: EntityView, sub: int, delete: bool, wait: float) -> Delivered | None:
        """The same from a partitioned entity: the first message that any of its fragments has."""
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

    def _receiver(self, entity: EntityView, sub: int) -> HttpReceiver:
        key = entity.fragments, sub
        receiver = self._receivers.get(key)
        if receiver is None:
            if len(self._receivers) >= MAX_RECEIVERS:
                self._receivers.pop(next(iter(self._receivers))).close()
            receiver = self._receivers[key] = HttpReceiver(self, entity, sub)
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
        """Give a message back as if it had never left: who should have got it is gone."""
        if delivered is None or not delivered.until:
            return
        self._port.submit([release_of(delivered.fragment, 0, delivered.records, delivered.nonce)])

    def _demand(self, fragment: int, consumer: int, sub: int, credit: int, drain: bool, delete: bool) -> None:
        self._port.submit([Demand(fragment, self.number, consumer, sub, credit, drain, delete)])

    def _renew(self) -> None:
        self._forget_receivers()
        self._port.disconnect(self.number)
        self.number = self._port.connect(self._perform, self._failed)

    def _perform(self, effects: list[Effect]) -> None:
        now = wall_clock()
        for effect in effects:
            receipt = self._receipt
            if isinstance(effect, Delivered):
                consumer = self._consumers.get(effect.consumer)
                if consumer is not None:
                    consumer.delivered(effect, now)
                elif receipt is None or receipt.done() or effect.consumer != self._last_consumer:
                    self.release(effect)
                else:
                    receipt.set_result(effect)
            elif isinstance(effect, Drained):
                consumer = self._consumers.get(effect.consumer)
                if consumer is not None:
                    consumer.drained(now)
                elif receipt is not None and not receipt.done() and effect.consumer == self._last_consumer:
                    receipt.set_result(None)
            elif effect.request:
                expecting = self._expecting.pop(effect.request, None)
                answer = self._answers.get(effect.request)
                if expecting is not None:
                    expecting.answered(effect, now)
                elif answer is not None and not answer.done():
                    answer.set_result(effect)
            elif isinstance(effect, Refused) and receipt is not None and not receipt.done():
                receipt.set_exception(_refusal(effect))  # of the demand: it has no number of its own
        self.flush()


def _refusal(effect: Refused) -> BusbarError:
    if effect.condition == EntityNotFound.condition:
        return EntityDeleted(effect.text)  # it was there when the request found it
    return error_of(effect.condition, effect.text, effect.certain)
