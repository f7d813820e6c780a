"""Descriptions of taps: durable, named positions on a queue, a subscription or its dead-letter queue.

Messages that a tap has not passed are kept, within the tap's limits, after receivers have finished them. A tap belongs to
one reader (its owner: a checkpoint), so that two readers cannot both advance it.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.model.message import ACTIVE, DEAD
from busbar.model.settings import EARLIEST, LATEST, TapSettings

DAY = 24 * 3_600_000
GIGABYTE = 1 << 30
READERS = {
    "capture-": "capture job",
    "spark-": "Spark stream",
    "busbar-tail": "busbar tail",
    "busbar-insight": "busbar insight",
}
"""How the owners of taps begin that programs of Busbar create for themselves, and what these programs are."""


def reader_of(owner: str) -> str:
    """The program of Busbar to which an owner belongs; '' if another reader chose the text, or there is none."""
    return next((reader for start, reader in READERS.items() if owner.startswith(start)), "")


@dataclass(frozen=True, slots=True)
class TapDescription:
    """A tap as its creator describes it. Times are ms; 0 means no limit, and the defaults are finite."""

    name: str
    dead_letter: bool = False
    """On the dead-letter queue."""
    events: bool = False
    consumes: bool = False
    from_earliest: bool = False
    """The tap begins with everything that the entity holds at its creation; otherwise with later messages."""
    owner: str = ""
    max_age: int = 7 * DAY
    max_size: int = GIGABYTE
    """Bytes kept in each fragment."""
    lease: int = 300_000
    """Of a tap that consumes: how long after its last read or advance no client can receive."""
    id: int = 0
    """Assigned once in a namespace."""
    created: int = 0
    reader: str = ""
    """What reads it, for people: a job, and what it writes to."""

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
    """A change of a tap."""

    delete: bool = False
    owner: str = ""
    """The owner from now on, unless the tap is deleted."""
    take_over: bool = False
    """Even if it has another owner."""
    reader: str = ""
    """What reads it from now on; '' changes nothing."""
