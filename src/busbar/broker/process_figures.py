"""Gathers what a process has done: its fragments, its stores and its gateway."""

from __future__ import annotations

import time
from collections.abc import Iterable

from busbar.broker.store_host import LocalStoreHost
from busbar.fragment.figures import FiguresOfFragments
from busbar.model.figures import GatewayFigures, ProcessFigures, view_of


def process_figures(
    name: str, fragments: FiguresOfFragments, hosts: Iterable[LocalStoreHost], gateway: GatewayFigures
) -> ProcessFigures:
    """`name` is that of the process, `hosts` are those of its stores."""
    return ProcessFigures(
        name,
        time.process_time_ns() // 1_000,
        gateway,
        {host.name: view_of(host.commit_times.histogram) for host in hosts},
        dict(fragments.dead_letters),
        fragments.used(),
    )
