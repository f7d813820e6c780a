"""The few texts that a fragment writes into messages itself, as encoded AMQP strings."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.model.message import Overlay

REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"


def amqp_string(text: str) -> bytes:
    """Encode a string (AMQP 1.0 part 1, 1.6.20): str8-utf8 (0xA1, one byte of length) or str32-utf8 (0xB1, four)."""
    data = text.encode("utf-8")
    if len(data) < 256:
        return b"\xa1" + len(data).to_bytes(1, "big") + data
    return b"\xb1" + len(data).to_bytes(4, "big") + data


def reason_of(overlay: Overlay | None) -> str:
    """The dead-letter reason of a message; empty if it has none, or one that is not a string."""
    data = overlay.get(REASON, b"") if overlay is not None else b""
    if data[:1] == b"\xa1":
        return data[2:].decode("utf-8", "replace")
    if data[:1] == b"\xb1":
        return data[5:].decode("utf-8", "replace")
    return ""


EXPIRED: Final[Overlay] = {
    REASON: amqp_string("TTLExpiredException"),
    DESCRIPTION: amqp_string("The message expired and was dead lettered."),
}


NO_SESSION: Final = "Session ID is null"
NEEDS_SESSION: Final = "A message without a SessionId cannot be sent to an entity that requires sessions."

HEADER_TOO_LARGE: Final = "HeaderSizeExceeded"
"""The condition of a moved message whose header is too large, and the reason of the dead letter that it becomes."""


def dead_letter(reason: str, description: str) -> Overlay:
    return {REASON: amqp_string(reason), DESCRIPTION: amqp_string(description)}


def too_many_deliveries(deliveries: i64) -> Overlay:
    return dead_letter(
        "MaxDeliveryCountExceeded", f"Message could not be consumed after {deliveries} delivery attempts."
    )


def merged(old: Overlay | None, new: Overlay | None) -> Overlay | None:
    """Both overlays as one; a name in both has the newer value. Neither is changed."""
    if not new:
        return old
    if not old:
        return new
    both = dict(old)
    both.update(new)
    return both
