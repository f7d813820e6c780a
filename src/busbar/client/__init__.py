"""A client of Busbar for Python programs, on its own AMQP engine and asyncio, without the server's dependencies.

Start with `MessagingFactory`. `busbar.client.blocking` has the same for code that blocks. docs/client.md shows both.
"""

from __future__ import annotations

from busbar.client.administration import AdministrationClient
from busbar.client.administration_properties import (
    UNLIMITED,
    NamespaceInfo,
    QueueProperties,
    QueueRuntimeProperties,
    SharedAccessAuthorizationRule,
    SubscriptionProperties,
    SubscriptionRuntimeProperties,
    TopicProperties,
    TopicRuntimeProperties,
)
from busbar.client.administration_rules import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from busbar.client.blocking_administration import BlockingAdministrationClient
from busbar.client.connection_string import Endpoint, parse_connection_string
from busbar.client.errors import (
    AlreadyExists,
    ArgumentError,
    BatchOver,
    BusbarClientError,
    CannotConnect,
    ConnectionLost,
    EntityGone,
    InvalidOperation,
    LockLost,
    MessageTooLarge,
    NotFound,
    OperationTimeout,
    QuotaExceeded,
    SendFailed,
    ServerBusy,
    SettleFailed,
    TapOwned,
    TapPassed,
    TapTruncated,
    TransactionInDoubt,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionUnknown,
    Unauthorized,
)
from busbar.client.factory import MessagingFactory
from busbar.client.message import OutgoingMessage, encode
from busbar.client.receiver import Received, Receiver
from busbar.client.retry import NO_RETRY, Retry
from busbar.client.sender import Sender, SendOutcome, Writer
from busbar.client.taps import EVENTS, MESSAGES, Ends, FragmentTap, Page, Taps, TapView
from busbar.client.transactions import ClientTransaction
from busbar.model.entities import EntityStatus

__all__ = [
    "EVENTS",
    "MESSAGES",
    "NO_RETRY",
    "UNLIMITED",
    "AdministrationClient",
    "AlreadyExists",
    "ArgumentError",
    "BatchOver",
    "BlockingAdministrationClient",
    "BusbarClientError",
    "CannotConnect",
    "ClientTransaction",
    "ConnectionLost",
    "CorrelationRuleFilter",
    "Endpoint",
    "Ends",
    "EntityGone",
    "EntityStatus",
    "FalseRuleFilter",
    "FragmentTap",
    "InvalidOperation",
    "LockLost",
    "MessageTooLarge",
    "MessagingFactory",
    "NamespaceInfo",
    "NotFound",
    "OperationTimeout",
    "OutgoingMessage",
    "Page",
    "QueueProperties",
    "QueueRuntimeProperties",
    "QuotaExceeded",
    "Received",
    "Receiver",
    "Retry",
    "RuleProperties",
    "SendFailed",
    "SendOutcome",
    "Sender",
    "ServerBusy",
    "SettleFailed",
    "SharedAccessAuthorizationRule",
    "SqlRuleAction",
    "SqlRuleFilter",
    "SubscriptionProperties",
    "SubscriptionRuntimeProperties",
    "TapOwned",
    "TapPassed",
    "TapTruncated",
    "TapView",
    "Taps",
    "TopicProperties",
    "TopicRuntimeProperties",
    "TransactionInDoubt",
    "TransactionRolledBack",
    "TransactionTimeout",
    "TransactionUnknown",
    "TrueRuleFilter",
    "Unauthorized",
    "Writer",
    "encode",
    "parse_connection_string",
]
