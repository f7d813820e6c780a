"""Byte streams between simulated processes: cut into pieces, delayed, broken off in the middle of a frame, half-open.

Rules:
1. Bytes of one direction arrive in their order, in pieces of any size, each after a delay. Directions do not wait for each
   other, nor do streams.
2. A stream that ends may lose what is on its way: the receiver gets a part of it, up to any byte, and then the end.
3. The two ends need not notice the end of a stream at the same time. Meanwhile one of them writes into the void.
4. An end that was aborted gets no more data, and its `connection_lost` in a later turn.
"""

from __future__ import annotations

import asyncio
from random import Random

from harness.virtual_loop import VirtualLoop

PIECES = 3
"""At most so many pieces are made of what is written at once."""


class StreamEnd(asyncio.Transport):
    """One end: the transport of a protocol in one process."""

    def __init__(self, loop: VirtualLoop, random: Random, latency: float) -> None:
        """Pieces arrive after up to `latency` seconds."""
        super().__init__()
        self.other: StreamEnd
        self._protocol: asyncio.Protocol | None = None
        """None: no process has taken this end yet."""
        self._loop = loop
        self._random = random
        self._latency = latency
        self._arrives = 0.0
        """When the last piece arrives at the other end."""
        self._timers: list[asyncio.TimerHandle] = []
        """Of pieces on their way to this end."""
        self._early: list[bytes] = []
        """What arrived before a process took this end, and was not read since."""
        self._ended_early = False
        self._is_cut = False
        self._is_closing = False
        self._is_over = False

    # ---- for the protocol ----

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self._is_cut or self.other._is_over:
            return
        rest, random = bytes(data), self._random
        for _ in range(random.randint(1, PIECES) - 1):
            size = random.randint(0, len(rest))
            self._send(rest[:size])
            rest = rest[size:]
        self._send(rest)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """End the stream behind what was written."""
        if not self._is_closing:
            self._is_closing = True
            self._end_soon()
            self.other._end_at(self._next_arrival())

    def abort(self) -> None:
        """End the stream now; what is on its way may be lost."""
        self._is_closing = True
        if not self._is_over:
            self._stop_reading()
            self._end_soon()
            self.other._lose_some()
            self.other._end_at(self.other._last_arrival() + self._delay())

    # ---- for the simulation ----

    def begin(self, protocol: asyncio.Protocol) -> None:
        """The process takes this end."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._loop.call_soon(self._read_early)

    def stall(self, seconds: float) -> None:
        """Let nothing of what will be written arrive for a while."""
        self._arrives = max(self._arrives, self._loop.time()) + seconds

    def break_off(self, after: float) -> None:
        """The other end is gone: this one gets a part of what is on its way, and notices after a while."""
        self._is_cut = True
        self._lose_some()
        self._end_at(max(self._last_arrival(), self._loop.time() + after))

    @property
    def is_over(self) -> bool:
        return self._is_over

    # ---- inside ----

    def _delay(self) -> float:
        return self._random.random() * self._latency

    def _next_arrival(self) -> float:
        self._arrives = max(self._arrives, self._loop.time() + self._delay())
        return self._arrives

    def _send(self, piece: bytes) -> None:
        if piece:
            other = self.other
            other._timers.append(other._loop.call_at(self._next_arrival(), other._receive, piece))

    def _receive(self, piece: bytes) -> None:
        self._timers = [timer for timer in self._timers if timer.when() > self._loop.time()]
        if self._protocol is None or self._early:
            self._early.append(piece)
        else:
            self._read(piece)

    def _read_early(self) -> None:
        early, self._early = self._early, []
        for piece in early:
            self._read(piece)
        if self._ended_early:
            self._end_now()

    def _read(self, piece: bytes) -> None:
        if self._protocol is not None and not self._is_closing and not self._is_over:
            self._protocol.data_received(piece)

    def _last_arrival(self) -> float:
        return max([timer.when() for timer in self._timers if not timer.cancelled()], default=0.0)

    def _lose_some(self) -> None:
        """Drop what is on its way to this end, from any piece on."""
        coming = [timer for timer in self._timers if timer.when() > self._loop.time()]
        if coming:
            for timer in coming[self._random.randint(0, len(coming)) :]:
                timer.cancel()

    def _stop_reading(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _end_soon(self) -> None:
        if not self._is_over and self._protocol is not None:
            self._is_over = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def _end_at(self, when: float) -> None:
        if not self._is_over:
            self._loop.call_at(max(when, self._loop.time()), self._end_now)

    def _end_now(self) -> None:
        if self._protocol is None or self._early:
            self._ended_early = True
            return
        self._is_closing = True
        if not self._is_over:
            self._is_over = True
            self._protocol.connection_lost(None)


class ByteStream:
    """Both ends of a stream between two processes."""

    def __init__(self, random: Random, latency: float, one: VirtualLoop, another: VirtualLoop) -> None:
        self.ends = (StreamEnd(one, random, latency), StreamEnd(another, random, latency))
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]

    @property
    def is_over(self) -> bool:
        return self.ends[0].is_over and self.ends[1].is_over

    def cut(self, lags: tuple[float, float]) -> None:
        """Break the stream: each end notices after a time of its own (rule 3)."""
        for end, lag in zip(self.ends, lags, strict=True):
            end.break_off(lag)
