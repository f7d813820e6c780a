"""New messages as they come, without consuming them.

1. The reader asks for the ends of all fragments, several times in a second, and reads what lies between them and the ends
   before. Without a tap that is what the entity still holds then. So a message that is received and completed in between is
   not shown. On the other hand the right to listen is enough, and nothing is left in the entity.
2. With a tap of its own no message is missed, because the broker keeps completed ones until the tap has passed them. The tap
   is deleted at the end. That needs the right to manage. If the process is killed, the tap stays, and keeps messages within
   its limits.
3. In a dead-letter queue the order is that in which messages came there.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Final

from busbar.client.blocking import BlockingFactory, BlockingTaps
from busbar.client.errors import NotFound
from busbar.client.received import PeekedMessage
from busbar.client.tap_messages import messages_of
from busbar.operations.paths import DEAD_LETTER, TRANSFER_DEAD_LETTER, MessagePath, OperationRefused

PAUSE_SECONDS: Final = 0.25
TAP_AGE_MS: Final = 3_600_000
TAP_BYTES: Final = 64 << 20
PAGE_MESSAGES: Final = 500
OWNER: Final = "busbar-tail"


def follow(
    factory: BlockingFactory, path: str, *, tap: str = "", pause: float = PAUSE_SECONDS
) -> Generator[PeekedMessage, None, None]:
    """Yield the messages that come from now on, until the caller stops. `tap` is the name of the tap of rule 2."""
    place = MessagePath.parse(path)
    if place.sub_queue == TRANSFER_DEAD_LETTER:
        raise OperationRefused(f"'{place}' cannot be followed; peek it, or its dead-letter queue")
    taps = factory.taps(place.entity, sub_queue=place.sub_queue)
    reader = _NewMessages(taps, place.sub_queue == DEAD_LETTER, tap)
    reader.start()
    try:
        while True:
            yield from reader.read()
            time.sleep(pause)
    finally:
        reader.stop()


class _NewMessages:
    def __init__(self, taps: BlockingTaps, is_dead_letter: bool, tap: str) -> None:
        self._taps = taps
        self._is_dead_letter = is_dead_letter
        self._tap = tap
        self._positions: dict[int, int] = {}

    def start(self) -> None:
        if self._tap:
            made = self._taps.create(self._tap, owner=OWNER, max_age=TAP_AGE_MS, max_size=TAP_BYTES)
            self._positions = {each.index: each.position for each in made.fragments if each.available}
        else:
            self._positions = self._ends()

    def read(self) -> Iterator[PeekedMessage]:
        """Yield what has come since the last call."""
        for index, end in sorted(self._ends().items()):
            position = self._positions.setdefault(index, end)
            if end <= position:
                continue
            for page in self._taps.pages(self._tap or None, index, position, end, count=PAGE_MESSAGES):
                yield from messages_of(page, index)
                self._positions[index] = page.upto
            self._positions[index] = end
            if self._tap:
                self._taps.advance(self._tap, OWNER, {index: end})

    def _ends(self) -> dict[int, int]:
        ends = self._taps.ends()
        return ends.dead_ends if self._is_dead_letter else ends.ends

    def stop(self) -> None:
        if self._tap:
            try:
                self._taps.delete(self._tap)
            except NotFound:
                pass  # the entity is deleted, or the tap was
