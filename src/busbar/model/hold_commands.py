"""What gateways report of clients that hold message sessions of a fragment whose owner has changed, or the channel to it."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from busbar.model.commands import Command


def holder_name(gateway: str, origin: int, consumer: int) -> str:
    """The name of a consumer at a gateway, by which it resumes its session."""
    return f"{gateway} {origin} {consumer}"


@final
class ResumeSession(Command):
    """Hold a session on with another channel or at another owner. `holder` accepted it. No answer if the lock is there, else
    SessionLost.

    `numbers` and `nonces` are the message locks that the consumer has. Other messages of the session become available again.
    """

    def __init__(
        self,
        fragment: i64,
        origin: i64,
        consumer: i64,
        session: str,
        numbers: list[int],
        nonces: list[int],
        holder: str = "",
    ) -> None:
        super().__init__(fragment, origin, 0)
        self.consumer = consumer
        self.session = session
        self.numbers = numbers
        self.nonces = nonces
        self.holder = holder


@final
class ReleaseHolds(Command):
    """Release the sessions of a gateway that were loaded with their fragment and not resumed: their holders have left. No
    answer."""

    def __init__(self, fragment: i64, gateway: str) -> None:
        super().__init__(fragment, 0, 0)
        self.gateway = gateway


@final
class KeepHolds(Command):
    """Make the locks of sessions durable whose holders are clients of this gateway: the fragment goes to another owner. No
    answer."""

    def __init__(self, fragment: i64, gateway: str) -> None:
        super().__init__(fragment, 0, 0)
        self.gateway = gateway
