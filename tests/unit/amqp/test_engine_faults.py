"""Peers that break the rules: each gets the condition of the rule, with a text that names the value, and no more."""

from __future__ import annotations

import pytest

from busbar.amqp.connection import Connection, ConnectionConfig
from busbar.amqp.errors import AmqpError
from busbar.amqp.events import Arrived, Closed, Event, LinkAttaching, LinkDetached, SessionEnded
from busbar.amqp.types import Array, Described, Symbol, UByte, UInt, ULong, UShort
from tests.unit.amqp.fake_wire import AMQP, SASL, Wire, bodies, frame, names, server_config, the

OPEN = frame(0, 0x10, ["c"])
BEGIN = frame(0, 0x11, [None, UInt(0), UInt(1000), UInt(1000)])
SOURCE = Described(0x28, ["a"])
TARGET = Described(0x29, ["q"])


def attach(handle: int = 0, name: str = "s", receiver: bool = False) -> bytes:
    fields: list[object] = [
        name,
        UInt(handle),
        receiver,
        UByte(0),
        UByte(1),
        SOURCE,
        TARGET,
        None,
        None,
        UInt(0),
    ]
    return frame(0, 0x12, fields)


def transfer(id: int | None = 0, payload: bytes = b"m", handle: int = 0, more: bool = False) -> bytes:
    fields: list[object] = [UInt(handle), None if id is None else UInt(id), b"t", UInt(0), False, more]
    return frame(0, 0x14, fields, payload)


def serving(*sent: bytes, **config: object) -> tuple[Connection, list[Event]]:
    """A server that accepts every link, after it has received each of `sent`; with its last events."""
    server = Connection(server_config(**config))
    events: list[Event] = []
    for data in (AMQP + OPEN + BEGIN, *sent):
        events = server.receive_data(data, 1)
        for event in events:
            if isinstance(event, LinkAttaching):
                event.link.accept(262144)
    return server, events


def error_of(events: list[Event]) -> AmqpError:
    error = the(Closed, events).error
    assert error is not None
    return error


def closes(server: Connection, events: list[Event], condition: str, *words: str) -> None:
    """The connection is over for both sides, for this reason."""
    error = error_of(events)
    assert error.condition == condition, error
    for word in words:
        assert word in error.description, error.description
    last = bodies(server.data_to_send())[-1]
    assert last[8:11] == b"\x00\x53\x18" and condition.encode() in last
    assert server.is_closed and server.receive_data(OPEN, 2) == [] and server.data_to_send() == b""


FIELDS_OF_CLOSE = [
    # what is sent after open and begin, the condition, words of the text
    (b"\0\0\0\x07\x02\0\0\0", "amqp:connection:framing-error", "7 bytes", "8 to 65536"),
    (b"\xff\xff\xff\xff\x02\0\0\0", "amqp:connection:framing-error", "4294967295", "65536"),
    (b"\0\x01\0\x01\x02\0\0\0", "amqp:connection:framing-error", "65537", ""),
    (b"\0\0\0\x08\x01\0\0\0", "amqp:connection:framing-error", "data offset of 1", ""),
    (b"\0\0\0\x08\x03\0\0\0", "amqp:connection:framing-error", "data offset of 3", ""),
    (b"\0\0\0\x08\x02\x01\0\0", "amqp:connection:framing-error", "type 1", ""),
    (b"\0\0\0\x09\x02\0\0\0\x40", "amqp:decode-error", "not a described list", ""),
    (b"\0\0\0\x0c\x02\0\0\0\0\x53\x99\x45", "amqp:decode-error", "0x99", ""),
    (b"\0\0\0\x0c\x02\0\0\0\0\x53\x12\xc0", "amqp:decode-error", "cut off", ""),
    (b"\0\0\0\x0d\x02\0\0\0\0\x53\x12\x45\x40", "amqp:decode-error", "1 bytes follow", ""),
    (b"\0\0\0\x0c\x02\0\0\0\0\x53\x12\x40", "amqp:decode-error", "attach should be a list", ""),
    (b"\0\0\0\x0c\x02\0\0\0\0\x53\x14\x45", "amqp:invalid-field", "transfer.handle", ""),
    (b"\0\0\0\x0c\x02\0\0\0\0\x53\x15\x45", "amqp:invalid-field", "role and first", ""),
    (b"\0\0\0\x0c\x02\0\0\0\0\x53\x13\x45", "amqp:invalid-field", "flow", ""),
    (OPEN, "amqp:illegal-state", "open came twice", ""),
    (BEGIN, "amqp:illegal-state", "channel 0", "already"),
    (frame(7, 0x17, []), "amqp:not-allowed", "channel 7", "no session"),
    (frame(256, 0x11, [None, UInt(0), UInt(1), UInt(1)]), "amqp:connection:framing-error", "256", "255"),
    (frame(1, 0x11, [None, None, UInt(1), UInt(1)]), "amqp:invalid-field", "next-outgoing-id", "missing"),
    (frame(1, 0x11, [None, UInt(1), "x", UInt(1)]), "amqp:invalid-field", "incoming-window", "'x'"),
    (frame(1, 0x11, [UShort(3), UInt(1), UInt(1), UInt(1)]), "amqp:invalid-field", "remote-channel is 3", ""),
    (frame(0, 0x12, [None, UInt(1), True]), "amqp:invalid-field", "attach.name", "missing"),
    (frame(0, 0x12, ["n", None, True]), "amqp:invalid-field", "attach.handle", "missing"),
    (frame(0, 0x12, ["n", UInt(1)]), "amqp:invalid-field", "attach.role", "missing"),
    (frame(0, 0x12, ["n", UInt(256), True]), "amqp:connection:framing-error", "256", "handle-max is 255"),
    (frame(0, 0x12, ["n", UInt(1), True, UByte(3)]), "amqp:invalid-field", "snd-settle-mode", "0 to 2"),
    (frame(0, 0x12, ["n", UInt(1), True, None, UByte(2)]), "amqp:invalid-field", "rcv-settle-mode", ""),
    (frame(0, 0x12, ["n", UInt(1), True, None, None, "q"]), "amqp:invalid-field", "terminus", "'q'"),
    (
        frame(0, 0x12, ["n", UInt(1), True, None, None, Described(0x99, [])]),
        "amqp:invalid-field",
        "terminus",
        "153",
    ),
    (
        frame(0, 0x12, ["n", UInt(1), True, None, None, Described(0x28, [UInt(1)])]),
        "amqp:invalid-field",
        "address",
        "string",
    ),
    (frame(0, 0x13, [UInt(1), None, UInt(1), UInt(1)]), "amqp:invalid-field", "incoming-window", ""),
    (frame(0, 0x13, [UInt(1), "x", UInt(1), UInt(1)]), "amqp:decode-error", "a uint", "0xa1"),
    (frame(0, 0x15, [True, None]), "amqp:invalid-field", "first", ""),
    (frame(0, 0x15, [True, UInt(0), None, True, "x"]), "amqp:invalid-field", "delivery state", ""),
    (frame(0, 0x15, [True, UInt(0), None, True, Described(0x99, [])]), "amqp:invalid-field", "153", ""),
    (frame(0, 0x16, [None]), "amqp:invalid-field", "detach.handle", "missing"),
    (frame(0, 0x18, [Described(0x99, [])]), "amqp:invalid-field", "amqp:error:list", ""),
]


@pytest.mark.parametrize(("sent", "condition", "one", "two"), FIELDS_OF_CLOSE)
def test_wrong_frames_close_the_connection(sent: bytes, condition: str, one: str, two: str) -> None:
    server, events = serving(sent)
    closes(server, events, condition, one, two)


@pytest.mark.parametrize(
    "header",
    [b"GET / HT", b"AMQP\x00\x00\x09\x01", b"AMQP\x02\x01\x00\x00", b"AMQP\x03\x01\x00\x01", bytes(8)],
)
def test_wrong_header_is_answered_with_the_right_one(header: bytes) -> None:
    server = Connection(server_config())
    assert error_of(server.receive_data(header, 1)).condition == "amqp:connection:framing-error"
    assert server.data_to_send() == SASL
    assert server.is_closed


def test_frames_before_open() -> None:
    server = Connection(server_config())
    error = error_of(server.receive_data(AMQP + BEGIN, 1))
    assert error.condition == "amqp:illegal-state" and "before open" in error.description
    assert server.data_to_send() == AMQP


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ([], "container-id"),
        ([UInt(1)], "container-id"),
        (["c", UInt(1)], "hostname"),
        (["c", None, UInt(511)], "at least 512"),
        (["c", None, None, UInt(65536)], "channel-max"),
        (["c", None, None, None, "x"], "idle-time-out"),
        (["c"] + [None] * 8 + ["x"], "properties"),
    ],
)
def test_wrong_open(fields: list[object], word: str) -> None:
    server = Connection(server_config())
    error = error_of(server.receive_data(AMQP + frame(0, 0x10, fields), 1))
    assert error.condition == "amqp:invalid-field" and word in error.description


@pytest.mark.parametrize(
    ("sent", "word"),
    [
        (frame(0, 0x41, [Symbol("SCRAM")], kind=1), "'SCRAM' was not offered"),
        (frame(0, 0x41, [], kind=1), "mechanism is missing"),
        (frame(0, 0x41, [Symbol("PLAIN"), "text"], kind=1), "initial-response"),
        (frame(0, 0x43, [b""], kind=1), "0x43"),
        (frame(0, 0x41, [Symbol("PLAIN")], kind=0), "type 0"),
        (b"\x00\x00\x10\x01\x02\x01\x00\x00", "8 to 4096"),
        (AMQP + OPEN, "8 to 4096"),
    ],
)
def test_wrong_sasl(sent: bytes, word: str) -> None:
    server = Connection(server_config())
    assert word in error_of(server.receive_data(SASL + sent, 1)).description
    assert server.is_closed


def test_too_much_ahead_of_the_sasl_outcome() -> None:
    server = Connection(server_config())
    server.receive_data(SASL + frame(0, 0x41, [Symbol("PLAIN")], kind=1), 1)
    assert server.receive_data(bytes(60_000), 1) == []
    assert error_of(server.receive_data(bytes(60_000), 1)).condition == "amqp:connection:framing-error"


def test_symbolic_and_wide_descriptors_are_understood() -> None:
    server = Connection(server_config())
    wide = b"\x00\x80" + (0x10).to_bytes(8, "big") + b"\xc0\x04\x01\xa1\x01c"
    opened = (8 + len(wide)).to_bytes(4, "big") + b"\x02\0\0\0" + wide
    assert names(server.receive_data(AMQP + opened, 1)) == ["Opened"]
    begin = frame(0, Symbol("amqp:begin:list"), [None, UInt(0), UInt(1000), UInt(1000)])
    source = Described(Symbol("amqp:source:list"), ["a"])
    target = Described(Symbol("amqp:target:list"), ["q"])
    linked = frame(0, Symbol("amqp:attach:list"), ["s", UInt(0), False, None, None, source, target])
    events = server.receive_data(begin + linked, 1)
    link = the(LinkAttaching, events).link
    assert link.target is not None and link.target.address == "q"
    link.accept(1024)
    sent = frame(0, Symbol("amqp:transfer:list"), [UInt(0), UInt(0), b"t"], b"m")
    assert the(Arrived, server.receive_data(sent, 1)).deliveries[0].payload == b"m"
    error = Described(Symbol("amqp:error:list"), ["text-condition", Symbol("symbol text")])
    closed = server.receive_data(frame(0, Symbol("amqp:close:list"), [error]), 1)
    found = error_of(closed)
    assert (found.condition, found.description, found.info) == ("text-condition", "symbol text", None)


@pytest.mark.parametrize(
    ("sent", "condition"),
    [
        (transfer(handle=9), "amqp:session:unattached-handle"),
        (frame(0, 0x16, [UInt(9), True]), "amqp:session:unattached-handle"),
        (frame(0, 0x13, [UInt(1), UInt(1), UInt(1), UInt(1), UInt(9)]), "amqp:session:unattached-handle"),
        (attach(0, "another"), "amqp:session:handle-in-use"),
    ],
)
def test_wrong_handles_end_the_session(sent: bytes, condition: str) -> None:
    server, events = serving(attach(), sent + transfer() + attach(3))
    ended = the(SessionEnded, events)
    assert ended.error is not None and ended.error.condition == condition
    assert names(events) == ["SessionEnded"], "what follows is not read"
    assert condition.encode() in bodies(server.data_to_send())[-1]
    assert server.receive_data(frame(0, 0x17, []), 1) == [], "the peer's end is no news"
    assert server.data_to_send() == b"" and server.sessions == {}
    assert names(server.receive_data(BEGIN, 1)) == ["SessionBegun"]


def test_resumed_transfer_detaches_the_link() -> None:
    resumed = frame(0, 0x14, [UInt(0), UInt(0), b"t", UInt(0), False, False, None, None, True], b"m")
    server, events = serving(attach(), resumed)
    error = the(LinkDetached, events).error
    assert error is not None and error.condition == "amqp:not-implemented"
    server.data_to_send()
    assert server.receive_data(frame(0, 0x16, [UInt(0), True]), 1) == []
    assert server.data_to_send() == b""


def test_attach_with_unsettled_is_a_fresh_link() -> None:
    fields = [
        "s",
        UInt(0),
        False,
        UByte(0),
        UByte(1),
        SOURCE,
        TARGET,
        {b"t": Described(0x24, [])},
        None,
        UInt(0),
    ]
    _, events = serving(frame(0, 0x12, fields))
    assert names(events) == ["LinkAttaching"]


def test_detach_without_close_is_mirrored() -> None:
    server, _ = serving(attach())
    server.data_to_send()
    event = the(LinkDetached, server.receive_data(frame(0, 0x16, [UInt(0)]), 1))
    assert not event.closed
    assert server.data_to_send() == bytes.fromhex("00000010 02000000 005316c0 03024342")


def test_handle_of_a_refused_link_may_be_used_again() -> None:
    """Python does not answer a refusal."""
    server = Connection(server_config())
    (event,) = server.receive_data(AMQP + OPEN + BEGIN + attach(), 1)[2:]
    assert isinstance(event, LinkAttaching)
    event.link.refuse("amqp:not-found", "none")
    assert names(server.receive_data(attach(0, "second"), 1)) == ["LinkAttaching"]


def test_transfers_before_the_link_is_accepted_are_the_gateways_to_judge() -> None:
    server = Connection(server_config())
    events = server.receive_data(AMQP + OPEN + BEGIN + attach() + transfer(), 1)
    assert names(events)[2:] == ["LinkAttaching", "Arrived"]
    link = the(LinkAttaching, events).link
    link.accept(1000)
    link.accept_deliveries([the(Arrived, events).deliveries[0].id])
    assert [part[10] for part in bodies(server.data_to_send())[-2:]] == [0x12, 0x15]


def test_wrong_deliveries() -> None:
    server, events = serving(attach(), transfer(None))
    closes(server, events, "amqp:invalid-field", "delivery-id", "missing")
    server, events = serving(attach(), transfer(1, more=True) + transfer(2))
    closes(server, events, "amqp:invalid-field", "delivery-id is 2", "delivery 1")
    server, events = serving(attach(receiver=True), transfer())
    closes(server, events, "amqp:invalid-field", "handle 0")


def test_limits_of_sessions_and_links() -> None:
    server, events = serving(frame(1, 0x11, [None, UInt(0), UInt(1), UInt(1)]), max_sessions=1)
    assert events == [] and b"amqp:resource-limit-exceeded" in bodies(server.data_to_send())[-1]
    server, events = serving(attach(0) + attach(1, "b"), attach(2, "c"), max_links=2)
    assert events == [] and b"amqp:resource-limit-exceeded" in bodies(server.data_to_send())[-1]
    assert server.receive_data(frame(0, 0x16, [UInt(2), True]), 1) == []
    server.receive_data(frame(0, 0x16, [UInt(0), True]), 1)
    assert names(server.receive_data(attach(0, "d"), 1)) == ["LinkAttaching"], "room again"


def test_limit_of_unfinished_deliveries() -> None:
    server = Connection(server_config(max_partial_bytes=3300))
    server.receive_data(AMQP + OPEN + BEGIN, 1)
    last: list[Event] = []
    for handle in range(5):
        for event in server.receive_data(attach(handle, str(handle)), 1):
            assert isinstance(event, LinkAttaching)
            event.link.accept(262144)
        last = server.receive_data(transfer(handle, bytes(1000), handle, more=True), 1)
        if last:
            break
    assert error_of(last).condition == "amqp:resource-limit-exceeded"
    assert handle == 3


def test_unfinished_deliveries_are_forgotten_with_their_link() -> None:
    server, _ = serving(attach(), transfer(0, bytes(1000), more=True), max_partial_bytes=1500)
    server.receive_data(frame(0, 0x16, [UInt(0), True]), 1)
    (event,) = server.receive_data(attach(), 1)
    assert isinstance(event, LinkAttaching)
    event.link.accept(262144)
    assert server.receive_data(transfer(1, bytes(1000), more=True), 1) == []


def test_long_texts_fit_into_the_frames_of_the_peer() -> None:
    server = Connection(server_config())
    small = frame(0, 0x10, ["c", None, UInt(512)])
    events = server.receive_data(AMQP + small + BEGIN + attach(), 1)
    the(LinkAttaching, events).link.refuse("amqp:not-found", "é" * 5000)
    assert all(len(part) <= 512 for part in bodies(server.data_to_send()))
    server.close("amqp:internal-error", "x" * 100_000)
    assert all(len(part) <= 512 for part in bodies(server.data_to_send()))


def test_client_against_wrong_servers() -> None:
    for data, condition in (
        (b"HTTP/1.1", "amqp:connection:framing-error"),
        (AMQP, "amqp:connection:framing-error"),
        (SASL + frame(0, 0x42, [b"challenge"], kind=1), "amqp:not-implemented"),
        (SASL + frame(0, 0x40, [Array(0xA3, [Symbol("GSSAPI")])], kind=1), "amqp:unauthorized-access"),
        (SASL + frame(0, 0x44, [UByte(2)], kind=1), "amqp:unauthorized-access"),
    ):
        wire = Wire()
        wire.client.open()
        assert error_of(wire.client.receive_data(data, 1)).condition == condition
        assert wire.client.is_closed
    wire = Wire()
    wire.start()
    begun = frame(5, 0x11, [None, UInt(0), UInt(1), UInt(1)])
    assert error_of(wire.client.receive_data(begun, 1)).condition == "amqp:not-allowed"


def test_configuration_is_checked() -> None:
    with pytest.raises(ValueError, match="512"):
        ConnectionConfig("c", max_frame_size=511)
    with pytest.raises(ValueError, match="65535"):
        ConnectionConfig("c", channel_max=65536)


def test_max_message_size_of_any_value() -> None:
    for value, expected in ((ULong(0), 0), (ULong(5), 5), (ULong((1 << 64) - 1), 0), ("x", 0)):
        fields = ["s", UInt(0), False, None, None, SOURCE, TARGET, None, None, UInt(0), value]
        _, events = serving(frame(0, 0x12, fields))
        assert the(LinkAttaching, events).link.remote_max_message_size == expected


def test_frames_of_one_byte_are_not_free() -> None:
    server, _ = serving(attach(), transfer(0, b"x", more=True), max_partial_bytes=1000)
    events: list[Event] = []
    count = 1
    while count < 30 and not events:
        count += 1
        events = server.receive_data(transfer(None, b"x", more=True), 1)
    assert error_of(events).condition == "amqp:resource-limit-exceeded" and count == 16


def test_handles_of_refused_links_are_counted() -> None:
    server = Connection(server_config(max_links=2))
    server.receive_data(AMQP + OPEN + BEGIN, 1)
    for handle in range(4):
        for event in server.receive_data(attach(handle, str(handle)), 1):
            assert isinstance(event, LinkAttaching)
            event.link.refuse("amqp:not-found", "none")
    error = error_of(server.receive_data(attach(4, "4"), 1))
    assert error.condition == "amqp:resource-limit-exceeded" and "5 handles" in error.description


def test_names_have_a_limit() -> None:
    server, events = serving(attach(0, "n" * 1025))
    closes(server, events, "amqp:invalid-field", "1025", "1024")


def test_own_mistakes_are_refused_before_a_byte_is_written() -> None:
    server, _ = serving(attach(receiver=True))
    (link,) = server.sessions[0].links.values()
    server.data_to_send()
    with pytest.raises(ValueError, match="2 tags for 1 payloads"):
        link.deliver([b"1", b"2"], [b"x"], False)
    with pytest.raises(ValueError, match="33 bytes"):
        link.deliver([b"1", bytes(33)], [b"x", b"y"], False)
    assert server.data_to_send() == b""
