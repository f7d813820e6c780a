"""What the parts that work on several fragments need of the client connection or HTTP request that they work for."""

from __future__ import annotations

from typing import Protocol

from busbar.model.commands import Command
from busbar.model.effects import Effect


class EffectHandler(Protocol):
    """The part that issued a request and gets its effect."""

    def answered(self, effect: Effect, now: int) -> None:
        """`now` is the time of the effect, in ms since 1970 UTC."""


class CreditListener(Protocol):
    """The part that asks for more messages when the client can take more."""

    def replenish(self, now: int) -> None: ...


class DeliveryHandler(CreditListener, Protocol):
    """The part that takes deliveries from a fragment."""

    def delivered(self, effect: Effect, now: int) -> None: ...

    def drained(self, now: int) -> None: ...


class Wakeable(Protocol):
    """A part with something to do later."""

    def wake(self, now: int) -> int:
        """Do what is due; the next wake time, 0 if there is none."""


class Origin(Protocol):
    """The connection or request that commands come from and effects go back to."""

    @property
    def origin(self) -> int:
        """Its number at the broker."""

    def command(self, command: Command) -> None:
        """Hand a command over with the others of this turn."""

    def expect(self, who: EffectHandler) -> int:
        """A new request number whose effect goes to `who`."""

    def consumer(self, who: DeliveryHandler) -> int:
        """A new consumer number."""

    def forget_consumer(self, number: int) -> None: ...

    def wake_at(self, who: Wakeable, at: int) -> None:
        """Call `who.wake` at that time (ms) instead of the one given before; 0: never."""

    def flush(self) -> None:
        """Send what there is to say and the commands of this turn."""


class CancellingOrigin(Origin, Protocol):
    """An origin whose requests can be cancelled."""

    def forget_request(self, number: int) -> None:
        """Its effect is not wanted any more."""


class SendingOrigin(Origin, Protocol):
    """An origin whose messages are on their way to fragments."""

    def arriving(self, size: int) -> None:
        """Bytes that arrived and are not durable yet; a negative number when they are. Bounds what is read."""
