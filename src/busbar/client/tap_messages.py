"""The messages of a page of a tap, as a peek would show them."""

from __future__ import annotations

from busbar.amqp.codec import encode_value
from busbar.client.received import PeekedMessage
from busbar.client.taps import Page
from busbar.message.delivery import STATE_ACTIVE, STATE_DEFERRED, encode_peeked
from busbar.model.message import DEAD_DEFERRED, DEFERRED, Record
from busbar.model.partitioning import NUMBER_BITS
from busbar.pages.rows import TapMessageRow, decode_messages, properties_of


def messages_of(page: Page, index: int) -> list[PeekedMessage]:
    """The messages of a page that was read from the fragment with this index. Raises DecodeError."""
    return [_peeked(row, index) for row in decode_messages(page.rows)]


def _peeked(row: TapMessageRow, index: int) -> PeekedMessage:
    overlay = {name: encode_value(value) for name, value in properties_of(row.overlay).items()}
    record = Record(
        row.n, row.enqueued, row.ttl, 0, row.deliveries, len(row.content), row.content, overlay or None
    )
    state = STATE_DEFERRED if row.lane in (DEFERRED, DEAD_DEFERRED) else STATE_ACTIVE
    return PeekedMessage(encode_peeked(record, index << NUMBER_BITS | row.n, -1, state, False))
