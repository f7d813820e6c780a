"""Translates errors to HTTP: a status, and `<Error><Code>..</Code><Detail>SubCode=NNNNN. text</Detail></Error>`.

By the sub-code, with its full stop, clients distinguish 403 "not allowed" from 403 "quota". If an error has no meaning for
clients, it is a fault of the broker: it is logged with its tracking id, and the client gets only the id.
"""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from aiohttp import web

from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    BusbarError,
    EntityAlreadyExists,
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    MalformedMessage,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    NotImplementedHere,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    Unauthorized,
)

_log = logging.getLogger(__name__)

ERROR_TYPE = "application/xml; charset=utf-8"

# Status and sub-code by kind of error; 0: the text has no sub-code.
_STATUS: dict[type[BusbarError], tuple[int, int]] = {
    ArgumentError: (400, 40000),
    ArgumentOutOfRange: (400, 40000),
    MalformedMessage: (400, 40000),
    Unauthorized: (401, 40100),
    QuotaExceeded: (403, 40300),
    InvalidOperation: (403, 40301),
    EntityDisabled: (403, 40301),
    EntityNotFound: (404, 40400),
    MessageNotFound: (404, 40400),
    MessageLockLost: (404, 40400),
    OperationTimeout: (408, 40800),
    EntityAlreadyExists: (409, 40900),
    MessageSizeExceeded: (413, 41300),
    NotImplementedHere: (501, 50100),
    ServerBusy: (503, 50001),
}


class ConcurrentChange(BusbarError):
    """Another change of the same entity is under way."""

    condition = "com.microsoft:server-busy"
    status = 409


class PreconditionFailed(BusbarError):
    """The header If-Match names something that does not exist."""

    condition = "amqp:precondition-failed"
    status = 412
    retryable = False


class EntityDeleted(BusbarError):
    """The entity existed when the request began, and was deleted meanwhile."""

    condition = "amqp:not-found"
    status = 410
    retryable = False


_STATUS |= {ConcurrentChange: (409, 40901), PreconditionFailed: (412, 0), EntityDeleted: (410, 0)}


def status_of(error: BaseException) -> tuple[int, int]:
    """HTTP status and sub-code."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return 500, 50000


def error_response(
    error: BaseException, tracking: str = "", address: str = "", path: str = ""
) -> web.Response:
    """The answer with the error for a client; `tracking` names the instance. The log gets the client's address and path."""
    incident = f"{uuid.uuid4()}{'_' if tracking else ''}{tracking.replace('Reference:', '')}"
    said = {"address": address, "entity": path, "tracking_id": incident}
    if isinstance(error, web.HTTPException):
        status, sub_code, text = error.status, 0, error.text or error.reason
    else:
        status, sub_code = status_of(error)
        if isinstance(error, BusbarError):
            text = error.text
            _log.debug("answered %d: %r", status, text, extra=said)
        else:
            _log.error("request failed, TrackingId:%s", incident, exc_info=error, extra=said)
            text = "The request failed for a reason that is not yours; the operator's log has more."
    if status == 503:
        text += " Try again in a few seconds."
    response = error_body(status, sub_code, text, incident)
    if isinstance(error, web.HTTPMethodNotAllowed):
        response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
    return response


def error_body(status: int, sub_code: int, text: str, incident: str) -> web.Response:
    prefix = f"SubCode={sub_code}. " if sub_code else ""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    detail = f"{prefix}{_printable(text)} TrackingId:{incident}, SystemTracker:busbar, Timestamp:{now}"
    response = web.Response(
        status=status,
        body=f"<Error><Code>{status}</Code><Detail>{escape(detail)}</Detail></Error>".encode(),
        headers={"Content-Type": ERROR_TYPE},
    )
    if status == 401:
        response.headers["WWW-Authenticate"] = "SharedAccessSignature"
    elif status == 503:
        response.headers["Retry-After"] = "2"
    elif status in (408, 413):
        # The unread rest of the request cannot be distinguished from a next request.
        response.force_close()
    return response


def _printable(text: str) -> str:
    """The text without characters that XML 1.0 cannot have (control characters, lone surrogates)."""
    return "".join(
        char
        if char in "\t\n" or (char >= " " and not "\ud800" <= char <= "\udfff" and char < "\ufffe")
        else "?"
        for char in text
    )
