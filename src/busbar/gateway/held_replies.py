"""Replies that their clients do not take: bounded in bytes, for one connection and for all of a gateway.

A reply waits where its link has no credit, or where the window of its AMQP session is closed. Rules:
1. A connection whose waiting replies are larger than `max_reply_bytes` is closed.
2. When those of all connections are larger than `max_all_reply_bytes`, the connection that holds most of it is closed.
Clients give credit before they ask, so that nothing of theirs waits for long.
"""

from __future__ import annotations

from typing import Protocol

from busbar.model.limits import Limits

REPLY_COST = 128
"""Of a reply beside its bytes: an object, and its place in a queue."""


class Holder(Protocol):
    """A connection with replies that wait."""

    def end(self, condition: str, text: str) -> None:
        """Close it, and say why."""


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
            return  # it was ended
        self.total -= size + REPLY_COST
        if held > size + REPLY_COST:
            self._held[holder] = held - size - REPLY_COST
        else:
            del self._held[holder]

    def leave(self, holder: Holder) -> None:
        """Its connection is gone, with all that waited on it."""
        self.total -= self._held.pop(holder, 0)
