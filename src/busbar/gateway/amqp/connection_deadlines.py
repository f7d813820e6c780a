"""Decides when a client connection is closed because it is not used, or because it has not authenticated.

Rules:
1. A connection without a token is closed `token_timeout` after it was accepted, or after its last token ended.
2. A connection that never had a link is closed `first_link_timeout` after it was accepted.
3. A connection whose links have all ended is closed LINKLESS_TIMEOUT after the last one. A link that is being attached
   counts as a link.

The part has no clock and no timer. It sets `has_changed` when a deadline may have moved; the connection then sets its timer.
"""

from __future__ import annotations

from busbar.model.limits import Limits

LINKLESS_TIMEOUT = 300_000

NO_TOKEN = "No token was put in time; put one to $cbs after connecting."
NO_LINK = "The connection has had no link for too long."


class ConnectionDeadlines:
    """The times from which a connection has had no token and no link. All times are in ms."""

    __slots__ = ("_accepted_at", "_limits", "_linkless_since", "_tokenless_since", "has_changed")

    def __init__(self, limits: Limits, now: int) -> None:
        self._limits = limits
        self._accepted_at = now
        self._linkless_since = now
        self._tokenless_since = now
        self.has_changed = False

    def token_ended(self, now: int) -> None:
        self._tokenless_since = now
        self.has_changed = True

    def last_link_ended(self, now: int) -> None:
        self._linkless_since = now
        self.has_changed = True

    def pending(self, has_token: bool, has_link: bool) -> list[int]:
        """The deadlines that apply to a connection in this state."""
        deadlines: list[int] = []
        if not has_token:
            deadlines.append(self._token_deadline())
        if not has_link:
            deadlines.append(self._link_deadline())
        return deadlines

    def reason_to_close(self, has_token: bool, has_link: bool, now: int) -> str | None:
        """The text for the client if a deadline has passed."""
        if not has_token and now >= self._token_deadline():
            return NO_TOKEN
        if not has_link and now >= self._link_deadline():
            return NO_LINK
        return None

    def _token_deadline(self) -> int:
        return self._tokenless_since + self._limits.token_timeout

    def _link_deadline(self) -> int:
        never_had_one = self._linkless_since == self._accepted_at
        return self._linkless_since + (self._limits.first_link_timeout if never_had_one else LINKLESS_TIMEOUT)
