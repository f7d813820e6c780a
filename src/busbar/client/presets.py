"""The settings of the seven documented scenarios, for factories, their clients, and entities.

    chosen = preset(Scenario.HIGH_THROUGHPUT, Load(senders=2, receivers=2, receive_rate=500))
    await admin.create_queue("orders", **chosen.entity.options())
    factories = [MessagingFactory(text, **chosen.factory.options()) for _ in range(chosen.factory.senders)]
    receiver = factories[0].message_receiver("orders", **chosen.client.options())

    scenario                        batched store  client batching               factories               prefetch count
    high-throughput queue           on             50 ms, 100 ms for several     several                 20 × rate
                                                   senders
    several high-throughput queues  on             the same                      several for each queue  20 × rate
    low-latency queue               off            off                           one                     20 × rate, 0 for
                                                                                                         several receivers
    queue with many senders         on             20 ms                         one in a process        20 × rate
    queue with many receivers       on             20 ms                         one in a process        10
    topic with few subscriptions    on             20 ms                         several                 20 × rate
    topic with many subscriptions   on             20 ms                         one                     20 × rate

All of them use partitioned entities. All but the low-latency queue use asynchronous operations. The rate is that of all
receivers of a factory, at locks of 60 seconds; advice.py has the rule for others. A broker delivers a limited number of
unsettled messages to one receiver. So a larger prefetch count has no effect, and is cut to `MOST_PREFETCHED`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from busbar.client.advice import Load, Scenario, batch_flush_interval_of, prefetch_of

SEVERAL = 2
"""The documents have no number for several factories. More than two help only if clients have that many processors."""
MOST_PREFETCHED = 5_000


class FactoryOptions(TypedDict):
    """The arguments of MessagingFactory."""

    batch_flush_interval: float


class ReceiverOptions(TypedDict):
    """The arguments of a receiver or of a client that receives."""

    prefetch_count: int


class EntityOptions(TypedDict):
    """The arguments of `create_queue` and `create_topic`."""

    enable_partitioning: bool
    enable_batched_operations: bool


@dataclass(frozen=True, slots=True)
class FactoryPreset:
    """The settings of factories."""

    batch_flush_interval: float
    """In seconds; 0 switches client-side batching off."""
    senders: int
    """The number of factories that make senders."""
    receivers: int
    """The number of factories that make receivers."""
    is_dedicated: bool = False
    """Whether each queue has factories of its own."""

    def options(self) -> FactoryOptions:
        return {"batch_flush_interval": self.batch_flush_interval}


@dataclass(frozen=True, slots=True)
class ClientPreset:
    """The settings of senders and receivers."""

    prefetch_count: int
    is_asynchronous: bool
    """Whether operations overlap: the next one begins before the answer to the one before."""

    def options(self) -> ReceiverOptions:
        return {"prefetch_count": self.prefetch_count}


@dataclass(frozen=True, slots=True)
class EntityPreset:
    """The settings of a queue, or of a topic and its subscriptions. A subscription has no partitioning of its own."""

    enable_partitioning: bool
    enable_batched_operations: bool

    def options(self) -> EntityOptions:
        return {
            "enable_partitioning": self.enable_partitioning,
            "enable_batched_operations": self.enable_batched_operations,
        }


@dataclass(frozen=True, slots=True)
class ScenarioPreset:
    """All settings of a scenario."""

    scenario: Scenario
    factory: FactoryPreset
    client: ClientPreset
    entity: EntityPreset


NAIVE = ScenarioPreset(
    Scenario.HIGH_THROUGHPUT,
    FactoryPreset(0.020, 1, 1),
    ClientPreset(prefetch_count=0, is_asynchronous=False),
    EntityPreset(enable_partitioning=False, enable_batched_operations=True),
)
"""The settings of a program that ignores the advice: all defaults, one factory, one operation at a time."""


def preset(scenario: Scenario, load: Load | None = None) -> ScenarioPreset:
    """The settings of a scenario for a load. Without a rate nothing is prefetched, except by many receivers."""
    load = load or Load()
    several = scenario in (Scenario.HIGH_THROUGHPUT, Scenario.SEVERAL_HIGH, Scenario.FEW_SUBSCRIPTIONS)
    factories = SEVERAL if several else 1
    latency = scenario is Scenario.LOW_LATENCY
    prefetch, _why = prefetch_of(scenario, load.receive_rate, load.receivers, load.lock_seconds)
    return ScenarioPreset(
        scenario,
        FactoryPreset(
            batch_flush_interval_of(scenario, load.senders),
            factories,
            factories,
            is_dedicated=scenario is Scenario.SEVERAL_HIGH,
        ),
        ClientPreset(min(prefetch or 0, MOST_PREFETCHED), is_asynchronous=not latency),
        EntityPreset(enable_partitioning=True, enable_batched_operations=not latency),
    )


def preset_named(key: str, load: Load | None = None) -> ScenarioPreset:
    """The settings of the scenario with this key, `many-senders` for example. Raises ValueError, which lists the keys."""
    for scenario in Scenario:
        if scenario.key == key:
            return preset(scenario, load)
    keys = ", ".join(scenario.key for scenario in Scenario)
    raise ValueError(f"there is no scenario {key!r}; there are {keys}")
