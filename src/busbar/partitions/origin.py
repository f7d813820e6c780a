"""What this room needs of the client connection or HTTP request that it works for."""

from __future__ import annotations

from typing import Protocol

from busbar.model.commands import Command
from busbar.model.effects import Effect


class EffectHandler(Protocol):
    """Gets the effect of a request that it issued."""

    def answered(self, effect: Effect, now: int) -> None:
        """`now` is the time of the effect, in ms since 1970 UTC."""


class CreditListener(Protocol):
    """Requests more messages when the client can take more."""

    def replenish(self, now: int) -> None: ...


class DeliveryHandler(CreditListener, Protocol):
    """Takes deliveries from a fragment."""

    def delivered(self, effect: Effect, now: int) -> None: ...

    def drained(self, now: int) -> None: ...


class Wakeable(Protocol):
    """Has work at a later time."""

    def wake(self, now: int) -> int:
        """Do what is due; the next wake time, 0 if there is none."""


class Origin(Protocol):
    """The connection or request that commands come from and effects go back to."""

    @property
    def origin(self) -> int:
        """The number of this origin at the broker."""

    def command(self, command: Command) -> None:
        """Add a command to those of this turn."""

    def expect(self, who: EffectHandler) -> int:
        """Return a new request number; its effect goes to `who`."""

    def consumer(self, who: DeliveryHandler) -> int:
        """Return a new consumer number."""

    def forget_consumer(self, number: int) -> None: ...

    def wake_at(self, who: Wakeable, at: int) -> None:
        """Call `who.wake` at that time (ms), which replaces the time given before; 0: never."""

    def flush(self) -> None:
        """Send the output and the commands of this turn."""


class CancellingOrigin(Origin, Protocol):
    """An origin whose requests can be cancelled."""

    def forget_request(self, number: int) -> None:
        """Drop the effect of this request when it comes."""


class SendingOrigin(Origin, Protocol):
    """An origin whose messages are on their way to fragments."""

    def arriving(self, size: int) -> None:
        """Add bytes that arrived and are not durable yet; a negative number when they are durable. This bounds reading."""
