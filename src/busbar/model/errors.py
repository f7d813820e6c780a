"""The error tree: what went wrong, how each protocol reports it, and whether a retry can help.

Errors are raised anywhere and translated only at the edges. A message names the value that was wrong and the rule it broke.
"""

from __future__ import annotations

from typing import ClassVar


class BusbarError(Exception):
    """An error with a meaning for clients; subclasses fix the AMQP condition and the HTTP status."""

    condition: ClassVar[str] = "amqp:internal-error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = True
    certain = True
    """False if it is unknown whether the failed operation took place."""

    @property
    def text(self) -> str:
        return str(self)


class InternalError(BusbarError):
    """A fault of Busbar: a bug or a store that failed."""


class EntityNotFound(BusbarError):
    condition = "amqp:not-found"
    status = 404
    retryable = False

    def __init__(self, path: str) -> None:
        # The SDKs for JavaScript and Java recognize a missing entity by exactly this wording.
        super().__init__(f"The messaging entity '{path}' could not be found.")


class TapNotFound(EntityNotFound):
    """The entity exists, but has no such tap."""

    def __init__(self, path: str, tap: str) -> None:
        BusbarError.__init__(self, f"'{path}' has no tap '{tap}'.")


class AuthorizationRuleNotFound(EntityNotFound):
    """The entity exists, but has no such authorization rule."""

    def __init__(self, what: str, rule: str) -> None:
        BusbarError.__init__(self, f"{what} has no authorization rule '{rule}'.")


class ConnectionNotFound(EntityNotFound):
    """No client has a connection with that id, now."""

    def __init__(self, id: str) -> None:
        BusbarError.__init__(self, f"There is no connection '{id}'; it may have ended.")


class TapTruncated(BusbarError):
    """A tap reached a limit, and messages that it had not passed were dropped."""

    condition = "busbar:tap-truncated"
    status = 410
    retryable = False


class TapPassed(BusbarError):
    """Messages at or below a tap's position may be gone."""

    condition = "busbar:tap-passed"
    status = 410
    retryable = False


class TapOwned(BusbarError):
    """The tap belongs to another reader."""

    condition = "busbar:tap-owned"
    status = 409
    retryable = False


class BatchOver(BusbarError):
    """The batch of a writer was committed: nothing can be added to an earlier one."""

    condition = "busbar:batch-over"
    status = 409
    retryable = False


class Unauthorized(BusbarError):
    condition = "amqp:unauthorized-access"
    status = 401
    retryable = False


class InvalidOperation(BusbarError):
    """The operation is not allowed on this entity, in this mode or in this state."""

    condition = "amqp:not-allowed"
    status = 400
    retryable = False


class NotImplementedHere(BusbarError):
    condition = "amqp:not-implemented"
    status = 501
    retryable = False


class ArgumentError(BusbarError):
    condition = "com.microsoft:argument-error"
    status = 400
    retryable = False


class ArgumentOutOfRange(BusbarError):
    condition = "com.microsoft:argument-out-of-range"
    status = 400
    retryable = False


class EntityDisabled(BusbarError):
    condition = "com.microsoft:entity-disabled"
    status = 400
    retryable = False


class EntityAlreadyExists(BusbarError):
    condition = "com.microsoft:entity-already-exists"
    status = 409
    retryable = False


class MessageLockLost(BusbarError):
    condition = "com.microsoft:message-lock-lost"
    status = 410
    retryable = False


class SessionLockLost(BusbarError):
    condition = "com.microsoft:session-lock-lost"
    status = 410
    retryable = False


class SessionCannotBeLocked(BusbarError):
    """Another receiver holds the message session."""

    condition = "com.microsoft:session-cannot-be-locked"
    status = 410
    retryable = False


class MessageNotFound(BusbarError):
    condition = "com.microsoft:message-not-found"
    status = 404
    retryable = False


class NoMatchingSubscription(BusbarError):
    """The topic requires that a subscription selects every message, and none selected this one."""

    condition = "com.microsoft:no-matching-subscription"
    status = 500
    retryable = False


class MessageSizeExceeded(BusbarError):
    condition = "amqp:link:message-size-exceeded"
    status = 403
    retryable = False


class QuotaExceeded(BusbarError):
    condition = "amqp:resource-limit-exceeded"
    status = 403
    retryable = False


class OperationTimeout(BusbarError):
    condition = "com.microsoft:timeout"
    status = 408


class ServerBusy(BusbarError):
    """Overload, or a fragment in an unavailable store: retry later."""

    condition = "com.microsoft:server-busy"
    status = 503


class TransactionUnknown(BusbarError):
    """No transaction of this connection has the id: it was never declared, or it is over."""

    condition = "amqp:transaction:unknown-id"
    status = 404
    retryable = False


class TransactionRolledBack(BusbarError):
    """The transaction could not be committed: nothing of it was done."""

    condition = "amqp:transaction:rollback"
    status = 409
    retryable = False


class TransactionTimeout(BusbarError):
    """The transaction took too long and was rolled back."""

    condition = "amqp:transaction:timeout"
    status = 408
    retryable = False


class MalformedMessage(BusbarError):
    """The bytes of a message are not AMQP sections in their order."""

    condition = "amqp:decode-error"
    status = 400
    retryable = False


_BY_CONDITION: dict[str, type[BusbarError]] = {
    kind.condition: kind
    for kind in (
        InternalError,
        Unauthorized,
        InvalidOperation,
        NotImplementedHere,
        ArgumentError,
        ArgumentOutOfRange,
        EntityDisabled,
        EntityAlreadyExists,
        MessageLockLost,
        SessionLockLost,
        SessionCannotBeLocked,
        MessageNotFound,
        NoMatchingSubscription,
        MessageSizeExceeded,
        QuotaExceeded,
        OperationTimeout,
        ServerBusy,
        TransactionUnknown,
        TransactionRolledBack,
        TransactionTimeout,
        MalformedMessage,
        TapTruncated,
        TapPassed,
        TapOwned,
        BatchOver,
    )
}


CONDITIONS = tuple(sorted({EntityNotFound.condition, *_BY_CONDITION}))
"""All conditions that a client can get."""


def error_of(condition: str, text: str, certain: bool = True) -> BusbarError:
    """The error for a condition and its text (they crossed a process or a machine as plain values)."""
    if condition == EntityNotFound.condition:
        error: BusbarError = EntityNotFound("")
        error.args = (text,)  # the text is complete already
    else:
        error = _BY_CONDITION.get(condition, InternalError)(text)
    error.certain = certain
    return error
