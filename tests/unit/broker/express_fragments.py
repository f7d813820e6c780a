"""Fragments of express entities, as their tests on a running host use them."""

from __future__ import annotations

from busbar.model.commands import Send
from busbar.model.entities import QueueDescription
from busbar.model.message import ACTIVE, Draft
from busbar.model.settings import FragmentSettings
from tests.unit.broker.hosting import Hosting


def express(delay: int = 60_000, **changes: object) -> FragmentSettings:
    """The settings of an express queue whose messages are written after `delay` ms."""
    settings = QueueDescription(**changes).fragment_settings()  # type: ignore[arg-type]
    settings.express_ms = delay
    return settings


def forced(fragment: int, request: int) -> Send:
    """A message with ForcePersistence."""
    return Send(fragment, 1, request, [Draft(b"f", "id", None, None, 0, 0, forced=True)], True)


def stored(here: Hosting, lane: int = ACTIVE, fragment: int = 1) -> list[int]:
    """The numbers of the messages that the store has in a lane."""
    return list(here.disk.fragment(fragment).lanes[lane].order)
