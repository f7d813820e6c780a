"""The port between gateways and fragments: batched commands down, batched effects up.

A gateway knows fragments only by this. Behind it may stand fragments of the same process or of another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from busbar.model.commands import Command
from busbar.model.effects import Effect
from busbar.model.entities import EntityDescription

EffectSink = Callable[[list[Effect]], None]


@dataclass(frozen=True, slots=True)
class EntityView:
    """What a gateway needs of an entity: its description and where its fragments are."""

    path: str
    """The name as created (requests may spell it in another case)."""
    description: EntityDescription
    fragments: tuple[int, ...]
    """Fragment ids in the order of their index; one for a regular entity."""


class FragmentPort(Protocol):
    """Where a gateway sends commands and from where it gets effects."""

    def connect(self, sink: EffectSink) -> int:
        """Register a gateway connection; the number is the `origin` of its commands."""

    def disconnect(self, origin: int) -> None:
        """Forget the origin: its consumers leave every fragment; later effects for it are dropped, and messages
        that were on their way to it are released."""

    def submit(self, commands: list[Command]) -> None:
        """Hand over commands. Every one that has an answer gets it: its effect, or Refused."""

    async def entity(self, path: str) -> EntityView:
        """The entity of that path (any case). Raises EntityNotFound or another BusbarError."""
