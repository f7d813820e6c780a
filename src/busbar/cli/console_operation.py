"""What operators look at in the web console: counts, stores, processes and taps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from busbar.cli.console_client import listed, management, moment
from busbar.cli.endpoint import ConnectionOptions
from busbar.cli.metrics_text import MetricSample, read_metrics
from busbar.cli.output import size_text
from busbar.cli.stores import ask
from busbar.console.namespace import HeldCounts, ProcessSummary, StoreSummary, TapsPage, TapSummary

HELD = ("active", "deferred", "scheduled")
"""The states of messages that are a backlog."""
IN, OUT, LOCKED = "busbar_messages_in_total", "busbar_messages_out_total", "busbar_messages_locked"


class RunningOperation:
    def __init__(self, where: ConnectionOptions) -> None:
        self._where = where

    def counts(self) -> Mapping[str, HeldCounts]:
        with management(self._where) as client:
            return counts_of(read_metrics(client.metrics()))

    def stores(self) -> Sequence[StoreSummary]:
        with management(self._where) as client:
            views = listed(lambda: ask(client, "GET", "stores", "the list of stores"))
        return [_store(view) for view in views]

    def processes(self) -> Sequence[ProcessSummary]:
        with management(self._where) as client:
            views = listed(lambda: ask(client, "GET", "nodes", "the list of processes"))
        return [_process(view) for view in views]

    def taps(self, skip: int, limit: int) -> TapsPage:
        with management(self._where) as client:
            query = f"&skip={skip}&top={limit}"
            found = ask(client, "GET", "taps", "the list of taps", query)
        return TapsPage([_tap(view) for view in found["taps"]], found["total"], found["sorted"] == "lag")


def counts_of(samples: Sequence[MetricSample]) -> dict[str, HeldCounts]:
    """What each entity holds, and has taken and delivered. Messages that have failed a transfer are dead letters, too.

    A broker omits the counters of an entity that has done nothing yet; one that has no counters omits `LOCKED` as well."""
    held: dict[str, Counter[str]] = defaultdict(Counter)
    done: dict[str, Counter[str]] = defaultdict(Counter)
    has_counters = False
    for sample in samples:
        if sample.family == "busbar_messages":
            held[sample.labels["entity"]][sample.labels["state"]] += int(sample.value)
        elif sample.family in (IN, OUT):
            done[sample.labels["entity"]][sample.family] += int(sample.value)
        has_counters = has_counters or sample.family == LOCKED
    return {
        path: HeldCounts(
            sum(states[state] for state in HELD),
            states["dead_letter"] + states["transfer_dead_letter"],
            *((done[path][IN], done[path][OUT]) if has_counters else ()),
        )
        for path, states in held.items()
    }


def _store(view: Mapping[str, Any]) -> StoreSummary:
    return StoreSummary(
        view["name"],
        view["state"],
        view["reason"],
        view["fragments"],
        size_text(view["size"]),
        view.get("broker", ""),
        _milliseconds(view.get("commitP50", 0)),
        _milliseconds(view.get("commitP99", 0)),
        view.get("group", 0),
        view.get("status", ""),
    )


def _process(view: Mapping[str, Any]) -> ProcessSummary:
    if view["state"] != "up":
        return ProcessSummary(view["name"], view["state"])
    return ProcessSummary(
        view["name"],
        view["state"],
        view["address"] or view["machine"],
        view["process"],
        view["version"],
        moment(view["since"]),
        view["connections"],
        view["catalogueVersion"],
        len(view["channels"]),
        view["stores"],
    )


def _tap(view: Mapping[str, Any]) -> TapSummary:
    kinds = [word for word in ("events", "consumes") if view[word]]
    return TapSummary(
        view["entity"] + ("/$DeadLetterQueue" if view["deadLetter"] else ""),
        view["name"],
        view["reader"] or view["owner"],
        ", ".join(["messages", *kinds]),
        moment(view["created"]),
        view["lag"],
        view["kept"],
        size_text(view["keptBytes"]),
        view["truncated"],
        view["limited"],
    )


def _milliseconds(microseconds: int) -> str:
    return f"{microseconds / 1000:.1f} ms" if microseconds else ""
