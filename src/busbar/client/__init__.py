"""A client of Busbar for Python programs, on its own AMQP engine and asyncio, without the server's dependencies.

Start with `MessagingFactory`. `busbar.client.blocking` has the same for code that blocks. docs/client.md shows both.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from busbar.client.connection_string import Endpoint, parse_connection_string
from busbar.client.entity_clients import QueueClient, SubscriptionClient, TopicClient
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
    NotInThisMode,
    OperationTimeout,
    QuotaExceeded,
    SendFailed,
    ServerBusy,
    SessionCannotBeLocked,
    SessionLockLost,
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
from busbar.client.management import SessionView
from busbar.client.message import OutgoingMessage, encode
from busbar.client.message_receiver import MessageReceiver, ReceiveMode
from busbar.client.message_sender import MessageSender
from busbar.client.processor import MessageContext, Processor
from busbar.client.received import PeekedMessage, Received
from busbar.client.receiver import Receiver
from busbar.client.retry import NO_RETRY, Retry
from busbar.client.sender import Sender, SendOutcome, Writer
from busbar.client.session_processor import SessionProcessor
from busbar.client.session_receiver import SessionReceiver
from busbar.client.tap_selection import TapSelection
from busbar.client.taps import EVENTS, MESSAGES, Ends, FragmentTap, Page, Taps, TapView
from busbar.client.transactions import ClientTransaction
from busbar.model.entities import EntityStatus

if TYPE_CHECKING:
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
    "MessageContext",
    "MessageReceiver",
    "MessageSender",
    "MessageTooLarge",
    "MessagingFactory",
    "NamespaceInfo",
    "NotFound",
    "NotInThisMode",
    "OperationTimeout",
    "OutgoingMessage",
    "Page",
    "PeekedMessage",
    "Processor",
    "QueueClient",
    "QueueProperties",
    "QueueRuntimeProperties",
    "QuotaExceeded",
    "ReceiveMode",
    "Received",
    "Receiver",
    "Retry",
    "RuleProperties",
    "SendFailed",
    "SendOutcome",
    "Sender",
    "ServerBusy",
    "SessionCannotBeLocked",
    "SessionLockLost",
    "SessionProcessor",
    "SessionReceiver",
    "SessionView",
    "SettleFailed",
    "SharedAccessAuthorizationRule",
    "SqlRuleAction",
    "SqlRuleFilter",
    "SubscriptionClient",
    "SubscriptionProperties",
    "SubscriptionRuntimeProperties",
    "TapOwned",
    "TapPassed",
    "TapSelection",
    "TapTruncated",
    "TapView",
    "Taps",
    "TopicClient",
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

_ADMINISTRATION = {
    "administration": ("AdministrationClient",),
    "administration_properties": (
        "UNLIMITED",
        "NamespaceInfo",
        "QueueProperties",
        "QueueRuntimeProperties",
        "SharedAccessAuthorizationRule",
        "SubscriptionProperties",
        "SubscriptionRuntimeProperties",
        "TopicProperties",
        "TopicRuntimeProperties",
    ),
    "administration_rules": (
        "CorrelationRuleFilter",
        "FalseRuleFilter",
        "RuleProperties",
        "SqlRuleAction",
        "SqlRuleFilter",
        "TrueRuleFilter",
    ),
    "blocking_administration": ("BlockingAdministrationClient",),
}
_MODULES = {name: module for module, names in _ADMINISTRATION.items() for name in names}


def __getattr__(name: str) -> object:
    """Load what administers entities when it is used: most programs, and all processes of Spark, only send and receive."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"busbar.client.{module}"), name)
