"""Small Arrow arrays from Python values, made of their buffers.

`pyarrow.array` and `pyarrow.scalar` import pandas if it is installed. That takes longer than all else that a Python process
of Spark does before it reads, and each query starts several of these processes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa


def text_array(texts: Sequence[str]) -> pa.Array:
    encoded = [text.encode() for text in texts]
    offsets = [0]
    for text in encoded:
        offsets.append(offsets[-1] + len(text))
    buffers = [
        None,
        pa.py_buffer(struct.pack(f"<{len(offsets)}i", *offsets)),
        pa.py_buffer(b"".join(encoded)),
    ]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers, null_count=0)


def integer_array(numbers: Sequence[int], kind: pa.DataType) -> pa.Array:
    """An array of int32 or int64."""
    code = {4: "i", 8: "q"}[kind.bit_width // 8]
    buffers = [None, pa.py_buffer(struct.pack(f"<{len(numbers)}{code}", *numbers))]
    return pa.Array.from_buffers(kind, len(numbers), buffers, null_count=0)
