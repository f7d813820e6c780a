"""Which scenario a load is, and what to set for it: the values of the documents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from busbar.client.advice import (
    LATENCY,
    THROUGHPUT,
    Load,
    Scenario,
    because,
    client_class,
    prefetch_of,
    rate_class,
    scenario_of,
    settings_of,
)
from busbar.client.presets import (
    MOST_PREFETCHED,
    NAIVE,
    SEVERAL,
    ClientPreset,
    EntityPreset,
    FactoryPreset,
    ScenarioPreset,
    preset,
    preset_named,
)


@pytest.mark.parametrize(
    ("rate", "named"),
    [(None, "small"), (0.99, "small"), (1, "moderate"), (99.9, "moderate"), (100, "high"), (1e6, "high")],
)
def test_classes_of_rates(rate: float | None, named: str) -> None:
    assert rate_class(rate) == named


@pytest.mark.parametrize(
    ("count", "named"), [(None, "small"), (5, "small"), (6, "moderate"), (20, "moderate"), (21, "large")]
)
def test_classes_of_clients(count: int | None, named: str) -> None:
    assert client_class(count) == named


@pytest.mark.parametrize(
    ("load", "scenario"),
    [
        (Load(send_rate=500), Scenario.HIGH_THROUGHPUT),
        (Load(send_rate=500, busy_queues=2), Scenario.SEVERAL_HIGH),
        (Load(send_rate=5, busy_queues=2), Scenario.LOW_LATENCY),
        (Load(send_rate=5, busy_queues=2, goal=THROUGHPUT), Scenario.SEVERAL_HIGH),
        (Load(send_rate=0.5, busy_queues=2, goal=THROUGHPUT), Scenario.HIGH_THROUGHPUT),
        (Load(send_rate=500, goal=LATENCY), Scenario.LOW_LATENCY),
        (Load(), Scenario.LOW_LATENCY),
        (Load(send_rate=500, senders=21), Scenario.MANY_SENDERS),
        (Load(send_rate=500, senders=21, receivers=21), Scenario.MANY_SENDERS),
        (Load(send_rate=500, senders=20, receivers=21), Scenario.MANY_RECEIVERS),
        (Load(send_rate=500, is_topic=True), Scenario.FEW_SUBSCRIPTIONS),
        (Load(send_rate=500, is_topic=True, subscriptions=5), Scenario.FEW_SUBSCRIPTIONS),
        (Load(send_rate=500, is_topic=True, subscriptions=6), Scenario.MANY_SUBSCRIPTIONS),
    ],
)
def test_scenarios(load: Load, scenario: Scenario) -> None:
    assert scenario_of(load) is scenario


@pytest.mark.parametrize(
    ("scenario", "rate", "receivers", "lock", "count"),
    [
        (Scenario.HIGH_THROUGHPUT, 30, 3, 60, 600),  # the documented example: 20 × 3 × 10
        (Scenario.HIGH_THROUGHPUT, 30, None, 60, 600),
        (Scenario.HIGH_THROUGHPUT, 30, 3, 30, 300),  # half the time, half the cache
        (Scenario.HIGH_THROUGHPUT, 30, 3, 300, 3000),
        (Scenario.HIGH_THROUGHPUT, 0.01, 1, 60, 1),
        (Scenario.MANY_SENDERS, 2.5, None, 60, 50),
        (Scenario.MANY_RECEIVERS, 1000, 50, 60, 10),
        (Scenario.LOW_LATENCY, 30, 2, 60, 0),
        (Scenario.LOW_LATENCY, 30, 1, 60, 600),
        (Scenario.LOW_LATENCY, None, 3, 60, 0),
        (Scenario.HIGH_THROUGHPUT, None, None, 60, None),
        (Scenario.HIGH_THROUGHPUT, 50, 5, 60, 600),  # not 1000: one receiver completes 10/s, so 600 in 60 s
        (Scenario.HIGH_THROUGHPUT, 50, 5, 30, 300),
        (Scenario.FEW_SUBSCRIPTIONS, 0.5, 4, 60, 7),
        (Scenario.MANY_SUBSCRIPTIONS, 10, 1, 60, 200),
    ],
)
def test_prefetch(
    scenario: Scenario, rate: float | None, receivers: int | None, lock: float, count: int | None
) -> None:
    assert prefetch_of(scenario, rate, receivers, lock)[0] == count


@pytest.mark.parametrize("receivers", [1, 2, 3, 4, 5, 20])
@pytest.mark.parametrize("rate", [0.1, 1.0, 10.0, 99.0, 1000.0])
@pytest.mark.parametrize("lock", [5, 30, 60, 300])
def test_a_receiver_can_complete_what_it_prefetched_before_its_locks_end(
    receivers: int, rate: float, lock: float
) -> None:
    count, _ = prefetch_of(Scenario.HIGH_THROUGHPUT, rate * receivers, receivers, lock)
    assert count is not None and (count == 1 or count <= rate * lock)


EVERYWHERE = EntityPreset(enable_partitioning=True, enable_batched_operations=True)
LOAD = Load(senders=1, receivers=3, receive_rate=30)
"""The example of the documents: three receivers with ten messages a second each."""


@pytest.mark.parametrize(
    ("scenario", "load", "factory", "client", "entity"),
    [
        (
            Scenario.HIGH_THROUGHPUT,
            LOAD,
            FactoryPreset(0.050, SEVERAL, SEVERAL),
            ClientPreset(600, is_asynchronous=True),
            EVERYWHERE,
        ),
        (
            Scenario.HIGH_THROUGHPUT,
            replace(LOAD, senders=2),
            FactoryPreset(0.100, SEVERAL, SEVERAL),
            ClientPreset(600, is_asynchronous=True),
            EVERYWHERE,
        ),
        (
            Scenario.SEVERAL_HIGH,
            LOAD,
            FactoryPreset(0.050, SEVERAL, SEVERAL, is_dedicated=True),
            ClientPreset(600, is_asynchronous=True),
            EVERYWHERE,
        ),
        (
            Scenario.LOW_LATENCY,
            Load(senders=1, receivers=1, receive_rate=2),
            FactoryPreset(0.0, 1, 1),
            ClientPreset(40, is_asynchronous=False),
            EntityPreset(enable_partitioning=True, enable_batched_operations=False),
        ),
        (
            Scenario.LOW_LATENCY,
            LOAD,
            FactoryPreset(0.0, 1, 1),
            ClientPreset(0, is_asynchronous=False),
            EntityPreset(enable_partitioning=True, enable_batched_operations=False),
        ),
        (
            Scenario.MANY_SENDERS,
            replace(LOAD, senders=200),
            FactoryPreset(0.020, 1, 1),
            ClientPreset(600, is_asynchronous=True),
            EVERYWHERE,
        ),
        (
            Scenario.MANY_RECEIVERS,
            replace(LOAD, receivers=200),
            FactoryPreset(0.020, 1, 1),
            ClientPreset(10, is_asynchronous=True),
            EVERYWHERE,
        ),
        (
            Scenario.FEW_SUBSCRIPTIONS,
            LOAD,
            FactoryPreset(0.020, SEVERAL, SEVERAL),
            ClientPreset(600, is_asynchronous=True),
            EVERYWHERE,
        ),
        (
            Scenario.MANY_SUBSCRIPTIONS,
            LOAD,
            FactoryPreset(0.020, 1, 1),
            ClientPreset(600, is_asynchronous=True),
            EVERYWHERE,
        ),
    ],
)
def test_presets(
    scenario: Scenario, load: Load, factory: FactoryPreset, client: ClientPreset, entity: EntityPreset
) -> None:
    expected = ScenarioPreset(scenario, factory, client, entity)
    assert preset(scenario, load) == preset_named(scenario.key, load) == expected
    settings = {each.name: each.value for each in settings_of(scenario, load)}
    milliseconds = f"{factory.batch_flush_interval * 1000:.0f} ms" if factory.batch_flush_interval else "off"
    assert settings["client batching"] == milliseconds, "words and values agree"
    assert settings["EnableBatchedOperations"] == str(entity.enable_batched_operations).lower()
    assert settings["EnablePartitioning"] == str(entity.enable_partitioning).lower()
    assert ("several" in settings.get("factories", "")) == (factory.senders > 1)
    assert ("operations" in settings) == client.is_asynchronous


def test_all_scenarios_have_a_preset_without_a_rate_too() -> None:
    assert len(Scenario) == 7
    for scenario in Scenario:
        assert preset(scenario).client.prefetch_count == (10 if scenario is Scenario.MANY_RECEIVERS else 0)
    with pytest.raises(ValueError, match="high-throughput, several-high, low-latency, many-senders"):
        preset_named("fast")


def test_presets_are_arguments_of_what_they_are_for() -> None:
    chosen = preset(Scenario.LOW_LATENCY, Load(receive_rate=1))
    assert chosen.factory.options() == {"batch_flush_interval": 0.0}
    assert chosen.client.options() == {"prefetch_count": 20}
    assert chosen.entity.options() == {"enable_partitioning": True, "enable_batched_operations": False}
    assert NAIVE.factory.options() == {"batch_flush_interval": 0.020}, "the default"
    assert NAIVE.client.options() == {"prefetch_count": 0} and not NAIVE.client.is_asynchronous
    assert NAIVE.entity.options() == {"enable_partitioning": False, "enable_batched_operations": True}


def test_no_more_is_prefetched_than_a_broker_delivers() -> None:
    assert (
        preset(Scenario.HIGH_THROUGHPUT, Load(receive_rate=10_000)).client.prefetch_count == MOST_PREFETCHED
    )


def test_the_reason_names_what_was_measured_and_what_was_assumed() -> None:
    assert because(Load(send_rate=5, senders=3, goal=LATENCY)) == (
        "5 messages/s is moderate, with 3 senders (small) and a small number of receivers (assumed), and the goal is latency"
    )
    assert because(Load()).startswith("no rate was measured")
