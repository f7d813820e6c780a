"""Decides when a connection reads from its socket. This bounds what one client makes the gateway hold.

Rules:
1. The gateway stops to read while more than `max_uncommitted_bytes` of the client's messages are not durable yet. It goes on
   at half of that.
2. The gateway stops to read while the client does not read what it is sent.
3. The gateway does not read before it is known whether there is room for the connection.
4. Before the gateway ends, it stops to read for good: it only sends the last answers.
"""

from __future__ import annotations

import asyncio


class ReadControl:
    """Pauses and resumes reading of one transport."""

    __slots__ = (
        "_arriving",
        "_is_admitted",
        "_is_ending",
        "_is_reading",
        "_is_writable",
        "_limit",
        "_transport",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._transport: asyncio.Transport | None = None
        self._arriving = 0
        self._is_admitted = True
        self._is_ending = False
        self._is_reading = True
        self._is_writable = True

    def use(self, transport: asyncio.Transport | None) -> None:
        """Set the transport of the connection; none once it is lost."""
        self._transport = transport

    def arriving(self, size: int) -> None:
        """Count bytes that arrived and are not durable yet; a negative number when they are."""
        self._arriving += size
        self._update()

    def set_writable(self, is_writable: bool) -> None:
        """Note whether the client reads what it is sent."""
        self._is_writable = is_writable
        self._update()

    def set_admitted(self, is_admitted: bool) -> None:
        """Note whether it is known if there is room for the connection."""
        self._is_admitted = is_admitted
        self._update()

    def stop(self) -> None:
        """Read nothing any more."""
        self._is_ending = True
        self._update()

    def _update(self) -> None:
        if self._transport is None:
            return
        may_read = self._is_writable and self._is_admitted and not self._is_ending
        if self._is_reading and (self._arriving > self._limit or not may_read):
            self._is_reading = False
            self._transport.pause_reading()
        elif not self._is_reading and may_read and self._arriving <= self._limit // 2:
            self._is_reading = True
            self._transport.resume_reading()
