"""The samples of entities: what they hold, and what they have done in each process.

A scrape has ten samples of each entity, or more, of thousands of entities. So the labels of an entity are made once for all
scrapes, and a family of several samples is one text.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbar.gateway.http.metrics_text import MetricsPage, escaped
from busbar.model.api import EntityView, RuntimeProperties
from busbar.model.figures import FragmentCounters, ProcessFigures

HELD_SAMPLES = 10
COUNTER_SAMPLES = 12
KEPT_LABELS = 20_000
"""Labels that are kept at most. Then all are forgotten, since entities may have been deleted."""


class EntitySamples:
    """The labels of entities, by their paths."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def of(self, page: MetricsPage) -> EntityLines:
        if len(self._labels) > KEPT_LABELS:
            self._labels.clear()
        return EntityLines(page, self._labels)


class EntityLines:
    """Adds the samples of entities to a page."""

    def __init__(self, page: MetricsPage, labels: dict[str, str]) -> None:
        self._labels = labels
        self._messages = page.lines("busbar_messages")
        self._locked = page.lines("busbar_messages_locked")
        self._oldest = page.lines("busbar_oldest_message_seconds")
        self._size = page.lines("busbar_size_bytes")
        self._available = page.lines("busbar_entity_available")
        self._page = page

    def _labels_of(self, path: str) -> str:
        labels = self._labels.get(path)
        if labels is None:
            labels = self._labels[path] = f'entity="{escaped(path)}"'
        return labels

    def add_held(self, entity: EntityView, held: RuntimeProperties, oldest: int, now: int) -> None:
        """Add what an entity holds now. `oldest` is when its first active message was enqueued; 0: there is none."""
        labels = self._labels_of(entity.path)
        state = f'busbar_messages{{{labels},state="'
        self._messages.append(
            f'{state}active"}} {held.active}\n'
            f'{state}dead_letter"}} {held.dead_letter}\n'
            f'{state}scheduled"}} {held.scheduled}\n'
            f'{state}deferred"}} {held.deferred}\n'
            f'{state}transfer"}} {held.transfer}\n'
            f'{state}transfer_dead_letter"}} {held.transfer_dead_letter}\n'
        )
        age = max(0, now - oldest) // 1000 if oldest else 0
        self._locked.append(f"busbar_messages_locked{{{labels}}} {held.locked}\n")
        self._oldest.append(f"busbar_oldest_message_seconds{{{labels}}} {age}\n")
        self._size.append(f"busbar_size_bytes{{{labels}}} {held.size}\n")
        self._available.append(f"busbar_entity_available{{{labels}}} {int(held.available)}\n")

    def add_done(self, entity: EntityView, processes: Sequence[ProcessFigures]) -> None:
        """Add what an entity has done in each process, if anything."""
        for process in processes:
            found = [process.fragments[one] for one in entity.fragments if one in process.fragments]
            if found:
                broker = f',broker="{process.name}"' if process.name else ""
                self._add_counters(f"{self._labels_of(entity.path)}{broker}", _sum(found))

    def _add_counters(self, labels: str, done: FragmentCounters) -> None:
        samples = (
            ("busbar_messages_in_total", done.messages_in),
            ("busbar_bytes_in_total", done.bytes_in),
            ("busbar_messages_out_total", done.messages_out),
            ("busbar_bytes_out_total", done.bytes_out),
            ("busbar_locks_lost_total", done.locks_lost),
            ("busbar_duplicates_dropped_total", done.duplicates),
            ("busbar_entity_dead_letters_total", done.dead_letters),
        )
        for name, value in samples:
            self._page.lines(name).append(f"{name}{{{labels}}} {value}\n")
        outcome = f'busbar_settlements_total{{{labels},outcome="'
        self._page.lines("busbar_settlements_total").append(
            f'{outcome}completed"}} {done.completed}\n'
            f'{outcome}abandoned"}} {done.abandoned}\n'
            f'{outcome}deferred"}} {done.deferred}\n'
            f'{outcome}dead_lettered"}} {done.dead_lettered}\n'
            f'{outcome}released"}} {done.released}\n'
        )


def most_samples(entity: EntityView, processes: Sequence[ProcessFigures]) -> int:
    """How many samples the entity has, at most."""
    busy = 0
    for process in processes:
        for one in entity.fragments:
            if one in process.fragments:
                busy += 1
                break
    taps = 5 * len(entity.taps) * len(entity.fragments) if entity.taps else 0
    return HELD_SAMPLES + COUNTER_SAMPLES * busy + taps


def _sum(found: Sequence[Sequence[int]]) -> FragmentCounters:
    if len(found) == 1:
        return FragmentCounters(*found[0])
    return FragmentCounters(*[sum(values) for values in zip(*found, strict=True)])
