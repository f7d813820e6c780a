"""What the catalogue and the port know of the host of a messaging store: it may be in this process (host.py), or in a broker
process of its own (remote_host.py)."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from busbar.broker.place import Loss, Place
from busbar.model.commands import Command
from busbar.model.settings import FragmentSettings

Rows = dict[str, bytes | None]
"""Entries of a store's catalogue; None deletes one."""


class HostState(enum.Enum):
    OPEN = "open"
    UNDOING = "undoing"  # a group was refused; commands wait until it is undone
    OUT = "out"  # the store is being opened again
    STOPPED = "stopped"  # not opened yet, closed, or taken by another owner


class Host(Protocol):
    name: str
    broker: str
    """The process that owns the store, for people; empty: this one."""
    place: Place | None
    state: HostState
    since: int
    reason: str
    loss: Loss | None
    admit: Admit | None
    clock: Callable[[], int]

    @property
    def is_open(self) -> bool: ...

    # Opening and closing: these raise StoreError, as the store does, or ServerBusy.

    async def open(self) -> None: ...

    async def make(self) -> None: ...

    async def keep_out(self, reason: str) -> None: ...

    def keep_trying(self) -> None: ...

    async def catalogue(self) -> tuple[dict[str, bytes], int]: ...

    async def repair_catalogue(self, rows: Rows) -> None: ...

    def wind_down(self) -> None: ...

    async def drain(self, timeout: float) -> bool: ...

    async def close(self) -> None: ...

    # Serving: what fails here is a BusbarError.

    async def add(self, fragments: Mapping[int, FragmentSettings]) -> None: ...

    def change(self, fragments: Mapping[int, FragmentSettings]) -> None: ...

    async def remove(self, fragment: int) -> None: ...

    async def write_catalogue(self, rows: Rows) -> None: ...

    def submit(self, commands: Iterable[Command]) -> None: ...

    def active(self, fragment: int) -> int:
        """When a gateway last did something with the fragment, in ms (0: not since it was taken into service)."""

    async def learn_use(self, fragments: Sequence[int]) -> None:
        """Let `active` know of these what the process knows that has the store."""

    # What operators say

    async def take_offline(self) -> None: ...

    def bring_online(self) -> None: ...

    def reset(self) -> None: ...


Admit = Callable[[Host, bool], Awaitable[None]]
"""Looks at a store that was just opened (or, with True, made anew) before it serves; raises StoreError to keep it out."""
