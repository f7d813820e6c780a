"""The format of an overlay in a store: for each property a name and a value, each with its length in front.

    u16 length of the name · name in UTF-8 · u32 length of the value · value        (big-endian, repeated)

No overlay is NULL, not an empty value, so both are distinguished when they are read.
"""

from __future__ import annotations

from struct import Struct, error

from busbar.model.message import Overlay

_NAME = Struct(">H")
_VALUE = Struct(">I")


def encode_overlay(overlay: Overlay | None) -> bytes | None:
    if overlay is None:
        return None
    parts: list[bytes] = []
    for name, value in overlay.items():
        text = name.encode()
        if len(text) > 0xFFFF:
            raise ValueError(f"a property name of {len(text)} bytes is longer than 65535")
        parts += (_NAME.pack(len(text)), text, _VALUE.pack(len(value)), value)
    return b"".join(parts)


def decode_overlay(encoded: bytes | None) -> Overlay | None:
    """Decode an overlay. Raises ValueError for bytes of another format."""
    if encoded is None:
        return None
    overlay: Overlay = {}
    at, end = 0, len(encoded)
    try:
        while at < end:
            (length,) = _NAME.unpack_from(encoded, at)
            at += _NAME.size
            name = encoded[at : at + length].decode()
            at += length
            (length,) = _VALUE.unpack_from(encoded, at)
            at += _VALUE.size
            overlay[name] = encoded[at : at + length]
            at += length
    except (error, UnicodeDecodeError) as problem:
        raise ValueError(f"not an overlay: {problem}") from problem
    if at != end:
        raise ValueError(f"not an overlay: {at - end} bytes are missing")
    return overlay
