"""Advice from measured figures: the documented scenario of an entity, its settings, the prefetch count, and findings.

The rules are those of busbar.client.advice. The number of clients is not measured: it is given, or assumed to be small. The
rate is that of the busiest minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from busbar.client.advice import (
    PREFETCH_LOCK_SECONDS,
    SMALL,
    Load,
    Scenario,
    Setting,
    because,
    prefetch_of,
    rate_class,
    scenario_of,
    settings_of,
)
from busbar.jobs.insight_figures import Advice, EntityFigures, EntityReport
from busbar.jobs.insight_findings import findings_of


@dataclass(frozen=True, slots=True)
class Clients:
    """What cannot be measured. None: unknown, assumed to be small."""

    senders: int | None = None
    receivers: int | None = None
    subscriptions: int | None = None
    goal: str = ""


@dataclass(frozen=True, slots=True)
class EntitySettings:
    """The current settings of the entity, where known."""

    lock_seconds: float | None = None


def load_of(
    figures: EntityFigures, clients: Clients, settings: EntitySettings, others: Sequence[EntityFigures]
) -> Load:
    """The load that was measured, with what cannot be measured."""
    return Load(
        send_rate=figures.sent.busy_rate,
        receive_rate=figures.done.busy_rate,
        senders=clients.senders,
        receivers=clients.receivers,
        subscriptions=clients.subscriptions,
        is_topic="/subscriptions/" in figures.entity.lower(),
        busy_queues=1 + sum(rate_class(other.sent.busy_rate) != SMALL for other in others),
        lock_seconds=settings.lock_seconds or PREFETCH_LOCK_SECONDS,
        goal=clients.goal,
    )


def advise(
    figures: EntityFigures, clients: Clients, settings: EntitySettings, others: Sequence[EntityFigures] = ()
) -> Advice:
    load = load_of(figures, clients, settings, others)
    scenario = scenario_of(load)
    prefetch, why = prefetch_of(scenario, load.receive_rate, load.receivers, load.lock_seconds)
    values = [
        *settings_of(scenario, load, is_partitioned=figures.partitioned),
        Setting("prefetch", "unknown" if prefetch is None else str(prefetch), None, why),
    ]
    return Advice(scenario.value, because(load), prefetch, tuple(values), tuple(findings_of(figures)))


def advise_all(
    figures: Sequence[EntityFigures], clients: Clients, settings: Mapping[str, EntitySettings]
) -> tuple[EntityReport, ...]:
    return tuple(
        EntityReport(
            each,
            advise(
                each,
                clients,
                settings.get(each.entity, EntitySettings()),
                [other for other in figures if other is not each],
            ),
        )
        for each in figures
    )


__all__ = ["Clients", "EntitySettings", "Scenario", "advise", "advise_all", "load_of"]
