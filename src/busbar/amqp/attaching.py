"""Reads the remote's attach of a link."""

from __future__ import annotations

from mypy_extensions import i64

from busbar.amqp.credit import MASK
from busbar.amqp.link import Link
from busbar.amqp.performatives import Fields, terminus_of


def read_attach(link: Link, fields: Fields, source: bytes, target: bytes) -> None:
    """Set the attributes of a link. `source` and `target` are the bytes of these fields."""
    link.source = terminus_of(fields.any(5), source)
    link.target = terminus_of(fields.any(6), target)
    link.is_coordinator = link.target is not None and link.target.coordinator
    link.snd_settle_mode = fields.uint_or(3, "snd-settle-mode", 2, 2)
    link.rcv_settle_mode = fields.uint_or(4, "rcv-settle-mode", 1, 0)
    fields.map_or_none(7, "unsettled")  # a link is never resumed: what was unsettled on an old one is not
    if not link.sending:
        link.delivery_count = link.uncounted = fields.uint_or(9, "initial-delivery-count", MASK, 0)
    link.remote_max_message_size = _bounded(fields.any(10))
    link.offered_capabilities = fields.symbols(11, "offered-capabilities") or None
    link.desired_capabilities = fields.symbols(12, "desired-capabilities") or None
    link.properties = fields.map_or_none(13, "properties") or {}


def _bounded(value: object) -> i64:
    """A max-message-size: 0 when there is no limit, or one beyond all use."""
    if isinstance(value, int) and 0 < value < 1 << 62:
        return value
    return 0
