"""The text format of Prometheus, version 0.0.4: families with their descriptions, and a line for each sample.

No object here lives between scrapes. So a client library would have nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from busbar.model.figures import HistogramView

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

FAMILIES: Final = {
    "busbar_store_up": ("gauge", "1 while a messaging store is open, 0 while it is unavailable."),
    "busbar_takeovers_total": ("counter", "Claims of a store because its owner had ended."),
    "busbar_fenced_total": (
        "counter",
        "How often an owner found that another process had claimed its store.",
    ),
    "busbar_reclaims_total": (
        "counter",
        "How often an owner lost its connection to a store and claimed the store again.",
    ),
    "busbar_resolved_total": (
        "counter",
        "Commits of unknown outcome by what was found out, and acknowledged ones that a store has lost.",
    ),
    "busbar_connections": ("gauge", "Client connections of a process that serves clients."),
    "busbar_catalogue_lag_changes": (
        "gauge",
        "Changes of the catalogue that a process does not have yet.",
    ),
    "busbar_entities": ("gauge", "Queues, topics and subscriptions that the scrape is about."),
    "busbar_entities_omitted": (
        "gauge",
        "Those of them that have no samples, because there would be too many.",
    ),
    "busbar_entity_available": (
        "gauge",
        "0 while a fragment of the entity is unavailable: counts are of the others.",
    ),
    "busbar_messages": ("gauge", "Messages of an entity by state; locked ones are active."),
    "busbar_transfers_total": (
        "counter",
        "Messages that were forwarded to other entities, since the brokers started.",
    ),
    "busbar_transfer_held": (
        "gauge",
        "Fragments of an entity whose messages for a target are held, by reason.",
    ),
    "busbar_transfer_oldest_seconds": (
        "gauge",
        "Age of the oldest message of an entity that is on its way to a target.",
    ),
    "busbar_transactions_open": ("gauge", "Transactions of a broker process that are not over."),
    "busbar_transactions_total": ("counter", "Transactions of a broker process that are over, by outcome."),
    "busbar_messages_in_total": (
        "counter",
        "Messages that an entity took: from clients, by forwarding, or as copies of a topic.",
    ),
    "busbar_bytes_in_total": ("counter", "Their bytes."),
    "busbar_messages_out_total": ("counter", "Messages that receivers of an entity got."),
    "busbar_bytes_out_total": ("counter", "Their bytes."),
    "busbar_settlements_total": ("counter", "Messages of an entity that receivers settled, by outcome."),
    "busbar_locks_lost_total": ("counter", "Locks that ended before their messages were settled."),
    "busbar_duplicates_dropped_total": (
        "counter",
        "Messages that were dropped because their ids were known.",
    ),
    "busbar_entity_dead_letters_total": ("counter", "Messages of an entity that were dead-lettered."),
    "busbar_messages_locked": ("gauge", "Active messages of an entity that are locked."),
    "busbar_oldest_message_seconds": (
        "gauge",
        "Age of the first active message of an entity; 0 without one.",
    ),
    "busbar_dead_letters_total": ("counter", "Messages that were dead-lettered, by reason."),
    "busbar_refusals_total": (
        "counter",
        "Requests, messages and settlements that were refused, by condition.",
    ),
    "busbar_links": ("gauge", "AMQP links of a broker process to entities."),
    "busbar_cpu_seconds_total": ("counter", "CPU time of a broker process."),
    "busbar_commit_seconds": ("histogram", "Times of the commits of a store."),
    "busbar_delivery_seconds": ("histogram", "Times from enqueuing a message to its delivery."),
    "busbar_store_free_bytes": ("gauge", "What is free on the disk of a store."),
    "busbar_size_bytes": ("gauge", "Bytes that count towards an entity's quota."),
    "busbar_tap_lag_messages": (
        "gauge",
        "Positions behind the tap's, up to the end: at most so many messages.",
    ),
    "busbar_tap_kept_messages": ("gauge", "Messages kept for taps that this one has not passed, at most."),
    "busbar_tap_kept_bytes": ("gauge", "Their bytes."),
    "busbar_tap_truncated": ("gauge", "1 after a limit of the tap was reached, until it is resumed."),
    "busbar_tap_truncations_total": ("counter", "Limits of the tap reached since its fragment was opened."),
}

Sample = tuple[str, dict[str, str], int]
"""A family, labels, and a number."""


class MetricsPage:
    """The text of a scrape: the samples of a family together, after its description. A family without samples is omitted."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {name: [] for name in FAMILIES}

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self._lines[name].append(f"{name}{labels_text(labels)} {value}\n")

    def lines(self, name: str) -> list[str]:
        """The samples of a family, for those who add thousands: texts of one line or more."""
        return self._lines[name]

    def add_histogram(
        self,
        name: str,
        labels: Mapping[str, str],
        bounds: Sequence[int],
        view: HistogramView,
        per_second: int,
    ) -> None:
        """Add the samples of a histogram, whose values are in parts of a second."""
        lines = self._lines[name]
        count = 0
        for bound, here in zip(bounds, view.counts, strict=False):
            count += here
            edge = {**labels, "le": f"{bound / per_second:g}"}
            lines.append(f"{name}_bucket{labels_text(edge)} {count}\n")
        count = sum(view.counts)
        lines.append(f"{name}_bucket{labels_text({**labels, 'le': '+Inf'})} {count}\n")
        lines.append(f"{name}_sum{labels_text(labels)} {view.total / per_second}\n")
        lines.append(f"{name}_count{labels_text(labels)} {count}\n")

    def text(self) -> str:
        return "".join(
            f"# HELP {name} {FAMILIES[name][1]}\n# TYPE {name} {FAMILIES[name][0]}\n{''.join(lines)}"
            for name, lines in self._lines.items()
            if lines
        )


def labels_text(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
