"""AMQP by hand: frames as bytes on a blocking socket, so that a test can say what no engine would say.

Frames go out as they are given and come back decoded. Nothing here answers by itself: no credit, no settlement, no
heartbeat. `logged_in` does the ordinary beginning (SASL PLAIN, open, begin on channel 0).
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.types import Described, Symbol, Timestamp, UByte, UInt, ULong, UShort
from busbar.model.sas import sign

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
ACCEPTED, REJECTED, RELEASED, MODIFIED = 0x24, 0x25, 0x26, 0x27
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
SENDER, RECEIVER = False, True


@dataclass(frozen=True, slots=True)
class Frame:
    channel: int
    code: int
    """The performative's descriptor; 0 for an empty frame."""
    fields: list[object]
    payload: bytes

    def field(self, index: int) -> object:
        return self.fields[index] if index < len(self.fields) else None

    @property
    def condition(self) -> str:
        """The condition of the error that a close, an end, a detach or a rejection carries; empty for none."""
        index = {CLOSE: 0, END: 0, DETACH: 2, DISPOSITION: 4}[self.code]
        error = self.field(index)
        if self.code == DISPOSITION and isinstance(error, Described) and error.descriptor == REJECTED:
            rejected = error.value
            error = rejected[0] if isinstance(rejected, list) and rejected else None
        if not isinstance(error, Described) or error.descriptor != 0x1D:
            return ""
        assert isinstance(error.value, list)
        assert len(error.value) == 3, "an error has three fields, or the Python SDK hangs"
        return str(error.value[0])

    @property
    def count(self) -> int:
        """How many deliveries a disposition is about."""
        first = int(str(self.field(1)))
        return 1 if self.field(2) is None else int(str(self.field(2))) - first + 1

    @property
    def outcome(self) -> int:
        """The code of the delivery state that a disposition carries."""
        state = self.field(4)
        return int(str(state.descriptor)) if isinstance(state, Described) else 0


def performative(code: int, fields: list[object]) -> bytes:
    return encode_value(Described(ULong(code), fields))


def frame(body: bytes, channel: int = 0, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


def message(body: bytes, message_id: str | None = None) -> bytes:
    properties = b"" if message_id is None else performative(0x73, [message_id])
    return properties + encode_value(Described(ULong(0x75), body))


def sas_token(resource: str, *, key: str = KEY, name: str = KEY_NAME, lifetime: float = 600) -> str:
    return sign(resource, name, key, int(time.time() + lifetime))


class Wire:
    """One connection. Reading raises EOFError when the server has closed it, TimeoutError when it says nothing."""

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def vanish(self) -> None:
        """End with a reset, as a machine does that loses its network card."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # Bytes

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError("the server has closed the connection")
            self._buffer += data
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    # Frames

    def say(self, code: int, fields: list[object], payload: bytes = b"", channel: int = 0) -> None:
        self.send(frame(performative(code, fields) + payload, channel))

    def hear(self) -> Frame:
        size, doff, _kind, channel = struct.unpack(">IBBH", self.read(8))
        body = self.read(size - 8)[(doff - 2) * 4 :]
        if not body:
            return Frame(channel, 0, [], b"")
        value, end = decode_value(body, 0, len(body))
        assert isinstance(value, Described) and isinstance(value.value, list)
        return Frame(channel, int(str(value.descriptor)), value.value, body[end:])

    def until(self, *codes: int) -> Frame:
        """The next frame of one of these kinds; the others are passed over."""
        while True:
            heard = self.hear()
            if heard.code in codes:
                return heard

    def ended(self) -> bool:
        """Whether the server closes the TCP connection now."""
        try:
            while True:
                self.hear()
        except EOFError:
            return True
        except TimeoutError:
            return False

    # The ordinary beginning

    def sasl(self, mechanism: str = "ANONYMOUS", response: bytes = b"") -> int:
        """SASL to its outcome code."""
        self.send(SASL_HEADER)
        assert self.read(8) == SASL_HEADER
        self.until(SASL_MECHANISMS)
        self.send(frame(performative(SASL_INIT, [Symbol(mechanism), response, "localhost"]), kind=1))
        return int(str(self.until(SASL_OUTCOME).field(0)))

    def open(self, max_frame_size: int = 65536) -> None:
        self.send(AMQP_HEADER)
        assert self.read(8) == AMQP_HEADER
        self.say(OPEN, ["wire", "localhost", UInt(max_frame_size), UShort(65535)])
        self.until(OPEN)

    def begin(self, channel: int = 0, window: int = 1_000_000) -> None:
        self.say(BEGIN, [None, UInt(0), UInt(window), UInt(window), UInt(1_000_000)], channel=channel)
        self.until(BEGIN)

    def attach(
        self,
        handle: int,
        role: bool,
        address: str,
        *,
        settled: bool = False,
        channel: int = 0,
        name: str | None = None,
    ) -> Frame:
        """Attach a link; the answer is the server's attach, or its detach when it refuses."""
        self.say_attach(handle, role, address, settled=settled, channel=channel, name=name)
        answer = self.until(ATTACH)
        if answer.field(5) is None and answer.field(6) is None:
            return self.until(DETACH)
        return answer

    def say_attach(
        self,
        handle: int,
        role: bool,
        address: str,
        *,
        settled: bool = False,
        channel: int = 0,
        name: str | None = None,
    ) -> None:
        near, far = [f"{name or 'link'}-end"], [address]
        fields: list[object] = [
            name or f"link-{channel}-{handle}-{role}",
            UInt(handle),
            role,
            UByte(1 if settled else 0),
            UByte(0 if settled else 1),
            Described(ULong(0x28), far if role == RECEIVER else near),
            Described(ULong(0x29), near if role == RECEIVER else far),
            None,
            None,
            UInt(0) if role == SENDER else None,
        ]
        self.say(ATTACH, fields, channel=channel)

    def grant(
        self, handle: int, credit: int, *, count: int = 0, channel: int = 0, window: int = 1_000_000
    ) -> None:
        self.say(
            FLOW,
            [UInt(0), UInt(window), UInt(0), UInt(window), UInt(handle), UInt(count), UInt(credit)],
            channel=channel,
        )

    def transfer(
        self,
        handle: int,
        delivery: int,
        payload: bytes,
        *,
        more: bool = False,
        channel: int = 0,
        settled: bool = False,
    ) -> None:
        tag = struct.pack(">I", delivery)
        self.say(TRANSFER, [UInt(handle), UInt(delivery), tag, UInt(0), settled, more], payload, channel)

    def dispose(
        self, first: int, last: int, outcome: int, *, settled: bool = False, channel: int = 0
    ) -> None:
        """As a receiver: say what became of deliveries."""
        self.say(
            DISPOSITION,
            [True, UInt(first), UInt(last), settled, Described(ULong(outcome), [])],
            channel=channel,
        )

    def send_message(self, handle: int, delivery: int, payload: bytes, *, channel: int = 0) -> Frame:
        """Send one message and wait for its disposition."""
        self.transfer(handle, delivery, payload, channel=channel)
        return self.until(DISPOSITION, DETACH)

    def complete(self, count: int, timeout: float, *, channel: int = 0) -> None:
        """Complete the next deliveries of whatever link, one by one, and wait until all of it is confirmed."""
        self.socket.settimeout(timeout)
        taken = confirmed = 0
        while confirmed < count:
            heard = self.until(TRANSFER, DISPOSITION)
            if heard.code == DISPOSITION:
                assert heard.outcome == ACCEPTED, heard
                confirmed += heard.count
            elif heard.field(1) is not None:  # the first frame of a delivery
                delivery = int(str(heard.field(1)))
                self.dispose(delivery, delivery, ACCEPTED, channel=channel)
                taken += 1
        assert taken == confirmed == count

    def put_token(self, token: str, audience: str, *, handles: tuple[int, int] = (100, 101)) -> int:
        """Put a token to `$cbs` (on links of its own); the status code of the reply."""
        request, reply = handles
        self.attach(request, SENDER, "$cbs", name=f"cbs-request-{request}")
        self.attach(reply, RECEIVER, "$cbs", name=f"cbs-reply-{reply}")
        self.grant(reply, 10)
        asked = performative(0x73, ["token-1", None, "$cbs", None, "cbs-reply"])
        properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
        properties_section = encode_value(
            Described(ULong(0x74), {**properties, "expiration": Timestamp(int(time.time() * 1000) + 600_000)})
        )
        self.transfer(request, 0, asked + properties_section + encode_value(Described(ULong(0x77), token)))
        answer = self.until(TRANSFER).payload
        position = 0
        while position < len(answer):
            section, position = decode_value(answer, position, len(answer))
            assert isinstance(section, Described)
            if section.descriptor == 0x74 and isinstance(section.value, dict):
                return int(section.value["status-code"])
        raise AssertionError("the reply of $cbs has no status-code")


def connected(port: int, timeout: float = 10.0) -> Wire:
    """Opened with SASL ANONYMOUS, one session on channel 0, no token put."""
    wire = Wire(port, timeout)
    assert wire.sasl() == 0
    wire.open()
    wire.begin()
    return wire


def logged_in(port: int, timeout: float = 10.0, *, max_frame_size: int = 65536, key: str = KEY) -> Wire:
    """Opened with SASL PLAIN, one session on channel 0: may do everything."""
    wire = Wire(port, timeout)
    assert wire.sasl("PLAIN", f"\0{KEY_NAME}\0{key}".encode()) == 0
    wire.open(max_frame_size)
    wire.begin()
    return wire
