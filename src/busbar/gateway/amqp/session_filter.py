"""Reads which message session a client asks for, and writes which one it got.

A receiver's source has the filter `com.microsoft:session-filter`: a string, or null for the next available session. Most
clients send the bare value, some a described one. The answer has the session's id in the same form and with the same
descriptor, since each client reads only the form it used.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.amqp.link import Link
from busbar.amqp.types import Described, Symbol
from busbar.model.errors import ArgumentError, ArgumentOutOfRange
from busbar.model.limits import Limits

SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL = "com.microsoft:locked-until-utc"
TIMEOUT = "com.microsoft:timeout"
TICKS_OF_1970 = 621_355_968_000_000_000
"""In units of 100 ns since the year 1."""


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """The session filter of a client's link."""

    session: str | None
    """None: the next available one. The empty string is a session like any other."""
    described: bool
    descriptor: object

    def granted(self, session: str) -> dict[object, object]:
        """The filter of the answer."""
        value = Described(self.descriptor, session) if self.described else session
        return {Symbol(SESSION_FILTER): value}


def session_wish(link: Link, limits: Limits) -> SessionFilter | None:
    """The session that an attaching receiver asks for; None if it has no session filter."""
    filters = link.source.filter if link.source is not None else None
    for key, value in (filters or {}).items():
        if str(key) != SESSION_FILTER:
            continue
        described = isinstance(value, Described)
        descriptor = value.descriptor if isinstance(value, Described) else None
        session = value.value if isinstance(value, Described) else value
        if session is None:
            return SessionFilter(None, described, descriptor)
        if not isinstance(session, str):
            raise ArgumentError(
                f"The filter {SESSION_FILTER} is a {type(session).__name__}; it has to be a string, or null for the next "
                "available session."
            )
        if len(session) > limits.max_id_length:
            raise ArgumentOutOfRange(
                f"The session id has {len(session)} characters; at most {limits.max_id_length} are allowed."
            )
        return SessionFilter(str(session), described, descriptor)
    return None


def wait_of(link: Link, limits: Limits) -> float:
    """For how many seconds the client waits for the next available session."""
    asked = link.properties.get(TIMEOUT)
    if isinstance(asked, int) and not isinstance(asked, bool) and asked >= 0:
        return asked / 1000
    return limits.session_accept_timeout / 1000


def locked_until(until: int) -> dict[object, object]:
    """The link property with the end of the session lock; clients read a long, in ticks."""
    return {Symbol(LOCKED_UNTIL): until * 10_000 + TICKS_OF_1970}
