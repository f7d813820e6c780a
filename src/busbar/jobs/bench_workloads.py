"""The workloads of `busbar bench`: what the senders and receivers of each documented scenario do.

A workload has a rate where its scenario is about a small or moderate one; otherwise senders send as fast as they can. The
numbers of clients are those by which the documents classify: small up to 5, large above 20.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from busbar.client.advice import LATENCY, THROUGHPUT, Load, Scenario
from busbar.client.presets import ScenarioPreset

BODY_BYTES: Final = 1_024


@dataclass(frozen=True, slots=True)
class Workload:
    """What clients do."""

    scenario: Scenario
    senders: int
    """Of all queues together."""
    receivers: int
    """Of all queues, or of all subscriptions, together."""
    queues: int = 1
    subscriptions: int = 0
    """Of the topic; 0 for queues."""
    rate: float = 0.0
    """Messages per second of all senders together; 0: as fast as they can."""
    body_bytes: int = BODY_BYTES

    @property
    def goal(self) -> str:
        return LATENCY if self.scenario is Scenario.LOW_LATENCY else THROUGHPUT

    def load(self, send_rate: float | None, receive_rate: float | None) -> Load:
        """The load of one entity, with measured rates of all of them together."""
        entities = max(1, self.subscriptions or self.queues)
        return Load(
            send_rate=None if send_rate is None else send_rate / self.queues,
            receive_rate=None if receive_rate is None else receive_rate / entities,
            senders=max(1, self.senders // self.queues),
            receivers=max(1, self.receivers // entities),
            subscriptions=self.subscriptions or None,
            is_topic=self.subscriptions > 0,
            busy_queues=self.queues,
            goal=self.goal,
        )


WORKLOADS: Final = {
    workload.scenario: workload
    for workload in (
        Workload(Scenario.HIGH_THROUGHPUT, senders=2, receivers=2),
        Workload(Scenario.SEVERAL_HIGH, senders=3, receivers=3, queues=3),
        Workload(Scenario.LOW_LATENCY, senders=1, receivers=1, rate=50),
        Workload(Scenario.MANY_SENDERS, senders=50, receivers=2, rate=1_000),
        Workload(Scenario.MANY_RECEIVERS, senders=2, receivers=50),
        Workload(Scenario.FEW_SUBSCRIPTIONS, senders=2, receivers=3, subscriptions=3),
        Workload(Scenario.MANY_SUBSCRIPTIONS, senders=2, receivers=25, subscriptions=25),
    )
}


def changed(
    workload: Workload, senders: int | None, receivers: int | None, rate: float | None, body_bytes: int | None
) -> Workload:
    """The workload with other numbers, where they are given. Every entity has a sender and a receiver at least."""
    return replace(
        workload,
        senders=max(workload.queues, senders or workload.senders),
        receivers=max(workload.queues, workload.subscriptions, receivers or workload.receivers),
        rate=workload.rate if rate is None else rate,
        body_bytes=body_bytes or workload.body_bytes,
    )


def shown(chosen: ScenarioPreset) -> dict[str, str]:
    """Settings by the names that the advice has for them."""
    factory, client, entity = chosen.factory, chosen.client, chosen.entity
    interval = factory.batch_flush_interval
    several = "several, others for each queue" if factory.is_dedicated else "several"
    return {
        "EnablePartitioning": str(entity.enable_partitioning).lower(),
        "EnableBatchedOperations": str(entity.enable_batched_operations).lower(),
        "factories": several if factory.senders > 1 else "one",
        "operations": "asynchronous" if client.is_asynchronous else "one at a time",
        "client batching": f"{interval * 1000:g} ms" if interval else "off",
        "prefetch": str(client.prefetch_count),
    }
