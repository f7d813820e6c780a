"""What operators see of the history of messages, and which entities record it. Times in ms since 1970."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from busbar.model import effects as e

NAMES: Final = {
    e.SENT: "sent",
    e.SENT_VIA: "sent via",
    e.SCHEDULED_FOR_LATER: "scheduled",
    e.ACTIVATED: "activated",
    e.CANCELLED: "cancelled",
    e.DUPLICATE_DROPPED: "dropped as a duplicate",
    e.PUBLISHED: "published",
    e.COPIED: "copied",
    e.ARRIVED: "arrived",
    e.DELIVERED: "delivered",
    e.COMPLETED: "completed",
    e.RECEIVED_AND_DELETED: "received and deleted",
    e.ABANDONED: "abandoned",
    e.RELEASED: "released",
    e.LOCK_EXPIRED: "lock expired",
    e.LOCK_LOST: "lock lost",
    e.DEFERRED_BY_RECEIVER: "deferred",
    e.DEAD_LETTERED: "dead-lettered",
    e.EXPIRED: "expired",
    e.PURGED: "purged",
    e.CONSUMED: "consumed",
    e.FORWARDED: "forwarded",
}
"""What a step is called."""


@dataclass(frozen=True, slots=True)
class ClientName:
    """Who a client is, as its gateway has noted it."""

    container: str = ""
    """The container id of its connection; `HTTP` if it uses that."""
    address: str = ""
    link: str = ""
    """The link that received; empty if it is not known."""


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """What happened to a message, when, and by whom."""

    time: int
    entity: str
    what: str
    """One of NAMES."""
    message_id: str
    fragment: int
    number: int
    """Of the message in the fragment; 0: not known."""
    deliveries: int = 0
    """That failed so far."""
    reason: str = ""
    """Of a dead letter; where it was forwarded to; how many copies were made."""
    gateway: str = ""
    """Of the client; empty: that of the process which recorded the step."""
    origin: int = 0
    """The number of the client's connection there; 0: the broker did it."""
    consumer: int = 0
    sequence_number: int = 0
    """As clients see it; 0: not known (any more)."""
    client: ClientName | None = None
    """None: the broker did it, or its gateway does not remember the client."""


@dataclass(frozen=True, slots=True)
class HistoryRecording:
    """Which entities record their history."""

    everything: bool = False
    entities: tuple[str, ...] = ()
    """Their paths. A topic stands for its subscriptions, too."""
