"""The bytes on which SDKs depend, one by one. The server's side, spoken to as Python's client does (channel 1)."""

from __future__ import annotations

from busbar.amqp.connection import Connection
from busbar.amqp.events import Arrived, CreditChanged, Disposed, LinkAttaching, SaslInit
from busbar.amqp.link import Link
from busbar.amqp.types import Described, Symbol, UByte, UInt, UShort
from tests.unit.amqp.fake_wire import AMQP, MECHANISMS, SASL, frame, hexed, server_config, the

TOKEN = hexed("33221100554477668899aabbccddeeff")


def begun(channel_max: int = 4999) -> Connection:
    """A server whose peer has opened and begun on channel 1, with nothing left to send."""
    server = Connection(server_config(channel_max=channel_max))
    server.receive_data(AMQP + frame(0, 0x10, ["c"]) + begin(), 1)
    server.data_to_send()
    return server


def begin() -> bytes:
    return frame(1, 0x11, [None, UInt(1), UInt(65536), UInt(65536)])


def source(address: str, filter: dict[object, object] | None = None) -> Described:
    fields: list[object] = [address]
    if filter is not None:
        fields += [None] * 6 + [filter]
    return Described(0x28, fields)


def target(address: str) -> Described:
    return Described(0x29, [address])


def attached(server: Connection, handle: int, receiver: bool) -> Link:
    """The server's end of a link that the peer attached; not answered yet."""
    fields: list[object] = ["n", UInt(handle), receiver, UByte(0), UByte(1)]
    fields += [source("amqps://localhost:5672/q1", {Symbol("com.microsoft:session-filter"): None})]
    fields += [target("receiver-link-n"), None, None, None if receiver else UInt(0)]
    return the(LinkAttaching, server.receive_data(frame(1, 0x12, fields), 1)).link


def test_sasl_mechanisms_then_ok() -> None:
    server = Connection(server_config())
    assert server.receive_data(SASL, 1) == []
    assert server.data_to_send() == SASL + hexed(
        "00000033 02010000 005340c0 2601e023 04a3074d 53534243 42530550 4c41494e 09414e4f 4e594d4f"
        "55530845 58544552 4e414c"
    )
    init = frame(0, 0x41, [Symbol("ANONYMOUS"), b"", "localhost"], kind=1)
    event = the(SaslInit, server.receive_data(init, 2))
    assert (event.mechanism, event.response, event.hostname) == ("ANONYMOUS", b"", "localhost")
    assert server.data_to_send() == b""
    server.sasl_outcome(0)
    assert server.data_to_send() == hexed("00000010 02010000 005344c0 03015000")


def test_every_mechanism_surfaces() -> None:
    for mechanism in MECHANISMS:
        server = Connection(server_config())
        init = frame(0, 0x41, [Symbol(mechanism), b"\0user\0key"], kind=1)
        event = the(SaslInit, server.receive_data(SASL + init, 1))
        assert (event.mechanism, event.response, event.hostname) == (mechanism, b"\0user\0key", None)


def test_open_and_begin() -> None:
    server = Connection(server_config(channel_max=4999))
    server.receive_data(AMQP + frame(0, 0x10, ["c", "localhost", UInt(1048576), UShort(65535)]) + begin(), 1)
    assert server.data_to_send() == AMQP + hexed(
        "00000024 02000000 005310c0 1705a106 62726f6b 65724070 00010000 60138770 0003a980"
        "0000001f 02000001 005311c0 12056000 01520170 00001388 70000013 8852ff"
    )


def test_attach_answer_of_a_session_receiver() -> None:
    server = begun()
    link = attached(server, 3, receiver=True)
    assert link.source is not None and link.source.address == "amqps://localhost:5672/q1"
    link.accept(
        262144,
        properties={"com.microsoft:locked-until-utc": 0x08DE48C8B4F80000},
        filter={"com.microsoft:session-filter": "s1"},
    )
    assert server.data_to_send() == hexed(
        "000000b5 02000001 005312c0 a80ea101 6e520342 50005001 005328c0 4708a119 616d7170 733a2f2f"
        "6c6f6361 6c686f73 743a3536 37322f71 31404040 404040c1 2302a31c 636f6d2e 6d696372 6f736f66"
        "743a7365 7373696f 6e2d6669 6c746572 a1027331 005329c0 1201a10f 72656365 69766572 2d6c696e"
        "6b2d6e40 40438000 00000000 04000040 40c12a02 a31e636f 6d2e6d69 63726f73 6f66743a 6c6f636b"
        "65642d75 6e74696c 2d757463 8108de48 c8b4f800 00"
    )


def test_refusal() -> None:
    server = begun()
    link = attached(server, 3, receiver=True)
    link.refuse("com.microsoft:session-cannot-be-locked", "session s1 is locked")
    assert server.data_to_send() == hexed(
        "0000001d 02000001 005312c0 100aa101 6e520342 50005001 40404040 43"
        "00000056 02000001 005316c0 49035203 4100531d c04003a3 26636f6d 2e6d6963 726f736f 66743a73"
        "65737369 6f6e2d63 616e6e6f 742d6265 2d6c6f63 6b6564a1 14736573 73696f6e 20733120 6973206c"
        "6f636b65 6440"
    )


def test_grant() -> None:
    server = begun()
    link = attached(server, 2, receiver=False)
    link.accept(262144)
    server.data_to_send()
    link.grant(1000)
    assert server.data_to_send() == hexed(
        "00000024 02000001 005313c0 17075201 70000013 88520170 00001388 52024370 000003e8"
    )


def test_drain_answer() -> None:
    server = begun()
    link = attached(server, 3, receiver=True)
    link.accept(262144)
    server.data_to_send()
    window = [UInt(1), UInt(65536), UInt(1), UInt(65536)]
    flow = frame(1, 0x13, [*window, UInt(3), UInt(0), UInt(10), None, True])
    event = the(CreditChanged, server.receive_data(flow, 1))
    assert event.drain and event.link is link and link.credit == 10
    link.drained()
    assert link.credit == 0
    assert server.data_to_send() == hexed(
        "00000023 02000001 005313c0 16095201 70000013 88520170 00001388 5203520a 434341"
    )


def test_send_accepted_and_refused() -> None:
    server = begun()
    link = attached(server, 2, receiver=False)
    link.accept(262144)
    server.data_to_send()
    transfer = frame(
        1, 0x14, [UInt(2), UInt(0), b"\0\0\0\1", UInt(0), False, False], b"\x00\x53\x75\xa0\x02hi"
    )
    (delivery,) = the(Arrived, server.receive_data(transfer, 1)).deliveries
    assert (delivery.id, delivery.tag, delivery.payload) == (0, b"\0\0\0\1", b"\x00\x53\x75\xa0\x02hi")
    assert (delivery.format, delivery.settled, delivery.txn, delivery.oversized) == (0, False, None, False)
    link.accept_deliveries([0])
    assert server.data_to_send() == hexed("00000016 02000001 005315c0 09054143 43410053 2445")
    link.reject_delivery(0, "amqp:not-allowed", "no")
    assert server.data_to_send() == hexed(
        "00000035 02000001 005315c0 28054143 43410053 25c01e01 00531dc0 1803a310 616d7170 3a6e6f74"
        "2d616c6c 6f776564 a1026e6f 40"
    )


def test_delivery_and_dead_letter_confirmed() -> None:
    server = begun()
    link = attached(server, 3, receiver=True)
    link.accept(262144)
    flow = frame(1, 0x13, [UInt(1), UInt(65536), UInt(1), UInt(65536), UInt(3), UInt(0), UInt(10)])
    server.receive_data(flow, 1)
    link.deliver([b""] * 7, [b"x"] * 7, True)
    server.data_to_send()
    message = hexed(
        "005370c0 06054140 40404300 5372c15c 06a31578 2d6f7074 2d736571 75656e63 652d6e75 6d626572 81"
        "00000000 00000001 a313782d 6f70742d 656e7175 65756564 2d74696d 65830000 019b76da a800a312"
        "782d6f70 742d6c6f 636b6564 2d756e74 696c8300 00019b76 db926000 5373c005 01a1026d 31005375"
        "a0026869"
    )
    link.deliver([TOKEN], [message], False)
    assert server.data_to_send() == (
        hexed("000000a4 02000001 005314c0 1a065203 5207a010 33221100 55447766 8899aabb ccddeeff 434242")
        + message
    )
    assert link.unsettled == 1 and link.credit == 2
    error = Described(0x1D, [Symbol("com.microsoft:dead-letter"), "why", {"DeadLetterReason": "r"}])
    disposition = frame(1, 0x15, [True, UInt(7), UInt(7), False, Described(0x25, [error])])
    event = the(Disposed, server.receive_data(disposition, 1))
    assert (event.ids, event.tags, event.settled) == ([7], [TOKEN], False)
    assert event.outcome is not None and event.outcome.code == 0x25 and event.outcome.error is not None
    assert event.outcome.error.info == {"DeadLetterReason": "r"}
    link.confirm([7], 0x25)
    assert link.unsettled == 0
    assert server.data_to_send() == hexed("00000018 02000001 005315c0 0b054252 07520741 00532545")


def test_denied_settlement() -> None:
    server = begun()
    link = attached(server, 3, receiver=True)
    link.accept(262144)
    server.receive_data(frame(1, 0x13, [UInt(1), UInt(99), UInt(1), UInt(99), UInt(3), UInt(0), UInt(1)]), 1)
    link.deliver([TOKEN], [b"m"], False)
    server.data_to_send()
    server.receive_data(frame(1, 0x15, [True, UInt(0), None, False, Described(0x24, [])]), 1)
    link.deny(0, "com.microsoft:message-lock-lost", "gone")
    sent = server.data_to_send()
    assert sent[8:20] == hexed("005315c0 3905424343 410053")
    assert sent.endswith(b"\x00\x53\x1d\xc0\x29\x03\xa3\x1fcom.microsoft:message-lock-lost\xa1\x04gone\x40")
    link.deny(0, "com.microsoft:message-lock-lost", "gone")
    assert server.data_to_send() == b"", "settled once is settled"


def test_heartbeat_is_eight_bytes() -> None:
    server = Connection(server_config())
    server.receive_data(AMQP + frame(0, 0x10, ["c", None, None, None, UInt(60000)]), 1000)
    server.data_to_send()
    assert server.tick(30_999) == [] and server.data_to_send() == b""
    assert server.tick(31_000) == []
    assert server.data_to_send() == hexed("00000008 02000000")
