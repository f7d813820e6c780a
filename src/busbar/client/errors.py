"""The errors of the client: one tree, with the broker's condition and whether a retry can help.

Errors can be pickled, because they cross process borders in Spark. They never hold a key or a token.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Mapping, Sequence

RETRYABLE = frozenset(
    {
        "amqp:connection:forced",
        "amqp:connection:framing-error",
        "amqp:internal-error",
        "amqp:link:detach-forced",
        "amqp:session:errant-link",
        "com.microsoft:server-busy",
        "com.microsoft:timeout",
    }
)


_NUMBER = re.compile(r"\[Errno (\d+)\]")


class BusbarClientError(Exception):
    """The broker refused an operation, or could not be reached."""

    default_condition = ""

    def __init__(self, text: str, condition: str = "") -> None:
        super().__init__(text, condition)
        self.text = text
        self.condition = condition or self.default_condition

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.condition in RETRYABLE

    def __str__(self) -> str:
        return f"{self.text} ({self.condition})" if self.condition else self.text


class ConnectionLost(BusbarClientError):
    """The connection, or the link, ended before the answer: it is unknown whether the operation took place."""

    default_condition = "busbar:connection-lost"

    @property
    def retryable(self) -> bool:
        return True


class CannotConnect(ConnectionLost):
    """No broker answers at this address; nothing was requested."""


class OperationTimeout(BusbarClientError):
    """No answer in time."""

    default_condition = "com.microsoft:timeout"


class Unauthorized(BusbarClientError):
    default_condition = "amqp:unauthorized-access"


class NotFound(BusbarClientError):
    """No such entity, tap or message."""

    default_condition = "amqp:not-found"


class EntityGone(NotFound):
    """The entity was deleted while it was in use."""

    default_condition = "amqp:resource-deleted"


class AlreadyExists(BusbarClientError):
    default_condition = "com.microsoft:entity-already-exists"


class ArgumentError(BusbarClientError):
    """A value is not allowed; the text names it, and what would be right."""

    default_condition = "com.microsoft:argument-error"


class InvalidOperation(BusbarClientError):
    """The broker does not allow this operation here, or not now."""

    default_condition = "amqp:not-allowed"


class QuotaExceeded(BusbarClientError):
    """A limit of the entity or of the namespace is reached."""

    default_condition = "amqp:resource-limit-exceeded"


class ServerBusy(BusbarClientError):
    """The broker cannot do it now, and has done nothing of it."""

    default_condition = "com.microsoft:server-busy"


class LockLost(BusbarClientError):
    default_condition = "com.microsoft:message-lock-lost"


class SessionLockLost(LockLost):
    """The lock of the message session has ended, and with it the locks of its messages."""

    default_condition = "com.microsoft:session-lock-lost"


class SessionCannotBeLocked(BusbarClientError):
    """Another receiver holds the message session."""

    default_condition = "com.microsoft:session-cannot-be-locked"


class NotInThisMode(BusbarClientError, ValueError):
    """The operation needs locked messages, and the receiver deletes what it receives."""

    default_condition = "amqp:not-allowed"


class TapTruncated(BusbarClientError):
    """The requested messages were dropped before the tap had passed them."""

    default_condition = "busbar:tap-truncated"


class TapPassed(BusbarClientError):
    """The tap has passed the requested messages, so they may be gone."""

    default_condition = "busbar:tap-passed"


class TapOwned(BusbarClientError):
    """The tap belongs to another owner."""

    default_condition = "busbar:tap-owned"


class BatchOver(BusbarClientError):
    """The writer has committed a later batch."""

    default_condition = "busbar:batch-over"


class TransactionUnknown(BusbarClientError):
    """The transaction is over, or it was never declared on this connection."""

    default_condition = "amqp:transaction:unknown-id"


class TransactionRolledBack(BusbarClientError):
    """The transaction could not be committed: nothing of it was done."""

    default_condition = "amqp:transaction:rollback"


class TransactionTimeout(BusbarClientError):
    """The transaction took too long, and the broker has rolled it back."""

    default_condition = "amqp:transaction:timeout"


class TransactionInDoubt(BusbarClientError):
    """The outcome of a transaction is unknown: all of it was done, or nothing."""

    @property
    def retryable(self) -> bool:
        return False


class MessageTooLarge(BusbarClientError):
    default_condition = "amqp:link:message-size-exceeded"


class SendFailed(BusbarClientError):
    """Some messages of a send were not stored, or their outcome is unknown; all others are durable.

    `failed` has, by their index in the send, the messages that were certainly not stored, each with condition and text;
    `unknown` those with an unknown outcome.
    """

    def __init__(
        self,
        text: str,
        condition: str = "",
        failed: Mapping[int, tuple[str, str]] | None = None,
        unknown: Sequence[int] = (),
    ) -> None:
        super().__init__(text, condition)
        self.args = (text, condition, dict(failed or {}), tuple(unknown))
        self.failed = dict(failed or {})
        self.unknown = tuple(unknown)

    @property
    def retryable(self) -> bool:
        """Whether sending them again may succeed; for `unknown` ones it may store a second copy."""
        return all(
            condition in RETRYABLE or condition == ConnectionLost.default_condition
            for condition, _text in self.failed.values()
        )


class SettleFailed(BusbarClientError):
    """Some messages were not settled: `failed` has them by their index in the call, with condition and text."""

    def __init__(
        self, text: str, condition: str = "", failed: Mapping[int, tuple[str, str]] | None = None
    ) -> None:
        super().__init__(text, condition)
        self.args = (text, condition, dict(failed or {}))
        self.failed = dict(failed or {})


_KINDS: tuple[type[BusbarClientError], ...] = (
    ConnectionLost,
    OperationTimeout,
    Unauthorized,
    NotFound,
    EntityGone,
    AlreadyExists,
    ArgumentError,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
    LockLost,
    SessionCannotBeLocked,
    TapTruncated,
    TapPassed,
    TapOwned,
    BatchOver,
    TransactionUnknown,
    TransactionRolledBack,
    TransactionTimeout,
    MessageTooLarge,
)


_BY_CONDITION = {kind.default_condition: kind for kind in _KINDS}
_BY_CONDITION["com.microsoft:argument-out-of-range"] = ArgumentError
_BY_CONDITION["com.microsoft:message-not-found"] = NotFound
_BY_CONDITION["com.microsoft:session-lock-lost"] = SessionLockLost


def reason_of(problem: OSError) -> str:
    """The reason of the operating system ("Connection refused"), without the addresses that asyncio adds."""
    if isinstance(problem, ssl.SSLError | socket.gaierror):
        return problem.strerror or str(problem)
    if problem.errno:
        return os.strerror(problem.errno)
    # A name may have several addresses. Then the numbers are only in the text, and the last one was tried last.
    numbers = _NUMBER.findall(str(problem))
    return os.strerror(int(numbers[-1])) if numbers else str(problem) or "the connection was closed"


def error_of(condition: str, text: str) -> BusbarClientError:
    """The error for a condition of the broker."""
    return _BY_CONDITION.get(condition, BusbarClientError)(text, condition)
