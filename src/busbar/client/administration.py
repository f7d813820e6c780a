"""Manages the entities of a namespace over its management API, with the names of the Azure SDK.

    async with AdministrationClient.from_connection_string("Endpoint=sb://...") as admin:
        await admin.create_queue("orders", lock_duration=timedelta(seconds=30))

1. A client can be used by many tasks. It keeps its connections open between requests.
2. Every request ends within `operation_timeout`, its retries included (administration_requests.py has their rules).
3. A method for queues does not find topics, and the other way round.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Unpack

from busbar.client.administration_descriptions import (
    E,
    description_name,
    read_namespace,
    read_properties,
    read_runtime,
    settable,
    write_properties,
)
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
from busbar.client.administration_requests import ManagementRequests
from busbar.client.administration_rules import (
    RuleProperties,
    SqlRuleAction,
    SubscriptionFilter,
    TrueRuleFilter,
    read_rule,
    write_rule,
)
from busbar.client.connection_string import ManagementAddress, management_address
from busbar.client.errors import ArgumentError
from busbar.client.retry import Retry
from busbar.model.names import rule_path, subscription_path

_RULE = "RuleDescription"


class AdministrationClient:
    """Creates, reads, updates and deletes queues, topics, subscriptions and rules."""

    def __init__(
        self,
        address: ManagementAddress,
        *,
        operation_timeout: float = 60.0,
        retry: Retry | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        if context is None and address.tls:
            context = ssl.create_default_context()
        self.address = address
        self._requests = ManagementRequests(address, operation_timeout, retry or Retry(), context)

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str,
        *,
        operation_timeout: float = 60.0,
        retry: Retry | None = None,
        trust: Path | None = None,
    ) -> AdministrationClient:
        """Create a client. The first call opens a connection.

        `trust` is a file with the certificate authorities to trust, instead of the system's. Raises ValueError for a
        connection string that is not valid.
        """
        address = management_address(connection_string)
        context = ssl.create_default_context(cafile=str(trust)) if trust is not None else None
        return cls(address, operation_timeout=operation_timeout, retry=retry, context=context)

    @property
    def connections_opened(self) -> int:
        """The number of connections that this client has opened so far."""
        return self._requests.connections.opened

    async def close(self) -> None:
        await self._requests.connections.close()

    async def __aenter__(self) -> AdministrationClient:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AdministrationClient at {self.address.url}>"

    # ---- the namespace ---------------------------------------------------------------------------

    async def get_namespace_properties(self) -> NamespaceInfo:
        return read_namespace(await self._requests.get("$namespaceinfo", "NamespaceInfo", "the namespace"))

    # ---- queues ----------------------------------------------------------------------------------

    async def create_queue(self, queue_name: str, **properties: Unpack[QueueOptions]) -> QueueProperties:
        """Create a queue. Raises AlreadyExists, ArgumentError, QuotaExceeded."""
        return await self._create(QueueProperties, _path("queue", queue_name), dict(properties))

    async def get_queue(self, queue_name: str) -> QueueProperties:
        """Read the properties of a queue. Raises NotFound."""
        return await self._read(QueueProperties, _path("queue", queue_name))

    async def get_queue_runtime_properties(self, queue_name: str) -> QueueRuntimeProperties:
        """Read the counts, the size and the times of a queue. Raises NotFound."""
        path = _path("queue", queue_name)
        return read_runtime(
            QueueRuntimeProperties, await self._requests.get(path, "QueueDescription", f"the queue '{path}'")
        )

    async def update_queue(
        self, queue: QueueProperties, **properties: Unpack[QueueOptions]
    ) -> QueueProperties:
        """Set all properties of a queue; arguments take precedence over the object. Raises NotFound, ArgumentError."""
        return await self._update(queue, _path("queue", queue.name), dict(properties))

    async def delete_queue(self, queue_name: str) -> None:
        """Delete a queue and its messages. Raises NotFound."""
        await self._delete(_path("queue", queue_name), "QueueDescription", "queue")

    def list_queues(self) -> AsyncGenerator[QueueProperties, None]:
        return self._requests.list("$Resources/Queues", lambda entry: read_properties(QueueProperties, entry))

    def list_queues_runtime_properties(self) -> AsyncGenerator[QueueRuntimeProperties, None]:
        return self._requests.list(
            "$Resources/Queues", lambda entry: read_runtime(QueueRuntimeProperties, entry)
        )

    # ---- topics ----------------------------------------------------------------------------------

    async def create_topic(self, topic_name: str, **properties: Unpack[TopicOptions]) -> TopicProperties:
        """Create a topic. Raises AlreadyExists, ArgumentError, QuotaExceeded."""
        return await self._create(TopicProperties, _path("topic", topic_name), dict(properties))

    async def get_topic(self, topic_name: str) -> TopicProperties:
        """Read the properties of a topic. Raises NotFound."""
        return await self._read(TopicProperties, _path("topic", topic_name))

    async def get_topic_runtime_properties(self, topic_name: str) -> TopicRuntimeProperties:
        """Read the counts, the size and the times of a topic. Raises NotFound."""
        path = _path("topic", topic_name)
        return read_runtime(
            TopicRuntimeProperties, await self._requests.get(path, "TopicDescription", f"the topic '{path}'")
        )

    async def update_topic(
        self, topic: TopicProperties, **properties: Unpack[TopicOptions]
    ) -> TopicProperties:
        """Set all properties of a topic; arguments take precedence over the object. Raises NotFound, ArgumentError."""
        return await self._update(topic, _path("topic", topic.name), dict(properties))

    async def delete_topic(self, topic_name: str) -> None:
        """Delete a topic with its subscriptions. Raises NotFound."""
        await self._delete(_path("topic", topic_name), "TopicDescription", "topic")

    def list_topics(self) -> AsyncGenerator[TopicProperties, None]:
        return self._requests.list("$Resources/Topics", lambda entry: read_properties(TopicProperties, entry))

    def list_topics_runtime_properties(self) -> AsyncGenerator[TopicRuntimeProperties, None]:
        return self._requests.list(
            "$Resources/Topics", lambda entry: read_runtime(TopicRuntimeProperties, entry)
        )

    # ---- subscriptions ---------------------------------------------------------------------------

    async def create_subscription(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        default_rule: RuleProperties | None = None,
        **properties: Unpack[SubscriptionOptions],
    ) -> SubscriptionProperties:
        """Create a subscription. Raises NotFound for the topic, AlreadyExists, ArgumentError, QuotaExceeded.

        It has one rule from its beginning: `default_rule`, or `$Default`, which selects every message.
        """
        path = _subscription(topic_name, subscription_name)
        return await self._create(SubscriptionProperties, path, dict(properties), default_rule)

    async def get_subscription(self, topic_name: str, subscription_name: str) -> SubscriptionProperties:
        """Read the properties of a subscription. Raises NotFound."""
        return await self._read(SubscriptionProperties, _subscription(topic_name, subscription_name))

    async def get_subscription_runtime_properties(
        self, topic_name: str, subscription_name: str
    ) -> SubscriptionRuntimeProperties:
        """Read the counts and the times of a subscription. Raises NotFound."""
        path = _subscription(topic_name, subscription_name)
        content = await self._requests.get(path, "SubscriptionDescription", f"the subscription '{path}'")
        return read_runtime(SubscriptionRuntimeProperties, content)

    async def update_subscription(
        self,
        topic_name: str,
        subscription: SubscriptionProperties,
        **properties: Unpack[SubscriptionOptions],
    ) -> SubscriptionProperties:
        """Set all properties of a subscription; arguments take precedence over the object.

        Raises NotFound, ArgumentError.
        """
        return await self._update(
            subscription, _subscription(topic_name, subscription.name), dict(properties)
        )

    async def delete_subscription(self, topic_name: str, subscription_name: str) -> None:
        """Delete a subscription with its messages and rules. Raises NotFound."""
        path = _subscription(topic_name, subscription_name)
        await self._delete(path, "SubscriptionDescription", "subscription")

    def list_subscriptions(self, topic_name: str) -> AsyncGenerator[SubscriptionProperties, None]:
        path = f"{_path('topic', topic_name)}/Subscriptions"
        return self._requests.list(path, lambda entry: read_properties(SubscriptionProperties, entry))

    def list_subscriptions_runtime_properties(
        self, topic_name: str
    ) -> AsyncGenerator[SubscriptionRuntimeProperties, None]:
        return self._requests.list(
            f"{_path('topic', topic_name)}/Subscriptions",
            lambda entry: read_runtime(SubscriptionRuntimeProperties, entry),
        )

    # ---- rules -----------------------------------------------------------------------------------

    async def create_rule(
        self,
        topic_name: str,
        subscription_name: str,
        rule_name: str,
        *,
        filter: SubscriptionFilter | None = None,
        action: SqlRuleAction | None = None,
    ) -> RuleProperties:
        """Create a rule. Without a filter it selects every message. Raises NotFound, AlreadyExists, ArgumentError."""
        rule = RuleProperties(rule_name, filter if filter is not None else TrueRuleFilter(), action)
        return await self._put_rule(topic_name, subscription_name, rule, change=False)

    async def get_rule(self, topic_name: str, subscription_name: str, rule_name: str) -> RuleProperties:
        """Read a rule. Raises NotFound."""
        path = _rule(topic_name, subscription_name, rule_name)
        content = await self._requests.get(path, _RULE, f"the rule '{path}'")
        return read_rule(content)

    async def update_rule(
        self, topic_name: str, subscription_name: str, rule: RuleProperties
    ) -> RuleProperties:
        """Replace the filter and the action of a rule. Raises NotFound, ArgumentError."""
        return await self._put_rule(topic_name, subscription_name, rule, change=True)

    async def delete_rule(self, topic_name: str, subscription_name: str, rule_name: str) -> None:
        """Delete a rule. Raises NotFound."""
        path = _rule(topic_name, subscription_name, rule_name)
        await self._requests.request("DELETE", path, f"the rule '{path}'")

    def list_rules(self, topic_name: str, subscription_name: str) -> AsyncGenerator[RuleProperties, None]:
        path = f"{_subscription(topic_name, subscription_name)}/Rules"
        return self._requests.list(path, read_rule)

    async def _put_rule(
        self, topic_name: str, subscription_name: str, rule: RuleProperties, *, change: bool
    ) -> RuleProperties:
        path = _rule(topic_name, subscription_name, rule.name)
        content = await self._requests.put(path, write_rule(rule), f"the rule '{path}'", change=change)
        return read_rule(content)

    # ---- all kinds -------------------------------------------------------------------------------

    async def _create(
        self, kind: type[E], path: str, values: dict[str, Any], default_rule: RuleProperties | None = None
    ) -> E:
        description = write_properties(kind, values)
        if default_rule is not None:
            description.append(write_rule(default_rule, "DefaultRuleDescription"))
        return read_properties(
            kind, await self._requests.put(path, description, f"the {_noun(kind)} '{path}'", change=False)
        )

    async def _update(self, entity: E, path: str, values: dict[str, Any]) -> E:
        kind = type(entity)
        whole = {name: getattr(entity, name) for name in settable(kind)} | values
        description = write_properties(kind, whole)
        return read_properties(
            kind, await self._requests.put(path, description, f"the {_noun(kind)} '{path}'", change=True)
        )

    async def _read(self, kind: type[E], path: str) -> E:
        return read_properties(
            kind, await self._requests.get(path, description_name(kind), f"the {_noun(kind)} '{path}'")
        )

    async def _delete(self, path: str, description: str, noun: str) -> None:
        # A queue and a topic have paths of the same form: the broker would delete either.
        await self._requests.get(path, description, f"the {noun} '{path}'")
        await self._requests.request("DELETE", path, f"the {noun} '{path}'")


def _noun(kind: type[object]) -> str:
    return kind.__name__.removesuffix("Properties").lower()


def _path(noun: str, name: str) -> str:
    path = name.strip("/")
    if not path or path.startswith("$"):
        raise ArgumentError(f"{name!r} is not the name of a {noun}.")
    return path


def _below(noun: str, name: str) -> str:
    if not name or "/" in name:
        raise ArgumentError(f"{name!r} is not the name of a {noun}.")
    return name


def _subscription(topic: str, name: str) -> str:
    return subscription_path(_path("topic", topic), _below("subscription", name))


def _rule(topic: str, subscription: str, name: str) -> str:
    return rule_path(_subscription(topic, subscription), _below("rule", name))
