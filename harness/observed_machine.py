"""A fragment's machine in its slot that reports what is applied to it and what is undone, for a model beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from busbar.fragment.changes import Changes
from busbar.fragment.machine import Fragment
from busbar.model.commands import Command
from busbar.model.effects import Effect
from busbar.model.settings import FragmentSettings


class MachineObserver(Protocol):
    """What a fragment's machine did, in order."""

    def before_apply(self, command: Command, now: int) -> None: ...

    def applied(self, command: Command, effects: list[Effect]) -> None: ...

    def undone(self, effects: list[Effect]) -> None:
        """Effects that were not performed, and what led to them."""


class InjectedFailure(Exception):
    """Raised by a machine when the simulation asks for it."""


class ObservedMachine:
    """Delegates to the machine. What the machine or its observer raises is passed to `failed`: the commit loop would only
    take the fragment out of service for it."""

    fails_next = False
    """The next command makes it raise."""

    def __init__(
        self, machine: Fragment, observer: MachineObserver, failed: Callable[[BaseException], None]
    ) -> None:
        self.machine = machine
        self._observer = observer
        self._failed = failed
        self._command: Command | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    @property
    def settings(self) -> FragmentSettings:
        return self.machine.settings

    @settings.setter
    def settings(self, settings: FragmentSettings) -> None:
        self.machine.settings = settings

    def apply(self, command: Command, now: int, nonce: int) -> None:
        if self.fails_next:
            raise InjectedFailure
        try:
            self._observer.before_apply(command, now)
            self._command = command
            self.machine.apply(command, now, nonce)
        except BaseException as error:
            self._failed(error)
            raise

    def take_effects(self) -> list[Effect]:
        effects = self.machine.take_effects()
        command, self._command = self._command, None
        if command is not None:
            try:
                self._observer.applied(command, effects)
            except BaseException as error:
                self._failed(error)
                raise
        return effects

    def undo(self, batches: list[Changes], effects: list[Effect], *durable: Any) -> None:
        try:
            self.machine.undo(batches, effects, *durable)
            self._observer.undone(effects)
        except BaseException as error:
            self._failed(error)
            raise
