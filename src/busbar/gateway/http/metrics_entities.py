"""The samples of entities: what they hold, and what they have done in each process."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.gateway.http.metrics_text import MetricsPage, escaped
from busbar.model.api import EntityView, RuntimeProperties
from busbar.model.figures import FragmentCounters, ProcessFigures

HELD_SAMPLES = 10
COUNTER_SAMPLES = 12


def add_held(page: MetricsPage, entity: EntityView, held: RuntimeProperties, oldest: int, now: int) -> None:
    """Add what an entity holds now. `oldest` is when its first active message was enqueued; 0: there is none."""
    labels = f'entity="{escaped(entity.path)}"'
    page.add_all(
        "busbar_messages",
        labels,
        {
            ',state="active"': held.active,
            ',state="dead_letter"': held.dead_letter,
            ',state="scheduled"': held.scheduled,
            ',state="deferred"': held.deferred,
            ',state="transfer"': held.transfer,
            ',state="transfer_dead_letter"': held.transfer_dead_letter,
        },
    )
    page.add_one("busbar_messages_locked", labels, held.locked)
    page.add_one("busbar_oldest_message_seconds", labels, max(0, now - oldest) // 1000 if oldest else 0)
    page.add_one("busbar_size_bytes", labels, held.size)
    page.add_one("busbar_entity_available", labels, int(held.available))


def add_done(page: MetricsPage, entity: EntityView, processes: Sequence[ProcessFigures]) -> None:
    """Add what an entity has done in each process, if anything."""
    for process in processes:
        found = [process.fragments[one] for one in entity.fragments if one in process.fragments]
        if found:
            broker = f',broker="{process.name}"' if process.name else ""
            _add_counters(page, f'entity="{escaped(entity.path)}"{broker}', _sum(found))


def most_samples(entity: EntityView, processes: Sequence[ProcessFigures]) -> int:
    """How many samples the entity has, at most."""
    busy = sum(any(one in process.fragments for one in entity.fragments) for process in processes)
    return HELD_SAMPLES + COUNTER_SAMPLES * busy + 5 * len(entity.taps) * len(entity.fragments)


def _sum(found: Sequence[Sequence[int]]) -> FragmentCounters:
    if len(found) == 1:
        return FragmentCounters(*found[0])
    return FragmentCounters(*[sum(values) for values in zip(*found, strict=True)])


def _add_counters(page: MetricsPage, labels: str, done: FragmentCounters) -> None:
    page.add_one("busbar_messages_in_total", labels, done.messages_in)
    page.add_one("busbar_bytes_in_total", labels, done.bytes_in)
    page.add_one("busbar_messages_out_total", labels, done.messages_out)
    page.add_one("busbar_bytes_out_total", labels, done.bytes_out)
    page.add_all(
        "busbar_settlements_total",
        labels,
        {
            ',outcome="completed"': done.completed,
            ',outcome="abandoned"': done.abandoned,
            ',outcome="deferred"': done.deferred,
            ',outcome="dead_lettered"': done.dead_lettered,
            ',outcome="released"': done.released,
        },
    )
    page.add_one("busbar_locks_lost_total", labels, done.locks_lost)
    page.add_one("busbar_duplicates_dropped_total", labels, done.duplicates)
    page.add_one("busbar_entity_dead_letters_total", labels, done.dead_letters)
