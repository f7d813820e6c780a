"""Encodes AMQP 1.0 values to bytes and decodes them.

Decoding trusts no input. Every length and count is compared with the available bytes before anything is allocated. A
compound must have exactly its announced length. Values nest at most 32 deep. Elements without bytes (an array of nulls) are
limited to 65,536 in one call. A descriptor is a ulong or a symbol. A map has pairs, with keys that are scalars and differ.
If a rule is broken, there is a DecodeError and no other exception.

Every encoding of a type is decoded. For output there is one per value, the smallest, with exceptions on which SDKs depend. A
long always takes 8 bytes and an int 4, and array elements have a fixed width.
"""

from __future__ import annotations

from busbar.amqp.decoding import (
    MAX_ELEMENTS,
    DecodeError,
    decode_value,
    read_u32,
    skip_descriptor,
    skip_value,
)
from busbar.amqp.encoding import EncodeError, encode_value, write_u32, write_value

__all__ = [
    "MAX_ELEMENTS",
    "DecodeError",
    "EncodeError",
    "decode_value",
    "encode_value",
    "read_u32",
    "skip_descriptor",
    "skip_value",
    "write_u32",
    "write_value",
]
