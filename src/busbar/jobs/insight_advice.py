"""Advice from measured figures: the documented scenario of an entity, its settings, the prefetch count, and findings.

The scenario follows from the rate and the number of clients:

    rates     small below 1 message/s, moderate below 100, high from there on
    clients   small up to 5, moderate up to 20, large above

    a subscription of a topic                      topic with few or with many subscriptions
    a large number of senders                      many senders
    a large number of receivers                    many receivers
    a high rate, or the goal "throughput"          high throughput; several, if another entity has a moderate or high rate
    else, or the goal "latency"                    low latency

Prefetch, at locks of 60 seconds: 20 × the rate of all receivers together. For other locks it is in proportion, because
cached messages must be completed before their locks end. It is 10 for a large number of receivers, so that none is idle
while others hold messages. It is 0 for several receivers where latency counts: the second one gets the second message at
once.

The number of clients is not measured: it is given, or assumed to be small. The rate is that of the busiest minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from busbar.jobs.insight_figures import Advice, EntityFigures, EntityReport, Setting
from busbar.jobs.insight_findings import findings_of

SMALL = "small"
MODERATE = "moderate"
HIGH = "high"
LARGE = "large"

THROUGHPUT = "throughput"
LATENCY = "latency"
GOALS = ("", THROUGHPUT, LATENCY)

HIGH_THROUGHPUT = "high-throughput queue"
SEVERAL_HIGH = "several high-throughput queues"
LOW_LATENCY = "low-latency queue"
MANY_SENDERS = "queue with many senders"
MANY_RECEIVERS = "queue with many receivers"
FEW_SUBSCRIPTIONS = "topic with few subscriptions"
MANY_SUBSCRIPTIONS = "topic with many subscriptions"

PREFETCH_SECONDS = 20
PREFETCH_LOCK_SECONDS = 60
PREFETCH_OF_MANY = 10


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


def rate_class(rate: float | None) -> str:
    if rate is None or rate < 1:
        return SMALL
    return MODERATE if rate < 100 else HIGH


def client_class(count: int | None) -> str:
    if count is None or count <= 5:
        return SMALL
    return MODERATE if count <= 20 else LARGE


def scenario_of(figures: EntityFigures, clients: Clients, others: Sequence[EntityFigures]) -> str:
    if "/subscriptions/" in figures.entity.lower():
        return FEW_SUBSCRIPTIONS if client_class(clients.subscriptions) == SMALL else MANY_SUBSCRIPTIONS
    if client_class(clients.senders) == LARGE:
        return MANY_SENDERS
    if client_class(clients.receivers) == LARGE:
        return MANY_RECEIVERS
    rate = rate_class(figures.sent.busy_rate)
    if clients.goal == LATENCY or (clients.goal != THROUGHPUT and rate != HIGH):
        return LOW_LATENCY
    company = any(rate_class(other.sent.busy_rate) != SMALL for other in others)
    return SEVERAL_HIGH if company and rate != SMALL else HIGH_THROUGHPUT


def prefetch_of(
    scenario: str, receive_rate: float | None, receivers: int | None, lock_seconds: float
) -> tuple[int | None, str]:
    """The prefetch count, and the reason."""
    if scenario == LOW_LATENCY and receivers is not None and receivers > 1:
        return 0, f"with {receivers} receivers, the next message should go to one that is free"
    if scenario == MANY_RECEIVERS:
        return PREFETCH_OF_MANY, "small, so that no receiver is idle while others hold messages"
    if not receive_rate:
        return None, "nothing was received in this span, so there is no rate to go by"
    seconds = PREFETCH_SECONDS * lock_seconds / PREFETCH_LOCK_SECONDS
    count = max(1, math.ceil(receive_rate * seconds))
    why = f"{seconds:g} × {receive_rate:.3g}/s, the receivers' rate in their busiest minute, at locks of {lock_seconds:g} s"
    if receivers is not None and receivers > 1:
        why += f"; for all {receivers} receivers of a factory together, {math.ceil(count / receivers)} for one alone"
    elif scenario == LOW_LATENCY:
        why += "; for a single receiver, with several: 0"
    return count, why


def advise(
    figures: EntityFigures, clients: Clients, settings: EntitySettings, others: Sequence[EntityFigures] = ()
) -> Advice:
    scenario = scenario_of(figures, clients, others)
    lock = settings.lock_seconds or PREFETCH_LOCK_SECONDS
    prefetch, why = prefetch_of(scenario, figures.done.busy_rate, clients.receivers, lock)
    values = [
        *_settings(scenario, figures, clients),
        Setting("prefetch", "unknown" if prefetch is None else str(prefetch), None, why),
    ]
    return Advice(
        scenario, _because(scenario, figures, clients), prefetch, tuple(values), tuple(findings_of(figures))
    )


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


def _because(scenario: str, figures: EntityFigures, clients: Clients) -> str:
    rate = figures.sent.busy_rate
    said = "no rate was measured" if rate is None else f"{rate:.3g} messages/s is {rate_class(rate)}"
    counts = [
        f"{count} {word} ({client_class(count)})"
        if count is not None
        else f"a small number of {word} (assumed)"
        for count, word in ((clients.senders, "senders"), (clients.receivers, "receivers"))
    ]
    goal = f", and the goal is {clients.goal}" if clients.goal else ""
    return f"{said}, with {counts[0]} and {counts[1]}{goal}"


def _settings(scenario: str, figures: EntityFigures, clients: Clients) -> list[Setting]:
    """The settings that have an effect: batched store access, which the documents name too, is always on."""
    topic = scenario in (FEW_SUBSCRIPTIONS, MANY_SUBSCRIPTIONS)
    latency = scenario == LOW_LATENCY
    several_senders = clients.senders is not None and clients.senders > 1
    chosen = [
        Setting(
            "EnablePartitioning",
            "true",
            str(figures.partitioned).lower(),
            f"availability{'' if latency else ' and throughput'}; chosen when the {'topic' if topic else 'queue'} is made",
        )
    ]
    if scenario in (HIGH_THROUGHPUT, SEVERAL_HIGH, FEW_SUBSCRIPTIONS):
        chosen.append(
            Setting(
                "factories",
                "several",
                None,
                "each has one connection, whose rate is limited; for senders and receivers",
            )
        )
    if scenario == SEVERAL_HIGH:
        chosen[-1] = replace(chosen[-1], value="several, others for each queue")
    if scenario in (MANY_SENDERS, MANY_RECEIVERS):
        chosen.append(
            Setting("factories", "one in each process", None, "connections to an entity are limited")
        )
    if not latency:
        chosen.append(
            Setting(
                "operations", "asynchronous", None, "they overlap, and the client batches sends and completes"
            )
        )
    chosen.append(_client_batching(scenario, several_senders))
    return chosen


def _client_batching(scenario: str, several_senders: bool) -> Setting:
    name = "client batching"
    if scenario == LOW_LATENCY:
        return Setting(name, "off", None, "a message leaves at once")
    if scenario in (HIGH_THROUGHPUT, SEVERAL_HIGH):
        return Setting(
            name,
            "100 ms" if several_senders else "50 ms",
            None,
            "fewer transmissions; 100 ms with several senders",
        )
    return Setting(name, "20 ms", None, "the default")
