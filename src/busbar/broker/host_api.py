"""Defines what the catalogue and the dispatcher see of the host of a messaging store. The host may be in this process
(store_host.py), or in a broker process of its own (remote_store_host.py)."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from busbar.model.commands import Command
from busbar.model.settings import FragmentSettings
from busbar.store.location import StoreLocation, StoreLoss

Rows = dict[str, bytes | None]
"""Rows of a store's definitions, or entries of the catalogue; None deletes one."""


class StoreState(enum.Enum):
    OPEN = "open"
    ROLLING_BACK = "undoing"  # a group was refused; commands wait until it is undone
    MOVING = "moving"  # another broker will have it; commands wait, and are given back
    UNAVAILABLE = "unavailable"  # the store is being opened again
    CLOSED = "stopped"  # not opened yet, closed, or taken by another owner


IN_SERVICE = frozenset((StoreState.OPEN, StoreState.ROLLING_BACK, StoreState.MOVING))
"""States in which commands are taken, although they may have to wait."""


class StoreHost(Protocol):
    name: str
    broker: str
    """The process that owns the store, for people; empty: this one."""
    place: StoreLocation | None
    state: StoreState
    since: int
    reason: str
    loss: StoreLoss | None
    admit: Admit | None
    clock: Callable[[], int]

    @property
    def is_open(self) -> bool: ...

    # Opening and closing: these raise StoreError, as the store does, or ServerBusy.

    async def open(self) -> None: ...

    async def create(self) -> None: ...

    async def mark_unavailable(self, reason: str) -> None: ...

    def start_reopening(self) -> None: ...

    async def read_definitions(self) -> tuple[dict[str, bytes], int]: ...

    async def repair_definitions(self, rows: Rows) -> None: ...

    def stop_timers(self) -> None: ...

    async def drain(self, timeout: float) -> bool: ...

    async def close(self) -> None: ...

    # Serving: what fails here is a BusbarError.

    async def add_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None: ...

    def change_fragments(self, fragments: Mapping[int, FragmentSettings]) -> None: ...

    def retire_fragments(self, fragments: Sequence[int]) -> None:
        """Take deleted fragments out of service. `remove_fragment` deletes their messages later."""

    async def remove_fragment(self, fragment: int) -> None: ...

    async def write_definitions(self, rows: Rows) -> None: ...

    def submit(self, commands: Iterable[Command]) -> None: ...

    def last_used(self, fragment: int) -> int:
        """When a gateway last did something with the fragment, in ms (0: not since it was taken into service)."""

    async def refresh_last_used(self, fragments: Sequence[int]) -> None:
        """Bring `last_used` of these up to date with the process that has the store."""

    # What operators ask for

    async def take_offline(self) -> None: ...

    def bring_online(self) -> None: ...

    def reset(self) -> None: ...

    async def freeze(self, at: float, seconds: float) -> bool:
        """Have all that is committed at that time in one file that does not change (store_freezing.py). False: too late."""

    async def thaw(self) -> bool:
        """Let the file change again; whether it stayed as it was."""


Admit = Callable[[StoreHost, bool], Awaitable[None]]
"""Looks at a store that was just opened (or, with True, re-created) before it serves; raises StoreError to keep it out."""
