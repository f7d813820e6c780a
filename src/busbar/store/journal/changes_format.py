"""The format of a group commit in the journal: what the encoder and the decoder share.

A body is the number of its Changes (u32), and one after the other:

    i64 fragment · u32 sections · each section that has its bit set

All integers are big-endian. A list or map has a u32 count in front, bytes and texts have a u32 length. Texts are UTF-8 with
surrogates. A message in a section of puts:

    u16 flags · i64 number · i64 enqueued · the fields whose flag is set · content

A content is its length and its bytes. If the same bytes object stands earlier in this body, the length can have its highest
bit set, and the u32 place of the bytes follows. So the copies of a topic's message are one content.
"""

from __future__ import annotations

from typing import Final

PUTS: Final = 1
EDITS: Final = 1 << 1
KEEPS: Final = 1 << 2
DELETES: Final = 1 << 3
IDS_UPTO: Final = 1 << 4
IDS: Final = 1 << 5
SESSIONS: Final = 1 << 6
STATES: Final = 1 << 7
OUTBOX_ROWS: Final = 1 << 8
TAPS: Final = 1 << 9
EVENTS: Final = 1 << 10
EVENTS_UPTO: Final = 1 << 11
WRITTEN: Final = 1 << 12
WRITERS: Final = 1 << 13
HEAD: Final = 1 << 14
HOLDS: Final = 1 << 15
ALL_SECTIONS: Final = (1 << 16) - 1

TTL: Final = 1
DUE: Final = 1 << 1
DELIVERIES: Final = 1 << 2
SIZE: Final = 1 << 3  # it is not content and OVERHEAD alone
SESSION: Final = 1 << 4
OVERLAY: Final = 1 << 5
DEAD_NUMBER: Final = 1 << 6
MOVED: Final = 1 << 7  # hops, target and kind
NO_CONTENT: Final = 1 << 8
ALL_FLAGS: Final = (1 << 9) - 1

SHARED: Final = 0x80000000
"""In a length: the bytes stand before."""
MAX_CONTENT: Final = 0x7FFFFFFF
