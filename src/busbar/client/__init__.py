"""A client of Busbar for Python programs, on its own AMQP engine and asyncio, without the server's dependencies.

Start with `MessagingFactory`. `busbar.client.blocking` has the same for code that blocks. docs/client.md shows both.

A module is loaded when one of its names is used. Most programs, and all processes of Spark, only send and receive; a command
that shows a queue does neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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

_NAMES = {
    "busbar.client.administration": ("AdministrationClient",),
    "busbar.client.administration_properties": (
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
    "busbar.client.administration_rules": (
        "CorrelationRuleFilter",
        "FalseRuleFilter",
        "RuleProperties",
        "SqlRuleAction",
        "SqlRuleFilter",
        "TrueRuleFilter",
    ),
    "busbar.client.blocking_administration": ("BlockingAdministrationClient",),
    "busbar.client.connection_string": (
        "Endpoint",
        "parse_connection_string",
    ),
    "busbar.client.entity_clients": (
        "QueueClient",
        "SubscriptionClient",
        "TopicClient",
    ),
    "busbar.client.errors": (
        "AlreadyExists",
        "ArgumentError",
        "BatchOver",
        "BusbarClientError",
        "CannotConnect",
        "ConnectionLost",
        "EntityGone",
        "InvalidOperation",
        "LockLost",
        "MessageTooLarge",
        "NotFound",
        "NotInThisMode",
        "OperationTimeout",
        "QuotaExceeded",
        "SendFailed",
        "ServerBusy",
        "SessionCannotBeLocked",
        "SessionLockLost",
        "SettleFailed",
        "TapOwned",
        "TapPassed",
        "TapTruncated",
        "TransactionInDoubt",
        "TransactionRolledBack",
        "TransactionTimeout",
        "TransactionUnknown",
        "Unauthorized",
    ),
    "busbar.client.factory": ("MessagingFactory",),
    "busbar.client.management": ("SessionView",),
    "busbar.client.message": (
        "OutgoingMessage",
        "encode",
    ),
    "busbar.client.message_receiver": (
        "MessageReceiver",
        "ReceiveMode",
    ),
    "busbar.client.message_sender": ("MessageSender",),
    "busbar.client.processor": (
        "MessageContext",
        "Processor",
    ),
    "busbar.client.received": (
        "PeekedMessage",
        "Received",
    ),
    "busbar.client.receiver": ("Receiver",),
    "busbar.client.retry": (
        "NO_RETRY",
        "Retry",
    ),
    "busbar.client.sender": (
        "Sender",
        "SendOutcome",
        "Writer",
    ),
    "busbar.client.session_processor": ("SessionProcessor",),
    "busbar.client.session_receiver": ("SessionReceiver",),
    "busbar.client.tap_selection": ("TapSelection",),
    "busbar.client.taps": (
        "EVENTS",
        "MESSAGES",
        "Ends",
        "FragmentTap",
        "Page",
        "Taps",
        "TapView",
    ),
    "busbar.client.transactions": ("ClientTransaction",),
    "busbar.model.entities": ("EntityStatus",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
