"""Unfinished deliveries: sent and unsettled, queued, or arriving in several frames.

An arriving delivery is gathered up to the link's max-message-size. Bytes beyond it are dropped at once, and the delivery is
reported as oversized. All unfinished deliveries of a connection together have a limit, in which every frame counts with its
own cost: a million frames of one byte are not a megabyte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from busbar.amqp.errors import INVALID_FIELD, RESOURCE_LIMIT_EXCEEDED, ProtocolError
from busbar.amqp.events import Delivery

if TYPE_CHECKING:
    from busbar.amqp.link import Link
    from busbar.amqp.output_buffer import OutputBuffer

FRAME_COST: Final = 64  # of a bytes object and its place in a list
LONGEST_TAG: Final = 32  # of the specification, 2.8.7
LONGEST_STATE: Final = 256  # a transfer's fields have to fit into the smallest frame


@final
class DeliveryBatch:
    """Deliveries to be sent, each with its tag. If there are contents, what is in `contents[i]` from `skip` on goes out
    behind payload `i`."""

    def __init__(
        self,
        tags: list[bytes],
        payloads: list[bytes],
        settled: bool,
        format: i64,
        state: bytes,
        contents: list[bytes],
        skip: i64,
    ) -> None:
        """Raises ValueError for deliveries that cannot be written."""
        if len(tags) != len(payloads) or len(state) > LONGEST_STATE:
            raise ValueError(
                f"{len(tags)} tags for {len(payloads)} payloads, with a state of {len(state)} bytes"
            )
        if contents and len(contents) != len(payloads):
            raise ValueError(f"{len(contents)} contents for {len(payloads)} payloads")
        for tag in tags:
            if len(tag) > LONGEST_TAG:
                raise ValueError(f"a delivery-tag of {len(tag)} bytes; {LONGEST_TAG} are allowed")
        self.tags = tags
        self.payloads = payloads
        self.settled = settled
        self.format = format
        self.state = state
        self.contents = contents
        self.skip = skip if contents else 0

    def queued(self, i: i64) -> QueuedDelivery:
        """Delivery `i`, to wait."""
        payload = self.payloads[i] + self.contents[i][self.skip :] if self.contents else self.payloads[i]
        return QueuedDelivery(self.tags[i], payload, self.settled, self.format, self.state)


@final
class SentDelivery:
    """A delivery that was sent and is not settled. `disposed`: its receiver has sent an outcome."""

    def __init__(self, link: Link, tag: bytes) -> None:
        self.link = link
        self.tag = tag
        self.disposed = False


@final
class QueuedDelivery:
    """A delivery that waits for credit or window; `offset` is -1 until its first frame is sent."""

    def __init__(self, tag: bytes, payload: bytes, settled: bool, format: i64, state: bytes) -> None:
        self.tag = tag
        self.payload = payload
        self.settled = settled
        self.format = format
        self.state = state
        self.offset: i64 = -1


@final
class PartialDelivery:
    """A delivery of which frames are still to come."""

    def __init__(self, id: i64, tag: bytes, format: i64, settled: bool, txn: bytes | None) -> None:
        self.id = id
        self.tag = tag
        self.format = format
        self.settled = settled
        self.txn = txn
        self.parts: list[bytes] = []
        self.size: i64 = 0
        self.cost: i64 = 0
        self.oversized = False

    def check_next(self, id: i64) -> None:
        """A further frame may leave the id out, but not name another one."""
        if id >= 0 and id != self.id:
            text = f"transfer.delivery-id is {id} although delivery {self.id} of the link is unfinished"
            raise ProtocolError(INVALID_FIELD, text)

    def gather(self, wire: OutputBuffer, most: i64, buf: bytes, start: i64, end: i64) -> None:
        size = end - start
        if self.oversized or size == 0:
            return
        if self.size + size > most:
            self.release(wire)
            self.oversized = True
            return
        self.size += size
        self.cost += size + FRAME_COST
        wire.partial_bytes += size + FRAME_COST
        if wire.partial_bytes > wire.max_partial_bytes:
            held, limit = wire.partial_bytes, wire.max_partial_bytes
            raise ProtocolError(
                RESOURCE_LIMIT_EXCEEDED, f"unfinished deliveries hold {held} bytes; {limit} are allowed"
            )
        self.parts.append(buf[start:end])

    def release(self, wire: OutputBuffer) -> None:
        """Release the bytes that were counted for it."""
        wire.partial_bytes -= self.cost
        self.cost = 0
        self.size = 0
        self.parts = []

    def finish(self, wire: OutputBuffer) -> Delivery:
        payload = b"".join(self.parts)
        self.release(wire)
        return Delivery(self.id, self.tag, self.format, payload, self.settled, self.txn, self.oversized)
