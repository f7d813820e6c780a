"""Messages as clients send them, with the keys that choose a fragment."""

from __future__ import annotations

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, ULong


def encoded(
    id: str = "id",
    session: str | None = None,
    key: str | None = None,
    via: str | None = None,
    body: bytes = b"body",
) -> bytes:
    annotations: dict[object, object] = {}
    if key is not None:
        annotations[Symbol("x-opt-partition-key")] = key
    if via is not None:
        annotations[Symbol("x-opt-via-partition-key")] = via
    sections: list[object] = [
        Described(ULong(0x72), annotations),
        Described(ULong(0x73), [id, *[None] * 9, session]),
        Described(ULong(0x75), body),
    ]
    return b"".join(encode_value(section) for section in sections)
