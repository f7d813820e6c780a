"""A client of Busbar for Python programs, on its own AMQP engine and asyncio, without the server's dependencies.

Start with `MessagingFactory`. `busbar.client.blocking` has the same for code that blocks. docs/client.md shows both.
"""

from __future__ import annotations

from busbar.client.connection_string import Endpoint, parse_connection_string
from busbar.client.entity_clients import QueueClient, SubscriptionClient, TopicClient
from busbar.client.errors import (
    AlreadyExists,
    BatchOver,
    BusbarClientError,
    CannotConnect,
    ConnectionLost,
    EntityGone,
    LockLost,
    MessageTooLarge,
    NotFound,
    NotInThisMode,
    OperationTimeout,
    SendFailed,
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
from busbar.client.taps import EVENTS, MESSAGES, Ends, FragmentTap, Page, Taps, TapView
from busbar.client.transactions import ClientTransaction

__all__ = [
    "EVENTS",
    "MESSAGES",
    "NO_RETRY",
    "AlreadyExists",
    "BatchOver",
    "BusbarClientError",
    "CannotConnect",
    "ClientTransaction",
    "ConnectionLost",
    "Endpoint",
    "Ends",
    "EntityGone",
    "FragmentTap",
    "LockLost",
    "MessageContext",
    "MessageReceiver",
    "MessageSender",
    "MessageTooLarge",
    "MessagingFactory",
    "NotFound",
    "NotInThisMode",
    "OperationTimeout",
    "OutgoingMessage",
    "Page",
    "PeekedMessage",
    "Processor",
    "QueueClient",
    "ReceiveMode",
    "Received",
    "Receiver",
    "Retry",
    "SendFailed",
    "SendOutcome",
    "Sender",
    "SessionCannotBeLocked",
    "SessionLockLost",
    "SessionProcessor",
    "SessionReceiver",
    "SettleFailed",
    "SubscriptionClient",
    "TapOwned",
    "TapPassed",
    "TapTruncated",
    "TapView",
    "Taps",
    "TopicClient",
    "TransactionInDoubt",
    "TransactionRolledBack",
    "TransactionTimeout",
    "TransactionUnknown",
    "Unauthorized",
    "Writer",
    "encode",
    "parse_connection_string",
]
