"""Credit and windows: the only arithmetic of flow control.

Delivery-ids, delivery-counts and transfer-ids are serial numbers of 32 bits (RFC 1982): they wrap, and
"before" means a distance below 2^31. A sender may send until its delivery-count reaches the receiver's
delivery-count plus link-credit; a flow that lowers this limit below what was already sent leaves zero,
never a negative credit. A session may send while the peer's next-incoming-id plus incoming-window is
ahead of the next transfer-id.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

MASK: Final = 0xFFFFFFFF
HALF: Final = 0x80000000


def serial_next(number: i64) -> i64:
    return (number + 1) & MASK


def serial_distance(first: i64, last: i64) -> i64:
    """The distance of `last` from `first`; negative if it is behind."""
    distance = (last - first) & MASK
    return distance - (MASK + 1) if distance >= HALF else distance


def delivered(delivery_count: i64, uncounted: i64) -> i64:
    """The number of deliveries, modulo 2^32, without the part of the count that was none."""
    return (delivery_count - uncounted) & MASK


def sendable(receiver_count: i64, link_credit: i64, sent_count: i64) -> i64:
    """The number of messages that a sender that has sent `sent_count` may still send after a flow of its receiver."""
    left = serial_distance(sent_count, receiver_count) + link_credit
    return left if left > 0 else 0


def window_left(next_incoming: i64, incoming_window: i64, next_outgoing: i64) -> i64:
    """The number of transfers that a session may still send after a flow of its peer."""
    in_flight = serial_distance(next_incoming, next_outgoing)
    if in_flight < 0:
        in_flight = 0  # the peer claims to have seen what was never sent: its window alone counts
    left = incoming_window - in_flight
    return left if left > 0 else 0
