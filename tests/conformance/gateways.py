"""A gateway as the suites of ports play it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from busbar.model.api import FragmentApi
from busbar.model.commands import Command, Demand, Inspect, Send, Settle
from busbar.model.effects import Delivered, Effect, Inspected, Sent, Settled
from busbar.model.message import ACTIVE, Draft
from harness.waiting import until

E = TypeVar("E", bound=Effect)


class Gateway:
    """One connection of a gateway: what it asks and what it hears."""

    def __init__(self, port: FragmentApi) -> None:
        self.port = port
        self.heard: list[Effect] = []
        self.calls = 0
        self.origin = port.connect(self._hear)
        self._request = 0

    def _hear(self, effects: list[Effect]) -> None:
        self.calls += 1
        assert all(effect.origin == self.origin for effect in effects)
        self.heard += effects

    async def until(self, true: Callable[[], bool]) -> None:
        await until(true, lambda: [type(effect).__name__ for effect in self.heard])

    async def ask(self, kind: type[E], command: Callable[[int], Command]) -> E:
        """Submit one command and wait for its answer."""
        self._request += 1
        request = self._request
        self.port.submit([command(request)])
        await self.until(lambda: any(effect.request == request for effect in self.heard))
        (answer,) = (effect for effect in self.heard if effect.request == request)
        assert isinstance(answer, kind), vars(answer) if hasattr(answer, "__dict__") else answer
        return answer

    def delivered(self) -> list[Delivered]:
        return [effect for effect in self.heard if isinstance(effect, Delivered)]

    def numbers(self) -> list[int]:
        return [record.n for effect in self.delivered() for record in effect.records]

    async def send(self, fragment: int, count: int = 1, content: bytes = b"body") -> list[int]:
        drafts = [Draft(content, f"m{i}", None, None, 0, 0) for i in range(count)]
        sent = await self.ask(Sent, lambda request: Send(fragment, self.origin, request, drafts, True))
        return sent.numbers

    def want(
        self, fragment: int, credit: int, consumer: int = 1, sub: int = ACTIVE, drain: bool = False
    ) -> None:
        self.port.submit([Demand(fragment, self.origin, consumer, sub, credit, drain, False)])

    async def settle(
        self, delivered: Delivered, outcome: int, overlay: dict[str, bytes] | None = None
    ) -> Settled:
        numbers = [record.n for record in delivered.records]
        nonces = [int(delivered.nonce)] * len(numbers)
        return await self.ask(
            Settled,
            lambda request: Settle(
                delivered.fragment, self.origin, request, outcome, numbers, nonces, overlay, False
            ),
        )

    async def counts(self, fragment: int) -> list[int]:
        return (await self.ask(Inspected, lambda request: Inspect(fragment, self.origin, request))).counts


async def queue(port: FragmentApi, name: str = "orders") -> int:
    (fragment,) = (await port.entity(name)).fragments
    return fragment
