"""What a connection shares with its sessions and links: output bytes, events, the peer's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from busbar.amqp.errors import AmqpError
from busbar.amqp.events import Event
from busbar.amqp.frames import AMQP_FRAME, write_frame
from busbar.amqp.outcomes import error_bytes

if TYPE_CHECKING:
    from busbar.amqp.link import Link

LEAST_MAX_FRAME: Final = 512  # of the specification, 2.7.1
LONGEST_TEXT: Final = 4096
LONG_PAYLOAD: Final = 8 * 1024
Part = bytes | memoryview
KEPT_WRITER: Final = 256  # what a BytesWriter holds without an allocation of its own


@final
class OutputBuffer:
    def __init__(self, server: bool, max_message_size: i64, max_partial_bytes: i64) -> None:
        self.server = server
        self.out = BytesWriter()
        self._before: list[Part] = []  # what goes out before `out`
        self.events: list[Event] = []
        # Links whose merged events of the current call are still open for more.
        self.touched: list[Link] = []
        self.peer_max_frame: i64 = LEAST_MAX_FRAME
        self.max_message_size = max_message_size
        self.partial_bytes: i64 = 0
        self.max_partial_bytes = max_partial_bytes
        self.links: i64 = 0  # in use
        self.handles: i64 = 0  # of the peer: links in use, and those it has not detached yet

    def release(self) -> None:
        """Drop events and bytes: there is no receiver for them."""
        self.close_events()
        self.events = []
        self._before = []
        self.out = BytesWriter()

    def frame(self, channel: i64, body: bytes) -> None:
        write_frame(self.out, AMQP_FRAME, channel, body)

    def payload(self, payload: bytes, start: i64, stop: i64) -> None:
        """Add a part of a payload to a frame. A long one is kept as a part of its own, and not copied."""
        if stop - start < LONG_PAYLOAD:
            self.out.write(payload[start:stop])
            return
        self._before.append(self.out.getvalue())
        self._before.append(memoryview(payload)[start:stop])
        self.out.truncate(0)

    def error(self, condition: str, text: str) -> bytes:
        return error_bytes(AmqpError(condition, text), self.text_limit())

    def text_limit(self) -> i64:
        limit = self.peer_max_frame - 256
        return limit if limit < LONGEST_TEXT else LONGEST_TEXT

    def take_events(self) -> list[Event]:
        events = self.events
        if events:
            self.events = []
        self.close_events()
        return events

    def close_events(self) -> None:
        """Add nothing more to the merged events: what follows is in new ones, behind them."""
        touched = self.touched
        if touched:
            for link in touched:
                link.close_events()
            self.touched = []

    def take_parts(self) -> list[Part] | None:
        """The output in parts, if long payloads are among it: joining them would copy them once more."""
        if not self._before:
            return None
        parts, self._before = self._before, []
        parts.append(self.out.getvalue())
        self.out = BytesWriter()
        return parts

    def take_bytes(self) -> bytes:
        out = self.out
        size = len(out)
        if size == 0 and not self._before:
            return b""
        data = out.getvalue()
        if self._before:
            self._before.append(data)
            data = b"".join(self._before)
            self._before = []
        elif size <= KEPT_WRITER:
            out.truncate(0)
            return data
        self.out = BytesWriter()  # an idle connection keeps no grown buffer
        return data
