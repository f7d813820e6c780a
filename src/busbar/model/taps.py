"""Taps as their creators describe them: durable, named positions on a queue, a subscription or its dead-letter queue.

What a tap has not passed is kept, within the tap's limits, after receivers are done with it. A tap belongs to one reader
(its owner: a checkpoint), so that two cannot move it by turns.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.model.message import ACTIVE, DEAD
from busbar.model.settings import EARLIEST, LATEST, TapSettings

DAY = 24 * 3_600_000
GIGABYTE = 1 << 30


@dataclass(frozen=True, slots=True)
class TapDescription:
    """Times are ms; 0 means no limit, and the defaults are finite."""

    name: str
    dead_letter: bool = False
    """On the dead-letter queue."""
    events: bool = False
    consumes: bool = False
    from_earliest: bool = False
    """It begins with what the entity holds when the tap is made; else with what comes afterwards."""
    owner: str = ""
    max_age: int = 7 * DAY
    max_size: int = GIGABYTE
    """Bytes kept in each fragment."""
    lease: int = 300_000
    """Of a tap that consumes: how long nobody else receives after its last word."""
    id: int = 0
    """Given once in a namespace."""
    created: int = 0

    def settings(self) -> TapSettings:
        return TapSettings(
            id=self.id,
            name=self.name,
            sub=DEAD if self.dead_letter else ACTIVE,
            events=self.events,
            consumes=self.consumes,
            start=EARLIEST if self.from_earliest else LATEST,
            owner=self.owner,
            max_age_ms=self.max_age,
            max_bytes=self.max_size,
            lease_ms=self.lease,
        )


@dataclass(frozen=True, slots=True)
class TapChange:
    """What becomes of a tap."""

    delete: bool = False
    owner: str = ""
    """Who owns it from now on, unless it is deleted."""
    take_over: bool = False
    """Also if it has another owner."""
