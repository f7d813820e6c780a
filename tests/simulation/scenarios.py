"""What scenarios are written with: a world with bounds of their own, and checkers that write down what was applied."""

from __future__ import annotations

from collections.abc import Callable

from busbar.fragment.bounds import Bounds
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import ACTIVE, Draft
from busbar.model.settings import FragmentSettings
from tests.simulation.queue_checker import QueueChecker
from tests.simulation.session_checker import SessionChecker
from tests.simulation.store_world import StoreWorld
from tests.simulation.tap_checker import TapChecker

LOCK = 50


class ScenarioWorld(StoreWorld):
    """Everything fits into memory and into a turn, unless the scenario sets a bound."""

    def __init__(self, **bounds: int) -> None:
        super().__init__()
        self.heard: list[e.Effect] = []
        self.applied: list[tuple[c.Command, list[e.Effect]]] = []
        self._set = bounds

    def bounds(self, fragment: int) -> Bounds:
        bounds = Bounds()
        for name, value in self._set.items():
            setattr(bounds, name, value)
        return bounds

    def performed(self, effects: list[e.Effect]) -> None:
        super().performed(effects)
        self.heard += effects

    def delivered(self) -> list[tuple[int, int]]:
        """To which consumer, and which message."""
        deliveries = [effect for effect in self.heard if isinstance(effect, e.Delivered)]
        return [(int(effect.consumer), int(record.n)) for effect in deliveries for record in effect.records]

    def last_delivery(self) -> e.Delivered:
        return [effect for effect in self.heard if isinstance(effect, e.Delivered)][-1]

    def effects_of(self, kind: type[c.Command]) -> list[e.Effect]:
        """Of the last command of this kind."""
        return [effects for command, effects in self.applied if isinstance(command, kind)][-1]


class _Noting(QueueChecker):
    world: ScenarioWorld

    def applied(self, command: c.Command, effects: list[e.Effect]) -> None:
        self.world.applied.append((command, list(effects)))
        super().applied(command, effects)


class NotingQueue(_Noting):
    """A queue."""


class NotingSessions(_Noting, SessionChecker):
    """A queue that requires sessions."""


class NotingTaps(_Noting, TapChecker):
    """A queue with taps."""


def settings(
    *, most: int = 10, ttl: int = 0, dead_letter: bool = False, window: int = 0, sessions: bool = False
) -> FragmentSettings:
    return FragmentSettings(LOCK, most, ttl, dead_letter, 0, True, True, window, sessions)


def draft(ttl: int = 0, session: str | None = None, content: bytes = b"x", id: str = "") -> Draft:
    return Draft(content, id, session, None, ttl, 0)


def send(*drafts: Draft) -> c.Send:
    return c.Send(1, 1, 1, list(drafts), True)


def demand(consumer: int, credit: int, sub: int = ACTIVE, drain: bool = False) -> c.Demand:
    return c.Demand(1, 1, consumer, sub, credit, drain, False)


def settle(delivery: e.Delivered, outcome: int, overlay: dict[str, bytes] | None = None) -> c.Settle:
    numbers = [record.n for record in delivery.records]
    nonces = [int(delivery.nonce)] * len(numbers)
    return c.Settle(1, 1, 1, outcome, numbers, nonces, overlay, False)


def begin(
    checker: Callable[[StoreWorld, FragmentSettings], QueueChecker], of: FragmentSettings, **bounds: int
) -> tuple[ScenarioWorld, QueueChecker]:
    world = ScenarioWorld(**bounds)
    checking = checker(world, of)
    world.start(is_new=True)
    world.drain()
    return world, checking
