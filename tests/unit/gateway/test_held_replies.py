"""Replies that wait are bounded for one connection and for all, and their count returns to nothing."""

from __future__ import annotations

from dataclasses import replace

from busbar.gateway.held_replies import REPLY_COST, HeldReplies
from busbar.model.limits import Limits

LIMITS = replace(Limits(), max_reply_bytes=10_000, max_all_reply_bytes=20_000)


class Ended:
    def __init__(self) -> None:
        self.conditions: list[str] = []

    def end(self, condition: str, text: str) -> None:
        self.conditions.append(condition)


def test_one_connection_that_holds_too_much_is_ended() -> None:
    held, greedy = HeldReplies(), Ended()
    for _ in range(8):
        held.add(greedy, 1_000, LIMITS)
    assert greedy.conditions == []
    held.add(greedy, 1_000, LIMITS)
    assert greedy.conditions == ["amqp:resource-limit-exceeded"]
    assert held.total == 0
    held.remove(greedy, 1_000)
    assert held.total == 0


def test_of_many_that_hold_too_much_together_the_largest_is_ended() -> None:
    held, others, largest = HeldReplies(), [Ended() for _ in range(5)], Ended()
    held.add(largest, 9_000, LIMITS)
    for other in others[:-1]:
        held.add(other, 2_500, LIMITS)
    assert largest.conditions == []
    held.add(others[-1], 2_500, LIMITS)
    assert len(largest.conditions) == 1 and not any(other.conditions for other in others)
    assert held.total == 5 * (2_500 + REPLY_COST)
    for other in others:
        held.remove(other, 2_500)
    assert held.total == 0
    held.leave(largest)
    assert held.total == 0
