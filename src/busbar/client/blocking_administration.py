"""The administration client for code that blocks.

    with BlockingAdministrationClient.from_connection_string("Endpoint=sb://...") as admin:
        admin.create_queue("orders")

It uses the event loop of blocking_loop.py, and the same rules hold for threads and forks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

from busbar.client.administration import AdministrationClient
from busbar.client.administration_properties import (
    NamespaceInfo,
    QueueOptions,
    QueueProperties,
    QueueRuntimeProperties,
    SubscriptionOptions,
    SubscriptionProperties,
    SubscriptionRuntimeProperties,
    TopicOptions,
    TopicProperties,
    TopicRuntimeProperties,
)
from busbar.client.administration_rules import RuleProperties, SqlRuleAction, SubscriptionFilter
from busbar.client.blocking_loop import LoopThread, loop_thread
from busbar.client.retry import Retry


class BlockingAdministrationClient:
    """AdministrationClient, without await."""

    def __init__(self, thread: LoopThread, client: AdministrationClient) -> None:
        self._thread = thread
        self._client = client

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str,
        *,
        operation_timeout: float = 60.0,
        retry: Retry | None = None,
        trust: Path | None = None,
    ) -> BlockingAdministrationClient:
        """Create a client, as AdministrationClient.from_connection_string does."""
        client = AdministrationClient.from_connection_string(
            connection_string, operation_timeout=operation_timeout, retry=retry, trust=trust
        )
        return cls(loop_thread(), client)

    def close(self) -> None:
        self._thread.run(self._client.close())

    def __enter__(self) -> BlockingAdministrationClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<blocking {self._client!r}>"

    def get_namespace_properties(self) -> NamespaceInfo:
        return self._thread.run(self._client.get_namespace_properties())

    # ---- queues

    def create_queue(self, queue_name: str, **properties: Unpack[QueueOptions]) -> QueueProperties:
        return self._thread.run(self._client.create_queue(queue_name, **properties))

    def get_queue(self, queue_name: str) -> QueueProperties:
        return self._thread.run(self._client.get_queue(queue_name))

    def get_queue_runtime_properties(self, queue_name: str) -> QueueRuntimeProperties:
        return self._thread.run(self._client.get_queue_runtime_properties(queue_name))

    def update_queue(self, queue: QueueProperties, **properties: Unpack[QueueOptions]) -> QueueProperties:
        return self._thread.run(self._client.update_queue(queue, **properties))

    def delete_queue(self, queue_name: str) -> None:
        self._thread.run(self._client.delete_queue(queue_name))

    def list_queues(self) -> Iterator[QueueProperties]:
        return self._thread.iterate(self._client.list_queues())

    def list_queues_runtime_properties(self) -> Iterator[QueueRuntimeProperties]:
        return self._thread.iterate(self._client.list_queues_runtime_properties())

    # ---- topics

    def create_topic(self, topic_name: str, **properties: Unpack[TopicOptions]) -> TopicProperties:
        return self._thread.run(self._client.create_topic(topic_name, **properties))

    def get_topic(self, topic_name: str) -> TopicProperties:
        return self._thread.run(self._client.get_topic(topic_name))

    def get_topic_runtime_properties(self, topic_name: str) -> TopicRuntimeProperties:
        return self._thread.run(self._client.get_topic_runtime_properties(topic_name))

    def update_topic(self, topic: TopicProperties, **properties: Unpack[TopicOptions]) -> TopicProperties:
        return self._thread.run(self._client.update_topic(topic, **properties))

    def delete_topic(self, topic_name: str) -> None:
        self._thread.run(self._client.delete_topic(topic_name))

    def list_topics(self) -> Iterator[TopicProperties]:
        return self._thread.iterate(self._client.list_topics())

    def list_topics_runtime_properties(self) -> Iterator[TopicRuntimeProperties]:
        return self._thread.iterate(self._client.list_topics_runtime_properties())

    # ---- subscriptions

    def create_subscription(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        default_rule: RuleProperties | None = None,
        **properties: Unpack[SubscriptionOptions],
    ) -> SubscriptionProperties:
        return self._thread.run(
            self._client.create_subscription(
                topic_name, subscription_name, default_rule=default_rule, **properties
            )
        )

    def get_subscription(self, topic_name: str, subscription_name: str) -> SubscriptionProperties:
        return self._thread.run(self._client.get_subscription(topic_name, subscription_name))

    def get_subscription_runtime_properties(
        self, topic_name: str, subscription_name: str
    ) -> SubscriptionRuntimeProperties:
        return self._thread.run(
            self._client.get_subscription_runtime_properties(topic_name, subscription_name)
        )

    def update_subscription(
        self, topic_name: str, subscription: SubscriptionProperties, **properties: Unpack[SubscriptionOptions]
    ) -> SubscriptionProperties:
        return self._thread.run(self._client.update_subscription(topic_name, subscription, **properties))

    def delete_subscription(self, topic_name: str, subscription_name: str) -> None:
        self._thread.run(self._client.delete_subscription(topic_name, subscription_name))

    def list_subscriptions(self, topic_name: str) -> Iterator[SubscriptionProperties]:
        return self._thread.iterate(self._client.list_subscriptions(topic_name))

    def list_subscriptions_runtime_properties(
        self, topic_name: str
    ) -> Iterator[SubscriptionRuntimeProperties]:
        return self._thread.iterate(self._client.list_subscriptions_runtime_properties(topic_name))

    # ---- rules

    def create_rule(
        self,
        topic_name: str,
        subscription_name: str,
        rule_name: str,
        *,
        filter: SubscriptionFilter | None = None,
        action: SqlRuleAction | None = None,
    ) -> RuleProperties:
        return self._thread.run(
            self._client.create_rule(topic_name, subscription_name, rule_name, filter=filter, action=action)
        )

    def get_rule(self, topic_name: str, subscription_name: str, rule_name: str) -> RuleProperties:
        return self._thread.run(self._client.get_rule(topic_name, subscription_name, rule_name))

    def update_rule(self, topic_name: str, subscription_name: str, rule: RuleProperties) -> RuleProperties:
        return self._thread.run(self._client.update_rule(topic_name, subscription_name, rule))

    def delete_rule(self, topic_name: str, subscription_name: str, rule_name: str) -> None:
        self._thread.run(self._client.delete_rule(topic_name, subscription_name, rule_name))

    def list_rules(self, topic_name: str, subscription_name: str) -> Iterator[RuleProperties]:
        return self._thread.iterate(self._client.list_rules(topic_name, subscription_name))
