"""One AMQP connection, for either role: bytes in, events out, bytes to send.

Phase         waits for                    then
HEADER        the peer's first 8 bytes     SASL header → SASL; AMQP header → FRAMES (a client without SASL)
SASL          server: sasl-init            SaslInit, DECIDING
              client: mechanisms, outcome  ok → our AMQP header, AMQP_HEADER
DECIDING      sasl_outcome() (server)      ok → AMQP_HEADER, else OVER; input waits
AMQP_HEADER   the peer's AMQP header       FRAMES
FRAMES        frames; first of all `open`  close → OVER
OVER          nothing                      input is ignored

Frames may be pipelined everywhere: a client's begin may follow its open in the first packet. Our own frames that are written
before the peer's header has come are held until they may be sent. Input is bounded before it is kept: a frame is at most
max-frame-size (4 KB while SASL lasts). The number of sessions and links has a limit, and so have the bytes of all unfinished
deliveries together. If a peer breaks the protocol, the error is in the `close` that it gets and in the Closed event. No
input raises. Time comes in as milliseconds. A heartbeat goes out at half of the peer's idle-time-out; a peer that is silent
for twice the idle-time-out we announced is gone.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from busbar.amqp.codec import DecodeError
from busbar.amqp.config import ConnectionConfig as ConnectionConfig
from busbar.amqp.errors import (
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
    AmqpError,
    ProtocolError,
)
from busbar.amqp.events import Closed, Event, Opened, SaslInit, SaslOutcome, SessionBegun, SessionEnded
from busbar.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    HEARTBEAT,
    SASL_FRAME,
    SASL_HEADER,
    u16,
    u32,
)
from busbar.amqp.outcomes import error_of
from busbar.amqp.output_buffer import LEAST_MAX_FRAME, OutputBuffer, Part
from busbar.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SASL_INIT,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    TRANSFER,
    Fields,
    begin_body,
    close_body,
    open_body,
    performative_at,
)
from busbar.amqp.sasl import (
    AUTH,
    MAX_SASL_FRAME,
    OK,
    choose,
    init_body,
    initial_response,
    mechanisms_body,
    outcome_body,
)
from busbar.amqp.session import FIRST_TRANSFER_ID, Session
from busbar.amqp.states import ENDING

HEADER: Final = 0
SASL: Final = 1
DECIDING: Final = 2
AMQP_HEADER_PHASE: Final = 3
FRAMES: Final = 4
OVER: Final = 5

LEAST_HEARTBEAT: Final = 50  # ms; a peer that announces less gets no more
_MASK: Final = 0xFFFFFFFF


@final
class Connection:
    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self.sessions: dict[int, Session] = {}  # by the remote's channel
        self.user: object = None
        self.is_open = False  # the remote's open has come
        self.is_closed = False
        self.remote_container_id = ""
        self.remote_hostname: str | None = None
        self.remote_properties: dict[object, object] = {}
        self.remote_channel_max: i64 = 0xFFFF
        self._wire = OutputBuffer(config.server, config.max_message_size, config.max_partial_bytes)
        self._phase: i64 = HEADER
        self._before: list[bytes] = []  # headers and SASL frames, ahead of all AMQP frames
        self._may_send_frames = False
        self._open_written = False
        self._close_written = False
        self._begun: list[Session] = []  # our own begins without an answer
        self._chunks: list[bytes] = []  # input that is not a whole frame yet
        self._have: i64 = 0
        self._need: i64 = 0
        self._now: i64 = 0
        self._last_input: i64 = 0
        self._last_output: i64 = 0
        self._heartbeat_every: i64 = 0

    # ---- the three verbs -------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: i64) -> list[Event]:
        """Take bytes from the peer. Whatever they are, the result is events, and Closed when they were wrong."""
        self._now = now
        if data:
            self._last_input = now
            self._take(data)
        return self._wire.take_events()

    def data_to_send(self) -> bytes:
        """All bytes to write since the last call."""
        data = b""
        if self._before:
            data = b"".join(self._before)
            self._before = []
        if self._may_send_frames:
            frames = self._wire.take_bytes()
            data = data + frames if data else frames
        if data:
            self._last_output = self._now
        return data

    def parts_to_send(self) -> list[Part] | None:
        """All bytes to write, in parts for `writelines`; None if they are few, and data_to_send has them."""
        if self._before or not self._may_send_frames:
            return None
        parts = self._wire.take_parts()
        if parts is not None:
            self._last_output = self._now
        return parts

    def tick(self, now: i64) -> list[Event]:
        """Send heartbeats and close if the peer is silent; also returns events that arose outside of receive_data."""
        self._now = now
        if self._phase != OVER:
            if self._last_input == 0:
                self._last_input = now
            if self._last_output == 0:
                self._last_output = now
            announced = self.config.idle_timeout
            silence = now - self._last_input
            if announced > 0 and silence >= announced * 2:
                text = f"idle: nothing came for {silence} ms; the idle-time-out is {announced} ms"
                self._fail(RESOURCE_LIMIT_EXCEEDED, text)
            elif self._heartbeat_due(now) and len(self._wire.out) == 0:
                self._wire.out.write(HEARTBEAT)
        return self._wire.take_events()

    def next_tick(self, now: i64) -> i64:
        """When `tick` is to be called; 0 for never."""
        if self._wire.events:
            return now
        if self._phase == OVER:
            return 0
        due: i64 = 0
        if self.config.idle_timeout > 0:
            since = self._last_input if self._last_input else now
            due = since + self.config.idle_timeout * 2
        if self._has_heartbeat():
            beat = (self._last_output if self._last_output else now) + self._heartbeat_every
            if due == 0 or beat < due:
                due = beat
        return due

    def _has_heartbeat(self) -> bool:
        return self._heartbeat_every > 0 and self._open_written and not self._close_written

    def _heartbeat_due(self, now: i64) -> bool:
        return self._has_heartbeat() and now >= self._last_output + self._heartbeat_every

    # ---- what we start ---------------------------------------------------------------------------

    def open(self) -> None:
        """Client: start the connection. Sessions and links may follow at once."""
        if self._open_written:
            return
        if self.config.mechanisms:
            self._before.append(SASL_HEADER)
        else:
            self._before.append(AMQP_HEADER)
            self._phase = AMQP_HEADER_PHASE
            self._may_send_frames = True
        self._write_open()

    def begin(self) -> Session:
        """Client: a new session. SessionBegun answers it."""
        used = {int(session.channel) for session in self._begun}
        for session in self.sessions.values():
            used.add(int(session.channel))
        channel: i64 = 0
        while int(channel) in used:
            channel += 1
        if channel > self.config.channel_max or channel > self.remote_channel_max:
            raise ValueError(f"all {channel} channels are in use")
        session = Session(self, self._wire, channel)
        if self._close_written or self._phase == OVER:
            session.on_connection_end()
            return session
        self._begun.append(session)
        self._write_begin(session)
        return session

    def close(self, condition: str | None = None, text: str = "") -> None:
        """Close the connection, with an error or without. Closed follows when the peer has answered."""
        if self._phase == OVER or self._close_written:
            return
        if not self._open_written:
            if self._phase != FRAMES:
                self._over()
                return
            self._write_open()  # a close may only follow an open (2.4.5)
        self._write_close(b"" if condition is None else self._wire.error(condition, text))

    def sasl_outcome(self, code: int) -> None:
        """Server: the answer to SaslInit; 0 lets the client in.

        Input that came meanwhile is read now; its events wait for the next receive_data or tick.
        """
        if self._phase != DECIDING:
            return
        self._sasl_frame(outcome_body(code))
        if code != OK:
            self._over()
            return
        self._phase = AMQP_HEADER_PHASE
        self._need = 8
        if self._have >= self._need:
            self._take(b"")

    def _sasl_frame(self, body: bytes) -> None:
        size = 8 + len(body)
        self._before.append(size.to_bytes(4, "big") + b"\x02\x01\x00\x00" + body)

    def _write_open(self) -> None:
        config = self.config
        self._open_written = True
        self._wire.frame(
            0,
            open_body(
                config.container_id,
                config.hostname,
                config.max_frame_size,
                config.channel_max,
                config.idle_timeout,
                config.properties,
            ),
        )

    def _write_begin(self, session: Session) -> None:
        config = self.config
        self._wire.frame(
            session.channel,
            begin_body(
                session.remote_channel,
                FIRST_TRANSFER_ID,
                config.incoming_window,
                config.outgoing_window,
                config.handle_max,
            ),
        )

    def _write_close(self, error: bytes) -> None:
        self._wire.frame(0, close_body(error))
        self._close_written = True
        self._end_sessions()

    # ---- the end ---------------------------------------------------------------------------------

    def _over(self) -> None:
        self._phase = OVER
        self.is_closed = True
        self._chunks = []
        self._have = 0
        self._end_sessions()

    def release(self) -> None:
        """The transport is gone: let go of all that refers to this connection."""
        self._over()
        for session in self.sessions.values():
            session.release()
        for session in self._begun:
            session.release()
        self.sessions = {}
        self._begun = []
        self.user = None
        self._wire.release()

    def _end_sessions(self) -> None:
        """End all sessions, since nothing may follow a close. They and their links stay visible, but calls do nothing."""
        for session in self.sessions.values():
            session.on_connection_end()
        for session in self._begun:
            session.on_connection_end()

    def _fail(self, condition: str, text: str) -> None:
        """Close with an error, for the peer and as an event: the peer broke the protocol, or is silent."""
        if self._open_written and not self._close_written and self._may_send_frames:
            self._write_close(self._wire.error(condition, text))
        self._over()
        self._wire.events.append(Closed(AmqpError(condition, text)))

    # ---- input -----------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Read whole frames from what is there; keep the rest."""
        if self._phase == OVER:
            return
        if self._have > 0:
            if data:
                self._chunks.append(data)
                self._have += len(data)
            if self._have < self._need or self._phase == DECIDING:
                self._bound_waiting()
                return
            data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
            self._chunks = []
            self._have = 0
        try:
            pos = self._read(data)
        except ProtocolError as error:
            self._fail(error.condition, error.description)
            return
        except DecodeError as undecodable:  # a name of its own: compiled, a variable has one type
            self._fail(DECODE_ERROR, str(undecodable))
            return
        left = len(data) - pos
        if left > 0 and self._phase != OVER:
            self._chunks.append(data[pos:] if pos > 0 else data)
            self._have = left

    def _bound_waiting(self) -> None:
        """Bound what a client may send before its credentials are accepted."""
        if self._phase == DECIDING and self._have > self.config.max_frame_size:
            self._fail(FRAMING_ERROR, f"{self._have} bytes came before the SASL outcome")

    def _read(self, data: bytes) -> i64:
        """Handle all whole frames in `data`. Returns how far they reach and sets what the next one needs."""
        pos: i64 = 0
        end: i64 = len(data)
        while self._phase != OVER and self._phase != DECIDING:
            if end - pos < 8:
                self._need = 8
                break
            if self._phase == HEADER or self._phase == AMQP_HEADER_PHASE:
                self._on_header(data[pos : pos + 8])
                pos += 8
                continue
            size = u32(data, pos)
            limit = MAX_SASL_FRAME if self._phase == SASL else self.config.max_frame_size
            if size < 8 or size > limit:
                raise ProtocolError(
                    FRAMING_ERROR, f"a frame of {size} bytes; the size should be 8 to {limit}"
                )
            if end - pos < size:
                self._need = size
                break
            self._on_frame(data, pos, pos + size)
            pos += size
        return pos

    def _on_header(self, header: bytes) -> None:
        if header == SASL_HEADER and self._phase == HEADER:
            self._phase = SASL
            if self.config.server:
                self._before.append(SASL_HEADER)
                self._sasl_frame(mechanisms_body(self.config.mechanisms))
        elif header == AMQP_HEADER and (self._phase == AMQP_HEADER_PHASE or self.config.server):
            self._phase = FRAMES
            if self.config.server:
                self._before.append(AMQP_HEADER)
                self._may_send_frames = True
        else:
            # The header that would be right, then the end (2.2).
            if self.config.server:
                self._before.append(SASL_HEADER if self._phase == HEADER else AMQP_HEADER)
            raise ProtocolError(
                FRAMING_ERROR,
                f"the protocol header {header!r} is neither SASL nor AMQP 1.0.0, or out of turn",
            )

    def _on_frame(self, data: bytes, pos: i64, end: i64) -> None:
        offset: i64 = data[pos + 4]
        kind: i64 = data[pos + 5]
        body = pos + offset * 4
        if offset < 2 or body > end:
            raise ProtocolError(
                FRAMING_ERROR, f"a data offset of {offset} words in a frame of {end - pos} bytes"
            )
        expected = SASL_FRAME if self._phase == SASL else AMQP_FRAME
        if kind != expected:
            raise ProtocolError(FRAMING_ERROR, f"a frame of type {kind}; {expected} is expected here")
        if body == end:
            return  # a heartbeat
        code, at = performative_at(data, body, end)
        if expected == SASL_FRAME:
            self._on_sasl(code, data, at, end)
            return
        channel = u16(data, pos + 6)
        if self._close_written and code != CLOSE:
            return  # after our close only the peer's one counts
        session = self.sessions.get(channel)
        if session is not None and code != CLOSE:
            if session.state == ENDING and code != END:
                return
            if code == TRANSFER:
                session.on_transfer(data, at, end)
                return
            if code == DISPOSITION:
                session.on_disposition(data, at, end)
                return
            if code == FLOW:
                session.on_flow(data, at, end)
                return
        self._on_rare(code, channel, session, data, at, end)

    def _on_rare(
        self, code: i64, channel: i64, session: Session | None, data: bytes, at: i64, end: i64
    ) -> None:
        if code == OPEN:
            self._on_open(Fields("open", data, at, end))
        elif code == CLOSE:
            self._on_close(Fields("close", data, at, end))
        elif not self.is_open:
            raise ProtocolError(ILLEGAL_STATE, f"performative 0x{code:02x} came before open")
        elif channel > self.config.channel_max:
            raise ProtocolError(
                FRAMING_ERROR, f"a frame on channel {channel}; channel-max is {self.config.channel_max}"
            )
        elif code == BEGIN:
            self._on_begin(channel, Fields("begin", data, at, end))
        elif code < OPEN or code > CLOSE:
            raise ProtocolError(DECODE_ERROR, f"the descriptor 0x{code:02x} is not that of a performative")
        elif session is None:
            raise ProtocolError(
                NOT_ALLOWED, f"performative 0x{code:02x} on channel {channel}, which has no session"
            )
        elif code == ATTACH:
            session.on_attach(data, at, end, self.config.max_links)
        elif code == DETACH:
            session.on_detach(Fields("detach", data, at, end))
        elif code == END:
            self._on_end(session, Fields("end", data, at, end))

    def _on_open(self, fields: Fields) -> None:
        if self.is_open:
            raise ProtocolError(ILLEGAL_STATE, "open came twice")
        self.remote_container_id = fields.text(0, "container-id")
        self.remote_hostname = fields.text_or_none(1, "hostname")
        frame_size = fields.uint_or(2, "max-frame-size", _MASK, _MASK)
        if frame_size < LEAST_MAX_FRAME:
            raise ProtocolError(
                INVALID_FIELD, f"open.max-frame-size is {frame_size}; it should be at least {LEAST_MAX_FRAME}"
            )
        self._wire.peer_max_frame = frame_size
        self.remote_channel_max = fields.uint_or(3, "channel-max", 0xFFFF, 0xFFFF)
        idle = fields.uint_or(4, "idle-time-out", _MASK, 0)
        if idle > 0:
            half = idle // 2
            self._heartbeat_every = half if half > LEAST_HEARTBEAT else LEAST_HEARTBEAT
        self.remote_properties = fields.map_or_none(9, "properties") or {}
        self.is_open = True
        if not self._open_written:
            self._write_open()
        self._wire.events.append(
            Opened(self.remote_container_id, self.remote_hostname, self.remote_properties)
        )

    def _on_close(self, fields: Fields) -> None:
        error = error_of(fields.any(0))
        if not self._close_written:
            if not self._open_written:
                self._write_open()
            self._write_close(b"")
        self._over()
        self._wire.events.append(Closed(error))

    def _on_begin(self, channel: i64, fields: Fields) -> None:
        if int(channel) in self.sessions:
            raise ProtocolError(ILLEGAL_STATE, f"begin on channel {channel}, which has a session already")
        answered = fields.uint_or(0, "remote-channel", 0xFFFF, -1)
        if answered >= 0:
            session = self._answered(answered)
            session.remote_channel = channel
            session.on_begin(fields)
            self.sessions[channel] = session
            if session.is_begun:
                self._wire.events.append(SessionBegun(session))
            return
        if not self.config.server:
            raise ProtocolError(NOT_ALLOWED, f"the server began a session by itself on channel {channel}")
        session = Session(self, self._wire, channel)
        session.remote_channel = channel
        session.on_begin(fields)
        self.sessions[channel] = session
        self._write_begin(session)
        if len(self.sessions) > self.config.max_sessions:
            text = f"{self.config.max_sessions} sessions are begun on this connection; no more are allowed"
            session.end(RESOURCE_LIMIT_EXCEEDED, text)
            return
        self._wire.events.append(SessionBegun(session))

    def _answered(self, channel: i64) -> Session:
        """Our own begin that the remote's one answers."""
        begun = self._begun
        i: i64 = 0
        while i < len(begun):
            session = begun[i]
            if session.channel == channel:
                begun.pop(i)
                return session
            i += 1
        raise ProtocolError(INVALID_FIELD, f"begin.remote-channel is {channel}, on which no begin was sent")

    def _on_end(self, session: Session, fields: Fields) -> None:
        error = error_of(fields.any(0))
        del self.sessions[session.remote_channel]
        self._wire.handles -= len(session.links)
        if session.on_end() or not self.config.server:
            self._wire.events.append(SessionEnded(session, error))

    def _on_sasl(self, code: i64, data: bytes, at: i64, end: i64) -> None:
        if self.config.server:
            if code != SASL_INIT:
                raise ProtocolError(NOT_ALLOWED, f"SASL performative 0x{code:02x} came instead of sasl-init")
            self._on_sasl_init(Fields("sasl-init", data, at, end))
        elif code == SASL_MECHANISMS:
            offered = Fields("sasl-mechanisms", data, at, end).symbols(0, "sasl-server-mechanisms")
            mechanism = choose(self.config.mechanisms, offered)
            response = initial_response(mechanism, self.config.user, self.config.password)
            self._sasl_frame(init_body(mechanism, response, self.config.hostname))
        elif code == SASL_OUTCOME:
            verdict = Fields("sasl-outcome", data, at, end).uint(0, "code", 255)
            self._wire.events.append(SaslOutcome(verdict))
            if verdict != OK:
                raise ProtocolError(
                    UNAUTHORIZED_ACCESS, f"the server refused the SASL credentials, code {verdict}"
                )
            self._before.append(AMQP_HEADER)
            self._may_send_frames = True
            self._phase = AMQP_HEADER_PHASE
        else:
            raise ProtocolError(
                NOT_IMPLEMENTED, f"SASL performative 0x{code:02x} is not known to this client"
            )

    def _on_sasl_init(self, fields: Fields) -> None:
        mechanism = fields.text(0, "mechanism")
        response = fields.any(1)
        if response is None:
            response = b""
        if not isinstance(response, bytes):
            raise fields.refuse("initial-response", response, "a binary")
        hostname = fields.text_or_none(2, "hostname")
        if mechanism not in self.config.mechanisms:
            self._sasl_frame(outcome_body(AUTH))
            raise ProtocolError(
                UNAUTHORIZED_ACCESS,
                f"the SASL mechanism {mechanism!r:.80} was not offered; {', '.join(self.config.mechanisms)} are",
            )
        self._phase = DECIDING
        self._wire.events.append(SaslInit(mechanism, response, hostname))
