"""Errors as HTTP says them: a status, and `<Error><Code>..</Code><Detail>SubCode=NNNNN. text</Detail></Error>`.

The sub-code, with its full stop, is what clients tell 403 "not allowed" from 403 "quota" by. An error that has no meaning
for clients is our own fault: it is logged with its tracking id, and the client gets the id alone.
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
    """If-Match named something that is not there."""

    condition = "amqp:precondition-failed"
    status = 412
    retryable = False


class EntityDeleted(BusbarError):
    """The entity was there when the request began and is no more."""

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


def error_response(error: BaseException, tracking: str = "") -> web.Response:
    """The answer that tells a client what went wrong; `tracking` names the instance."""
    incident = f"{uuid.uuid4()}{'_' if tracking else ''}{tracking.replace('Reference:', '')}"
    if isinstance(error, web.HTTPException):
        status, sub_code, text = error.status, 0, error.text or error.reason
    else:
        status, sub_code = status_of(error)
        if isinstance(error, BusbarError):
            text = error.text
            _log.debug("answered %d: %r", status, text)
        else:
            _log.error("request failed, TrackingId:%s", incident, exc_info=error)
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
        # What was not read of the request cannot be told from a next one.
        response.force_close()
    return response


def _printable(text: str) -> str:
    """Without what XML 1.0 cannot hold (control characters, lone surrogates)."""
    return "".join(
        char
        if char in "\t\n" or (char >= " " and not "\ud800" <= char <= "\udfff" and char < "\ufffe")
        else "?"
        for char in text
    )
