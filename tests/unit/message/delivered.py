"""Deliveries as they go out: each head with what is behind it."""

from __future__ import annotations

from busbar.message.delivery import CONTENT_HEAD, encode_deliveries
from busbar.model.message import Record


def delivered(
    records: list[Record], fragment: int, index: int, nonce: int, locked_until: int, partition_id: int
) -> tuple[list[bytes], list[bytes]]:
    """The tags and the payloads of messages for one receiver."""
    tags, heads, contents = encode_deliveries(records, fragment, index, nonce, locked_until, partition_id)
    pairs = zip(heads, contents, strict=True)
    return tags, [head + content[CONTENT_HEAD:] for head, content in pairs]
