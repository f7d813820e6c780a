"""Any bytes yield events or Closed, never an exception, and what the engine answers is well-formed.

Three kinds of peer: noise, a valid dialogue with bytes changed, and well-formed frames with senseless fields. The
engine under test reacts to its events as a gateway would. `BUSBAR_DEEP=1` runs many more.
"""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.amqp.codec import decode_value
from busbar.amqp.connection import Connection
from busbar.amqp.events import (
    Arrived,
    Closed,
    CreditChanged,
    Disposed,
    Event,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    Opened,
    SaslInit,
    SaslOutcome,
    SessionBegun,
    SessionEnded,
    SettledDisposed,
)
from busbar.amqp.link import Link
from busbar.amqp.outcomes import ACCEPTED, REJECTED, empty_state, transactional_state
from busbar.amqp.performatives import Terminus
from busbar.amqp.states import ATTACHED
from busbar.amqp.types import Array, Described, Symbol, UByte, UInt, ULong, UShort
from tests.unit.amqp.fake_wire import AMQP, SASL, Wire, bodies, client_config, frame, server_config

DEEP = os.environ.get("BUSBAR_DEEP") == "1"
MANY = settings(max_examples=30_000 if DEEP else 200, deadline=None)

KINDS = (
    SaslInit,
    SaslOutcome,
    Opened,
    SessionBegun,
    SessionEnded,
    LinkAttaching,
    LinkAttached,
    LinkDetached,
    Arrived,
    CreditChanged,
    Disposed,
    SettledDisposed,
    Closed,
)


class Gateway:
    """Answers events as the real one does, and checks after each call that the engine is sound."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.closed = 0
        self.now = 1

    def take(self, data: bytes) -> None:
        self.now += 1
        for event in self.connection.receive_data(data, self.now):
            self.react(event)
        for event in self.connection.tick(self.now):
            self.react(event)
        self.check()

    def react(self, event: Event) -> None:
        assert isinstance(event, KINDS)
        assert self.closed == 0, "nothing follows Closed"
        if isinstance(event, SaslInit):
            self.connection.sasl_outcome(0 if len(event.response) % 5 != 4 else 1)
        elif isinstance(event, LinkAttaching):
            self.attach(event.link)
        elif isinstance(event, Arrived):
            ids = [delivery.id for delivery in event.deliveries]
            event.link.accept_deliveries(ids[::2])
            for id in ids[1::2]:
                event.link.reject_delivery(id, "amqp:not-allowed", "odd")
            event.link.grant(100)
        elif isinstance(event, CreditChanged):
            count = min(event.link.credit, 3)
            if event.link.sending:
                event.link.deliver(
                    [bytes([n]) * 16 for n in range(count)], [bytes(700 * n) for n in range(count)], False
                )
                if event.drain:
                    event.link.drained()
        elif isinstance(event, Disposed):
            assert event.ids
            if not event.settled and event.link.sending:
                event.link.confirm(event.ids[:-1], ACCEPTED)
                event.link.deny(event.ids[-1], "com.microsoft:message-lock-lost", "gone")
        elif isinstance(event, SettledDisposed):
            event.session.deny_settled(event.first, event.last, "amqp:not-allowed", "settled")
        elif isinstance(event, Closed):
            self.closed += 1

    def attach(self, link: Link) -> None:
        size = len(link.name)
        if size % 7 == 6:
            link.refuse("amqp:not-found", "no")
        elif size % 7 != 5:  # 5: never answered
            link.accept(2000, {"p": 1}, {"f": "x"} if size % 7 == 4 else None)
            if not link.sending:
                link.grant(10)

    def check(self) -> None:
        for body in bodies(self.connection.data_to_send()):
            if len(body) > 8:
                value, _ = decode_value(body, 8, len(body))
                assert isinstance(value, Described) and isinstance(value.value, list)
        connection = self.connection
        attached = 0
        for session in connection.sessions.values():
            for link in session.links.values():
                assert link.credit >= 0 and link.unsettled >= 0 and link.queued >= 0
                attached += link.state <= ATTACHED
            assert session.remote_window >= 0
            unsettled = sum(link.unsettled for link in session.links.values())
            assert unsettled == len(session.unsettled) + len(session.awaiting)
        assert connection._wire.links >= attached >= 0 and connection._wire.partial_bytes >= 0


def _dialogue() -> tuple[bytes, bytes]:
    """The bytes of a client and of a server that talk about everything."""
    wire = Wire(server_config(max_frame_size=600), client_config(max_frame_size=600, incoming_window=8))
    up, down = bytearray(), bytearray()
    client_send, server_send = wire.client.data_to_send, wire.server.data_to_send

    def run() -> None:
        while True:
            a, b = client_send(), server_send()
            if not a and not b:
                return
            up.extend(a)
            down.extend(b)
            for event in wire.server.receive_data(a, 1) if a else []:
                if isinstance(event, SaslInit):
                    wire.server.sasl_outcome(0)
                elif isinstance(event, LinkAttaching):
                    wire.accept(event.link)
            if b:
                wire.client.receive_data(b, 1)

    wire.client.open()
    session = wire.client.begin()
    sender = session.attach_sender("s", Terminus("me"), Terminus("q"), 0, 1, {"k": "v"})
    receiver = session.attach_receiver("recv", Terminus("q", {"f": "x"}), Terminus("me"), 0, 1)
    run()
    sender.deliver([b"1", b"2", b"3"], [b"one", bytes(1500), b"three"], False, 0x80013700)
    sender.deliver([b"4"], [b"four"], False, 0, transactional_state(b"T", b""))
    receiver.grant(20)
    run()
    theirs = next(link for link in wire.server.sessions[0].links.values() if link.sending)
    theirs.deliver([bytes([n]) * 16 for n in range(12)], [bytes(100 * n) for n in range(12)], False)
    run()
    receiver.dispose([0, 1, 2], empty_state(ACCEPTED), settled=False)
    receiver.dispose([3], empty_state(REJECTED), settled=False)
    receiver.dispose([4, 5], transactional_state(b"T", empty_state(ACCEPTED)), settled=False)
    receiver.dispose([6, 7], empty_state(ACCEPTED))
    run()
    receiver.dispose([6, 7], transactional_state(b"T", empty_state(ACCEPTED)), settled=False)
    run()
    theirs.confirm([0, 1, 2], ACCEPTED)
    theirs.deny(3, "amqp:not-allowed", "no")
    receiver.grant(5, drain=True)
    run()
    theirs.drained()
    run()
    sender.detach()
    theirs.detach("amqp:link:detach-forced", "bye")
    run()
    session.end()
    wire.client.close("amqp:internal-error", "done")
    run()
    assert wire.client.is_closed and wire.server.is_closed
    return bytes(up), bytes(down)


CLIENT_BYTES, SERVER_BYTES = _dialogue()


def _client() -> Connection:
    client = Connection(client_config(max_frame_size=600))
    client.open()
    session = client.begin()
    session.attach_sender("s", Terminus("me"), Terminus("q"), 0, 1)
    session.attach_receiver("recv", Terminus("q"), Terminus("me"), 0, 1).grant(10)
    return client


def _server() -> Connection:
    return Connection(server_config(max_frame_size=600, channel_max=3, max_links=8, max_sessions=3))


def _feed(gateway: Gateway, data: bytes, cuts: list[int]) -> None:
    start = 0
    for cut in sorted({cut % (len(data) + 1) for cut in cuts}):
        gateway.take(data[start:cut])
        start = cut
    gateway.take(data[start:])


CUTS = st.lists(st.integers(0, 10_000), max_size=6)


@MANY
@given(st.sampled_from([b"", AMQP, SASL, AMQP + frame(0, 0x10, ["c"])]), st.binary(max_size=300), CUTS)
def test_noise(start: bytes, noise: bytes, cuts: list[int]) -> None:
    _feed(Gateway(_server()), start + noise, cuts)
    _feed(Gateway(_client()), start + noise, cuts)


CHANGE = st.tuples(
    st.sampled_from(["flip", "insert", "delete", "repeat"]),
    st.integers(0, 1 << 16),
    st.binary(min_size=1, max_size=8),
)


def _changed(data: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    out = bytearray(data)
    for how, where, octets in changes:
        at = where % (len(out) + 1)
        if how == "flip":
            out[at : at + len(octets)] = octets
        elif how == "insert":
            out[at:at] = octets
        elif how == "delete":
            del out[at : at + len(octets)]
        else:
            out[at:at] = out[at : at + octets[0]]
    return bytes(out)


@MANY
@given(st.lists(CHANGE, max_size=4), CUTS)
def test_a_changed_dialogue(changes: list[tuple[str, int, bytes]], cuts: list[int]) -> None:
    _feed(Gateway(_server()), _changed(CLIENT_BYTES, changes), cuts)
    _feed(Gateway(_client()), _changed(SERVER_BYTES, changes), cuts)


@MANY
@given(st.lists(CHANGE, min_size=1, max_size=3), st.data())
def test_frames_changed_inside(changes: list[tuple[str, int, bytes]], data: st.DataObject) -> None:
    """The frame sizes stay right, so that the change reaches the performatives."""
    gateway = Gateway(_server())
    frames = bodies(CLIENT_BYTES)
    chosen = data.draw(st.integers(2, len(frames) - 1))
    gateway.take(SASL)
    for index, body in enumerate(frames):
        if index == 1:
            gateway.take(AMQP)
        content = _changed(body[8:], changes) if index == chosen else body[8:]
        gateway.take((8 + len(content)).to_bytes(4, "big") + body[4:8] + content)


SMALL = st.sampled_from([0, 1, 2, 3, 4, 7, 255, 256, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    SMALL.map(UInt),
    SMALL.map(ULong),
    st.sampled_from([0, 1, 2, 255]).map(UByte),
    st.sampled_from([0, 1, 2, 300]).map(UShort),
    st.integers(-5, 5),
    st.binary(max_size=4),
    st.text(max_size=7),
    st.sampled_from(["ANONYMOUS", "PLAIN", "amqp:error"]).map(Symbol),
)
CODES = st.sampled_from([0x1D, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x30, 0x33, 0x34, 0x99])
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=3), st.binary(max_size=2)), inner, max_size=3),
        st.builds(Described, CODES.map(ULong), st.lists(inner, max_size=4)),
        st.builds(Described, CODES.map(ULong), inner),
        st.just(Array(0xA3, [Symbol("x")])),
    ),
    max_leaves=8,
)


def _window(draw: st.DrawFn) -> list[object]:
    return [UInt(draw(SMALL)), UInt(draw(SMALL)), UInt(draw(SMALL)), UInt(draw(SMALL))]


@st.composite
def _frames(draw: st.DrawFn) -> bytes:
    """A frame that is plausible in most fields, and anything in some."""
    channel = draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4]))
    code = draw(
        st.sampled_from([0x10, 0x11, 0x12, 0x12, 0x13, 0x13, 0x14, 0x14, 0x14, 0x15, 0x15, 0x16, 0x17, 0x18])
    )
    handle = UInt(draw(st.sampled_from([0, 0, 1, 2, 256])))
    payload = b""
    fields: list[object]
    if code == 0x10:
        fields = ["c", None, UInt(draw(SMALL)), UShort(9), UInt(draw(SMALL))]
    elif code == 0x11:
        fields = [None, UInt(draw(SMALL)), UInt(draw(SMALL)), UInt(draw(SMALL))]
    elif code == 0x12:
        source, target = Described(ULong(0x28), ["a"]), Described(ULong(0x29), ["b"])
        fields = [draw(st.text(max_size=7)), handle, draw(st.booleans()), UByte(0), UByte(1), source, target]
        fields += [None, None, UInt(draw(SMALL)), ULong(draw(SMALL))]
    elif code == 0x13:
        fields = _window(draw)
        fields += [
            handle,
            UInt(draw(SMALL)),
            UInt(draw(SMALL)),
            None,
            draw(st.booleans()),
            draw(st.booleans()),
        ]
    elif code == 0x14:
        fields = [handle, UInt(draw(SMALL)), b"t", UInt(0), draw(st.booleans()), draw(st.booleans())]
        fields += [
            None,
            draw(VALUE) if draw(st.booleans()) else None,
            None,
            draw(st.sampled_from([None, True])),
        ]
        payload = bytes(draw(st.sampled_from([0, 1, 300, 500])))
    elif code == 0x15:
        fields = [draw(st.booleans()), UInt(draw(SMALL)), UInt(draw(SMALL)), draw(st.booleans()), draw(VALUE)]
        if draw(st.booleans()):
            fields[4] = Described(ULong(draw(st.integers(0x23, 0x27))), [])
    elif code == 0x16:
        fields = [handle, draw(st.booleans()), draw(VALUE)]
    else:
        fields = [draw(VALUE)] if draw(st.booleans()) else []
    for at in draw(st.lists(st.integers(0, 20), max_size=2)):
        if at < len(fields):
            fields[at] = draw(VALUE)
    if draw(st.integers(0, 9)) == 0:
        fields = fields[: draw(st.integers(0, len(fields)))]
    return frame(channel, code, fields, payload)


@MANY
@given(st.lists(_frames(), max_size=12))
def test_senseless_frames(frames: list[bytes]) -> None:
    hello = frame(0, 0x10, ["c"]) + frame(0, 0x11, [None, UInt(0), UInt(5), UInt(5)])
    link = ["n", UInt(0), False, None, None, Described(0x28, ["a"]), Described(0x29, ["b"])]
    back = ["nn", UInt(1), True, None, None, Described(0x28, ["a"]), Described(0x29, ["b"])]
    gateway = Gateway(_server())
    gateway.take(AMQP + hello + frame(0, 0x12, link) + frame(0, 0x12, back))
    gateway.take(frame(0, 0x13, [UInt(1), UInt(5), UInt(0), UInt(5), UInt(1), UInt(0), UInt(9)]))
    for sent in frames:
        if len(sent) <= 600:
            gateway.take(sent)


def test_the_dialogue_itself_is_understood() -> None:
    gateway = Gateway(Connection(server_config(max_frame_size=600)))
    gateway.take(CLIENT_BYTES)
    assert gateway.closed == 1 and gateway.connection.remote_container_id == "client"
