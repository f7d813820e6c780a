"""Reports of insight with figures as a shop has them, for tests of the page and for the pictures in the documents."""

from __future__ import annotations

import math
from dataclasses import replace

from busbar.jobs.insight_advice import Clients, advise_all
from busbar.jobs.insight_figures import (
    BOUNDS,
    Backlog,
    Coverage,
    EntityCounts,
    EntityFigures,
    Fates,
    Flow,
    FragmentCoverage,
    FragmentFigures,
    Latency,
    Ranking,
    Report,
    Share,
    TimeBucket,
    histogram_of,
)

MOMENT = 1_767_225_600_000  # 2026-01-01 00:00
BEGIN = MOMENT + 20 * 3_600_000
SLOT = 300
SLOTS = 72
WAITING = 180


DEAD = 493


def _slots() -> tuple[TimeBucket, ...]:
    """Six hours over midnight, with a rush in the middle that receivers do not follow at once. The last slot has the dead
    letters."""
    made = []
    backlog = 0
    for at in range(SLOTS):
        rush = math.exp(-(((at - 30) / 9) ** 2))
        sent = round(2_400 + 900 * math.sin(at / 7) + 21_000 * rush)
        done = min(backlog + sent - WAITING, 14_000) - (DEAD if at == SLOTS - 1 else 0)
        backlog += sent - done - (DEAD if at == SLOTS - 1 else 0)
        p50 = 6 + backlog / 90
        made.append(TimeBucket(BEGIN + at * SLOT * 1000, sent, done, p50, p50 * 3.1 + 4, backlog))
    return tuple(made)


def ranking(total: int, distinct: int, *named: tuple[str, int]) -> Ranking:
    shares = tuple(Share(name, count, count / total) for name, count in named)
    return Ranking(total, distinct, shares)


def busy_orders(entity: str = "shop/orders") -> EntityFigures:
    """A partitioned queue, its records complete, with a rush, a hot key and dead letters."""
    slots = _slots()
    sent, done = sum(slot.sent or 0 for slot in slots), sum(slot.done or 0 for slot in slots)
    dead = DEAD
    weights = [5, 6, 4, 5, 5, 31, 6, 5, 4, 5, 6, 5, 4, 5, 5, 4]
    by_fragment = [sent * weight // sum(weights) for weight in weights]
    bins = {3: 30, 4: 300, 5: 2_100, 6: 9_000, 7: 5_200, 8: 2_500, 9: 900, 10: 260, 11: 41, 13: 7}
    scaled = {at: count * done // sum(bins.values()) for at, count in bins.items()}
    assert max(scaled) < len(BOUNDS)
    spans = tuple(
        FragmentCoverage(index, 0, count, 0, 0, count + 40) for index, count in enumerate(by_fragment)
    )
    return EntityFigures(
        entity=entity,
        coverage=Coverage(
            "tap 'insight'", BEGIN - 60_000, sent, done + dead, spans, known_time=BEGIN - 60_000
        ),
        sent=Flow(sent, BEGIN, BEGIN + SLOTS * SLOT * 1000, sent / (SLOTS * SLOT), 88.4, 131.0),
        done=Flow(done, BEGIN, BEGIN + SLOTS * SLOT * 1000, done / (SLOTS * SLOT), 46.7, 61.0),
        latency=Latency(done, 61.0, 41.0, 130.0, 190.0, 1_480.0, 9_300.0, 34_000.0, histogram_of(scaled)),
        slot_seconds=SLOT,
        slots=slots,
        fragments=tuple(
            FragmentFigures(index, count, count / sum(by_fragment), count, 190.0)
            for index, count in enumerate(by_fragment)
        ),
        keys=ranking(
            sent,
            1_204,
            ("marketplace-eu-central", sent * 27 // 100),
            ("marketplace-us-east", sent * 6 // 100),
            ("shop-berlin-01", sent * 2 // 100),
            ("shop-lyon-04", sent // 300),
        ),
        sessions=Ranking(),
        dead_letters=ranking(
            dead, 3, ("MaxDeliveryCountExceeded", 402), ("TTLExpiredException", 80), ("address unknown", 11)
        ),
        duplicates=ranking(37, 37, ("order-2026-0117-88412", 1), ("order-2026-0117-88413", 1)),
        outcomes={
            "completed": done,
            "abandoned": 1_840,
            "dead-lettered": dead,
            "duplicate-dropped": 37,
            "lock-expired": 12,
        },
        redelivered=1_391,
        fates=Fates(
            done + dead,
            sent - done - dead,
            0,
            {"done": done, "dead-lettered": dead, "active": sent - done - dead},
            sent - done - dead,
        ),
        counts=EntityCounts(BEGIN + SLOTS * SLOT * 1000, WAITING, dead, 0),
        backlog=Backlog.COUNTED,
    )


def drained_bills(entity: str = "shop/bills") -> EntityFigures:
    """A queue that was drained before its tap was made: no outcome is recorded, and the tap shows what became of all."""
    busy = busy_orders(entity)
    total = busy.sent.count
    began = BEGIN + SLOTS * SLOT * 1000 + 120_000
    return replace(
        busy,
        coverage=Coverage(
            "tap 'insight'",
            began,
            total,
            0,
            (FragmentCoverage(0, 0, total, 0, 0, 0),),
            ("The tap 'insight' was made just now: what happened before is not known.",),
            known_time=began,
        ),
        done=Flow(),
        latency=None,
        slots=tuple(replace(slot, done=None, p50=None, p95=None, backlog=None) for slot in busy.slots),
        fragments=(FragmentFigures(0, total, 1.0, 0, None),),
        outcomes={},
        redelivered=0,
        duplicates=Ranking(),
        fates=Fates(0, 0, total, {"done": total - DEAD, "dead-lettered": DEAD}, 0),
        counts=EntityCounts(began, 0, DEAD, 0),
        backlog=Backlog.UNKNOWN,
    )


def partial_audit(entity: str = "news/Subscriptions/audit") -> EntityFigures:
    """A subscription of which two fragments could not be reached, and whose tap lost events."""
    busy = busy_orders(entity)
    spans = tuple(replace(each, event_lost=12) for each in busy.coverage.fragments[:14])
    return replace(
        busy,
        coverage=replace(busy.coverage, fragments=spans, unavailable=(14, 15)),
        fragments=busy.fragments[:14],
        slots=tuple(replace(slot, backlog=None) for slot in busy.slots),
        backlog=Backlog.UNKNOWN,
    )


def report_of(*figures: EntityFigures) -> Report:
    return Report(BEGIN + SLOTS * SLOT * 1000 + 300_000, advise_all(figures, Clients(receivers=3), {}))


def whole_report() -> Report:
    """Three entities: one that is known, one of which little is known, and one that is partly out of reach."""
    return report_of(busy_orders(), drained_bills(), partial_audit())
