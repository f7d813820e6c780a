"""Logs refused tokens and passwords: when, from where, for which rule and why, and never the secret.

Any client can be refused, so the log is bounded:

1. The same refusal (address, rule and kind of reason) is logged once in REPEAT_MS.
2. Within REPEAT_MS at most MAX_LINES are logged, whatever they are about.
3. Other refusals are counted. With the first refusal after that time a line states their number.
"""

from __future__ import annotations

import logging
import re
from urllib.parse import unquote_plus

_log = logging.getLogger(__name__)

REPEAT_MS = 60_000
MAX_LINES = 20
_SHOWN = 80
_RULE = re.compile(r"[ &]skn=([^&]{1,300})")
_VARYING = re.compile(r"\d+|'.*'")


class RefusedTokens:
    def __init__(self) -> None:
        self._since = 0
        """When the current span of REPEAT_MS began."""
        self._seen: dict[tuple[str, str, str], int] = {}
        """Refusals of this span, and how often each was not logged. At most MAX_LINES."""
        self._beyond = 0

    def token(self, address: str, token: str, reason: str, now: int) -> None:
        found = _RULE.search(token[:4096])
        self._note(address, unquote_plus(found[1]) if found else "", reason, now)

    def password(self, address: str, rule: str, reason: str, now: int) -> None:
        self._note(address, rule, reason, now)

    def _note(self, address: str, rule: str, reason: str, now: int) -> None:
        if not self._since <= now < self._since + REPEAT_MS:
            self._say_repeats()
            self._since = now
        key = (address, rule[:_SHOWN], _VARYING.sub("", reason)[:_SHOWN])
        if key in self._seen:
            self._seen[key] += 1
        elif len(self._seen) >= MAX_LINES:
            self._beyond += 1
        else:
            self._seen[key] = 0
            _log.warning(
                "token refused: from %s, rule %s: %s",
                address or "unknown",
                _text(rule),
                _text(reason),
                extra={"address": address},
            )

    def _say_repeats(self) -> None:
        repeats = sum(self._seen.values()) + self._beyond
        self._seen.clear()
        self._beyond = 0
        if repeats:
            _log.warning("token refused: %d times more in the minute after the first of them", repeats)


def host_of(peername: object) -> str:
    """The address of a socket's other end, without its port, since each connection has another."""
    return str(peername[0]) if isinstance(peername, tuple) and peername else ""


def _text(said: str) -> str:
    """The text of a client, changed so that it cannot fill a log line, nor begin one."""
    return repr(said if len(said) <= 4 * _SHOWN else f"{said[: 4 * _SHOWN]}...")
