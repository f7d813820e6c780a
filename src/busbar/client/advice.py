"""Advice on settings: which of the documented scenarios a load is, and the settings of that scenario.

    rates     small below 1 message/s, moderate below 100, high from there on
    clients   small up to 5, moderate up to 20, large above

The scenario follows from the load in this order:

    a topic                                   few subscriptions, or many
    a large number of senders                 many senders
    a large number of receivers               many receivers
    a high rate, or the goal "throughput"     high throughput; several queues, if another one has a moderate or high rate
    else, or the goal "latency"               low latency

The prefetch count is 20 × the rate of all receivers of a factory, at locks of 60 seconds. For other locks it is in
proportion, and never more than one receiver can complete before its locks end. It is 10 for a large number of receivers, so
that none is idle while others hold messages. It is 0 for several receivers where latency counts.

Nothing here has a clock or a connection. `busbar insight` and `busbar bench` measure, and presets.py has the settings as
values for the factory, its clients and the entity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

SMALL = "small"
MODERATE = "moderate"
HIGH = "high"
LARGE = "large"

THROUGHPUT = "throughput"
LATENCY = "latency"
GOALS = ("", THROUGHPUT, LATENCY)

PREFETCH_SECONDS = 20
PREFETCH_LOCK_SECONDS = 60
PREFETCH_OF_MANY = 10


class Scenario(StrEnum):
    """A documented scenario, by its title."""

    HIGH_THROUGHPUT = "high-throughput queue"
    SEVERAL_HIGH = "several high-throughput queues"
    LOW_LATENCY = "low-latency queue"
    MANY_SENDERS = "queue with many senders"
    MANY_RECEIVERS = "queue with many receivers"
    FEW_SUBSCRIPTIONS = "topic with few subscriptions"
    MANY_SUBSCRIPTIONS = "topic with many subscriptions"

    @property
    def key(self) -> str:
        """The name for commands: `high-throughput`, `many-senders`."""
        return self.name.lower().replace("_", "-")

    @property
    def is_topic(self) -> bool:
        return self in (Scenario.FEW_SUBSCRIPTIONS, Scenario.MANY_SUBSCRIPTIONS)


@dataclass(frozen=True, slots=True)
class Load:
    """What is known about the use of an entity. None: unknown, assumed to be small. Rates are messages per second."""

    send_rate: float | None = None
    receive_rate: float | None = None
    """Of all receivers together."""
    senders: int | None = None
    receivers: int | None = None
    subscriptions: int | None = None
    """Of the topic. None for a queue, or if their number is unknown."""
    is_topic: bool = False
    busy_queues: int = 1
    """The queues with a moderate or high rate, this one included."""
    lock_seconds: float = PREFETCH_LOCK_SECONDS
    goal: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a scenario."""

    name: str
    value: str
    now: str | None
    """Its current value, if known."""
    why: str


def rate_class(rate: float | None) -> str:
    if rate is None or rate < 1:
        return SMALL
    return MODERATE if rate < 100 else HIGH


def client_class(count: int | None) -> str:
    if count is None or count <= 5:
        return SMALL
    return MODERATE if count <= 20 else LARGE


def scenario_of(load: Load) -> Scenario:
    """The scenario of a load."""
    if load.is_topic:
        few = client_class(load.subscriptions) == SMALL
        return Scenario.FEW_SUBSCRIPTIONS if few else Scenario.MANY_SUBSCRIPTIONS
    if client_class(load.senders) == LARGE:
        return Scenario.MANY_SENDERS
    if client_class(load.receivers) == LARGE:
        return Scenario.MANY_RECEIVERS
    rate = rate_class(load.send_rate)
    if load.goal == LATENCY or (load.goal != THROUGHPUT and rate != HIGH):
        return Scenario.LOW_LATENCY
    return Scenario.SEVERAL_HIGH if load.busy_queues > 1 and rate != SMALL else Scenario.HIGH_THROUGHPUT


def prefetch_of(
    scenario: Scenario,
    receive_rate: float | None,
    receivers: int | None,
    lock_seconds: float,
    measured: str = "in their busiest minute",
) -> tuple[int | None, str]:
    """The prefetch count, and the reason. None without a rate; `measured` describes when the rate was measured."""
    if scenario is Scenario.LOW_LATENCY and receivers is not None and receivers > 1:
        return 0, f"with {receivers} receivers, the next message should go to one that is free"
    if scenario is Scenario.MANY_RECEIVERS:
        return PREFETCH_OF_MANY, "small, so that no receiver is idle while others hold messages"
    if not receive_rate:
        return None, "nothing was received in this span, so there is no rate to go by"
    seconds = PREFETCH_SECONDS * lock_seconds / PREFETCH_LOCK_SECONDS
    count = max(1, math.ceil(receive_rate * seconds))
    why = f"{seconds:g} × {_number(receive_rate)}/s, the receivers' rate {measured}, at locks of {lock_seconds:g} s"
    several = receivers is not None and receivers > 1
    if receivers is not None and several:
        most = max(1, math.floor(receive_rate / receivers * lock_seconds))
        if most < count:
            count = most
            why += f"; one of {receivers} receivers completes no more before its locks end"
        else:
            why += f"; for all {receivers} receivers of a factory together"
    elif scenario is Scenario.LOW_LATENCY:
        why += "; for a single receiver, with several: 0"
    return count, why


def because(load: Load) -> str:
    """The reason for the scenario, in words."""
    rate = load.send_rate
    measured = "no rate was measured" if rate is None else f"{_number(rate)} messages/s is {rate_class(rate)}"
    counts = [
        f"{count} {word if count == 1 else f'{word}s'} ({client_class(count)})"
        if count is not None
        else f"a small number of {word}s (assumed)"
        for count, word in ((load.senders, "sender"), (load.receivers, "receiver"))
    ]
    goal = f", and the goal is {load.goal}" if load.goal else ""
    return f"{measured}, with {counts[0]} and {counts[1]}{goal}"


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def batch_flush_interval_of(scenario: Scenario, senders: int | None) -> float:
    """The interval of client-side batching in seconds; 0 means off."""
    if scenario is Scenario.LOW_LATENCY:
        return 0.0
    if scenario in (Scenario.HIGH_THROUGHPUT, Scenario.SEVERAL_HIGH):
        return 0.100 if senders is not None and senders > 1 else 0.050
    return 0.020


def settings_of(scenario: Scenario, load: Load, *, is_partitioned: bool | None = None) -> list[Setting]:
    """The settings of a scenario but the prefetch count, each with its reason."""
    latency = scenario is Scenario.LOW_LATENCY
    kind = "topic" if scenario.is_topic else "queue"
    chosen = [
        Setting(
            "EnablePartitioning",
            "true",
            None if is_partitioned is None else str(is_partitioned).lower(),
            f"availability{'' if latency else ' and throughput'}; chosen when the {kind} is made",
        ),
        Setting(
            "EnableBatchedOperations",
            "false" if latency else "true",
            None,
            "the store writes a message at once, in a commit of its own"
            if latency
            else "messages share commits, so more of them are written in the same time",
        ),
    ]
    chosen += _factories(scenario)
    if not latency:
        chosen.append(
            Setting(
                "operations", "asynchronous", None, "they overlap, and the client batches sends and completes"
            )
        )
    chosen.append(_client_batching(scenario, load.senders))
    return chosen


def _factories(scenario: Scenario) -> list[Setting]:
    name = "factories"
    if scenario in (Scenario.MANY_SENDERS, Scenario.MANY_RECEIVERS):
        return [Setting(name, "one in each process", None, "connections to an entity are limited")]
    if scenario not in (Scenario.HIGH_THROUGHPUT, Scenario.SEVERAL_HIGH, Scenario.FEW_SUBSCRIPTIONS):
        return []
    value = "several, others for each queue" if scenario is Scenario.SEVERAL_HIGH else "several"
    why = "each has one connection, whose rate is limited; for senders and receivers"
    return [Setting(name, value, None, why)]


def _client_batching(scenario: Scenario, senders: int | None) -> Setting:
    name, seconds = "client batching", batch_flush_interval_of(scenario, senders)
    if not seconds:
        return Setting(name, "off", None, "a message leaves at once")
    why = "the default" if seconds == 0.020 else "fewer transmissions; 100 ms with several senders"
    return Setting(name, f"{seconds * 1000:.0f} ms", None, why)
