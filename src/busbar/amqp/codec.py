"""AMQP 1.0 values to bytes and back.

Decoding trusts nothing. Every length and count is compared with the bytes that are there before anything is
allocated; a compound must end exactly where its length says; values nest at most 32 deep; elements that take
no bytes (an array of nulls) are limited to 65,536 in one call; a descriptor is a ulong or a symbol; a map has
pairs, with keys that are scalars and differ. Whatever breaks a rule is a DecodeError; nothing else escapes.

Every encoding of a type is understood. For output there is one per value, the smallest, with the exceptions
on which SDKs depend: a long always takes 8 bytes and an int 4, and array elements have a fixed width.
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
