"""Bounds the replies that clients do not take, in bytes: for one connection and for all of a gateway.

A reply waits while its link has no credit, or while the window of its AMQP session is closed.

1. If the waiting replies of a connection are larger than `max_reply_bytes`, it is closed.
2. If those of all connections are larger than `max_all_reply_bytes`, the connection that holds most of it is closed.

Ordinary clients give credit before they send a request, so their replies do not wait for long.
"""

from __future__ import annotations

from typing import Protocol

from busbar.model.limits import Limits

REPLY_COST = 128
"""The memory of a reply beside its bytes: an object, and its place in a queue."""


class Holder(Protocol):
    """A connection with replies that wait."""

    def end(self, condition: str, text: str) -> None:
        """Close it with this error."""


class HeldReplies:
    def __init__(self) -> None:
        self._held: dict[Holder, int] = {}
        self.total = 0

    def add(self, holder: Holder, size: int, limits: Limits) -> None:
        held = self._held.get(holder, 0) + size + REPLY_COST
        self._held[holder] = held
        self.total += size + REPLY_COST
        if held > limits.max_reply_bytes:
            self._end(holder, limits.max_reply_bytes)
        elif self.total > limits.max_all_reply_bytes:
            self._end(max(self._held, key=self._held.__getitem__), limits.max_all_reply_bytes)

    def _end(self, holder: Holder, limit: int) -> None:
        held = self._held[holder]
        self.leave(holder)
        text = f"Replies of {held} bytes wait for credit or a window; {limit} are allowed. Take replies as they come."
        holder.end("amqp:resource-limit-exceeded", text)

    def remove(self, holder: Holder, size: int) -> None:
        held = self._held.get(holder)
        if held is None:
            return  # it was closed
        self.total -= size + REPLY_COST
        if held > size + REPLY_COST:
            self._held[holder] = held - size - REPLY_COST
        else:
            del self._held[holder]

    def leave(self, holder: Holder) -> None:
        """Drop a connection that is gone, with its waiting replies."""
        self.total -= self._held.pop(holder, 0)
