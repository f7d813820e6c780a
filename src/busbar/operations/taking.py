"""Receives certain messages of a dead-letter queue under lock, and releases the others.

1. A dead-letter queue delivers in its own order. So it is received until all selected messages have come. Others are held
   meanwhile, so that they are not delivered again, and then released: their delivery counts stay.
2. A deferred message is received by its number. If it is not completed, it is deferred again when its lock ends.
3. If another receiver has locked a selected message, it does not come. After `patience` seconds without a new message the
   search ends, and the caller reports what is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from busbar.client.blocking import BlockingFactory, BlockingReceiver
from busbar.client.blocking_transaction import BlockingTransaction
from busbar.client.errors import NotFound
from busbar.client.received import Received
from busbar.operations.paths import MessagePath

AHEAD: Final = 500
"""Messages that are requested ahead."""
SLICE_SECONDS: Final = 0.5


class SelectedMessages:
    """The messages that are to be taken, by their sequence numbers."""

    def __init__(self) -> None:
        self.available: set[int] = set()
        self.deferred: set[int] = set()

    def __len__(self) -> int:
        return len(self.available) + len(self.deferred)


class LockedMessages:
    """Receives from one sub-queue. Use as a context manager: it releases what was not completed."""

    def __init__(self, factory: BlockingFactory, place: MessagePath, patience: float) -> None:
        self._factory = factory
        self._place = place
        self._patience = patience
        self._deferred = factory.message_receiver(place.entity, sub_queue=place.sub_queue)
        self._receiver: BlockingReceiver | None = None

    def take(self, selected: SelectedMessages, most: int) -> Iterator[list[Received]]:
        """Yield selected messages as they come, at most `most` at a time. They leave the selection."""
        for number in sorted(selected.deferred):
            try:
                received = self._deferred.receive_deferred_messages(number)
            except NotFound:
                continue  # it is locked, or gone
            selected.deferred.discard(number)
            yield received
        if selected.available:
            self._receiver = self._factory.receiver(
                self._place.entity, sub_queue=self._place.sub_queue, credit=AHEAD
            )
            yield from self._take_available(self._receiver, selected.available, most)

    def _take_available(
        self, receiver: BlockingReceiver, selected: set[int], most: int
    ) -> Iterator[list[Received]]:
        seen: set[int] = set()
        quiet_since = time.monotonic()
        while selected and time.monotonic() - quiet_since < self._patience:
            received = receiver.receive(AHEAD, min(SLICE_SECONDS, self._patience))
            numbers = {message.sequence_number for message in received}
            if numbers - seen:
                quiet_since = time.monotonic()
            seen |= numbers
            found = [message for message in received if message.sequence_number in selected]
            selected -= numbers
            found.sort(key=lambda message: message.sequence_number)
            for start in range(0, len(found), most):
                yield found[start : start + most]

    def complete(self, messages: list[Received], transaction: BlockingTransaction | None = None) -> None:
        """Complete messages that were taken together. Raises SettleFailed, LockLost."""
        if messages and messages[0].link is None:
            for message in messages:
                self._deferred.complete_message(message, transaction=transaction)
        elif messages:
            assert self._receiver is not None
            self._receiver.complete(messages, transaction=transaction)

    def __enter__(self) -> LockedMessages:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._receiver is not None:
            self._receiver.close(release=True)
        self._deferred.close()
