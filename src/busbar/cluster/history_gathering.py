"""Gathers the history of messages from all processes of a namespace.

A step is recorded in the process of its fragment. Its client can be one of another gateway, which has its name. So all
processes are asked for steps, and then gateways for their clients. A process that does not answer soon is left out.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from busbar.model.history import ClientName, HistoryStep

SECONDS = 5.0
"""For each of the two questions."""


class HistoryProcess(Protocol):
    """A process that records."""

    async def history(self, message_id: str) -> Sequence[HistoryStep]: ...

    async def client_names(self, clients: Sequence[tuple[int, int]]) -> Sequence[ClientName | None]: ...


async def gather_history(message_id: str, processes: Mapping[str, HistoryProcess]) -> list[HistoryStep]:
    """The steps of all processes, which are given by the names of their gateways."""
    answers = await asyncio.gather(
        *[asyncio.wait_for(process.history(message_id), SECONDS) for process in processes.values()],
        return_exceptions=True,
    )
    steps = [
        replace(step, gateway=step.gateway or gateway)
        for gateway, found in zip(processes, answers, strict=True)
        if not isinstance(found, BaseException)
        for step in found
    ]
    wanted: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for step in steps:
        if step.origin and step.gateway in processes:
            wanted[step.gateway].add((step.origin, step.consumer))
    named = await asyncio.gather(
        *[_names(gateway, processes[gateway], sorted(clients)) for gateway, clients in wanted.items()]
    )
    names = {key: name for part in named for key, name in part.items()}
    return [replace(step, client=names.get((step.gateway, step.origin, step.consumer))) for step in steps]


async def _names(
    gateway: str, process: HistoryProcess, clients: Sequence[tuple[int, int]]
) -> dict[tuple[str, int, int], ClientName | None]:
    try:
        names = await asyncio.wait_for(process.client_names(clients), SECONDS)
    except Exception:  # the process has ended, or does not answer: its clients have no names
        return {}
    return {(gateway, *client): name for client, name in zip(clients, names, strict=True)}
