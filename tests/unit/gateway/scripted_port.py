"""A port whose fragments say what a test wants them to say, when it wants: for races that no real one has on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from busbar.model.api import EffectSink, EntityChangeSink, EntityView
from busbar.model.commands import Command
from busbar.model.effects import Effect
from busbar.model.errors import EntityNotFound

C = TypeVar("C", bound=Command)


class ScriptedPort:
    def __init__(self, *entities: EntityView) -> None:
        self._entities = {entity.path.lower(): entity for entity in entities}
        self._sinks: dict[int, EffectSink] = {}
        self._last = 0
        self.commands: list[Command] = []

    def connect(self, sink: EffectSink, failed: Callable[[], None] | None = None) -> int:
        self._last += 1
        self._sinks[self._last] = sink
        return self._last

    def disconnect(self, origin: int) -> None:
        del self._sinks[origin]

    def is_near(self, store: str) -> bool:
        return True

    def submit(self, commands: list[Command]) -> None:
        self.commands += commands

    async def entity(self, path: str) -> EntityView:
        if path.lower() not in self._entities:
            raise EntityNotFound(path)
        return self._entities[path.lower()]

    def watch(self, changed: EntityChangeSink) -> Callable[[], None]:
        return lambda: None

    @property
    def origins(self) -> list[int]:
        return list(self._sinks)

    def emit(self, *effects: Effect) -> None:
        for effect in effects:
            self._sinks[effect.origin]([effect])

    def emit_together(self, *effects: Effect) -> None:
        """All of them in one turn; they are for one origin."""
        self._sinks[effects[0].origin]([*effects])

    def said(self, kind: type[C]) -> list[C]:
        """The commands of a kind, in their order."""
        return [command for command in self.commands if isinstance(command, kind)]
