"""Credit, windows, frames: what may be on its way, and in how many pieces. Time: heartbeats and silence."""

from __future__ import annotations

import pytest

from busbar.amqp.connection import Connection
from busbar.amqp.credit import MASK, delivered, sendable, serial_distance, window_left
from busbar.amqp.events import Arrived, Closed, CreditChanged, Disposed, LinkAttaching
from busbar.amqp.link import Link
from busbar.amqp.outcomes import ACCEPTED, empty_state
from busbar.amqp.performatives import Terminus
from busbar.amqp.types import Described, UInt
from tests.unit.amqp.fake_wire import AMQP, Wire, bodies, client_config, frame, names, of, server_config, the


def test_serial_numbers() -> None:
    assert serial_distance(5, 9) == 4 and serial_distance(9, 5) == -4
    assert serial_distance(MASK, 2) == 3 and serial_distance(2, MASK) == -3
    assert sendable(0, 10, 4) == 6, "ten from the start, four are out"
    assert sendable(0, 3, 4) == 0, "lowered below what is out"
    assert sendable(MASK - 1, 10, 3) == 5, "around the end of the numbers"
    assert window_left(1, 2048, 1) == 2048
    assert window_left(MASK, 4, 1) == 2
    assert window_left(9, 4, 1) == 4, "a peer that claims too much gains nothing"


@pytest.mark.parametrize("size", [0, 1, 400, 470, 471, 472, 473, 474, 475, 512, 5000, 70_000])
def test_deliveries_over_many_frames_both_ways(size: int) -> None:
    wire = Wire(server_config(max_frame_size=512), client_config(max_frame_size=512, incoming_window=200))
    session = wire.start()
    payload = bytes(index % 251 for index in range(size))
    ours, theirs = wire.sender(session)
    ours.deliver([b"tag", b"next"], [payload, b"small"], False)
    data = wire.client.data_to_send()
    assert all(len(part) <= 512 for part in bodies(data))
    events = wire.server.receive_data(data, 1)
    server, _ = wire.run()
    deliveries = [d for event in of(Arrived, events + server) for d in event.deliveries]
    assert [(d.id, d.tag, d.payload) for d in deliveries] == [(0, b"tag", payload), (1, b"next", b"small")]

    ours, theirs = wire.receiver(session)
    ours.grant(10)
    wire.run()
    theirs.deliver([b"T" * 16, b"U" * 16], [payload, b"small"], False)
    assert theirs.credit == 8 and theirs.unsettled + theirs.queued >= 2
    _, client = wire.run()
    deliveries = [d for event in of(Arrived, client) for d in event.deliveries]
    assert [(d.tag, d.payload) for d in deliveries] == [(b"T" * 16, payload), (b"U" * 16, b"small")]
    assert theirs.queued == 0 and theirs.unsettled == 2


def test_only_the_first_frame_names_the_delivery() -> None:
    wire = Wire(client=client_config(max_frame_size=512))
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(1)
    wire.run()
    theirs.deliver([b"T"], [bytes(1000)], False)
    first, second, *_ = bodies(wire.server.data_to_send())
    assert first[8:12] == b"\x00\x53\x14\xc0" and first[14:19] == b"\x43\x43\xa0\x01T"
    assert second[14:20] == b"\x43\x40\x40\x40\x42\x41", "handle; no id, tag or format; not settled; more"


def test_window_closes_and_opens_again() -> None:
    wire = Wire(client=client_config(incoming_window=4, max_frame_size=512))
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(100)
    wire.run()
    payloads = [bytes([n]) * (600 if n % 3 == 0 else 10) for n in range(20)]
    theirs.deliver([bytes([n]) for n in range(20)], payloads, False)
    assert len(bodies(wire.server.data_to_send())) == 4, "no more than the window"
    assert theirs.queued > 0 and theirs.credit == 80
    session.write_flow(None)
    # The client has not seen the four frames: as far as it knows, they are still on their way.
    wire.run()
    assert theirs.queued > 0


def test_window_is_renewed_without_help() -> None:
    wire = Wire(server_config(incoming_window=10), client_config(incoming_window=4, max_frame_size=512))
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(100)
    wire.run()
    payloads = [bytes([n]) * (600 if n % 3 == 0 else 10) for n in range(20)]
    theirs.deliver([bytes([n]) for n in range(20)], payloads, False)
    _, client = wire.run()
    assert [d.payload for event in of(Arrived, client) for d in event.deliveries] == payloads
    assert theirs.queued == 0 and theirs.credit == 80 and theirs.unsettled == 20

    sender, received = wire.sender(session)
    sender.deliver([bytes([n]) for n in range(60)], [b"m"] * 60, True)
    assert sender.queued == 50
    server, _ = wire.run()
    assert sum(len(event.deliveries) for event in of(Arrived, server)) == 60
    assert received.credit == 40


def test_two_links_share_the_window_in_turn() -> None:
    wire = Wire(client=client_config(incoming_window=3, max_frame_size=512))
    session = wire.start()
    pairs = [wire.receiver(session, name) for name in ("one", "two")]
    for ours, _ in pairs:
        ours.grant(10)
    wire.run()
    pairs[0][1].deliver([b"a", b"b"], [bytes(2000), b"x"], False)
    pairs[1][1].deliver([b"c"], [b"y"], False)
    assert pairs[1][1].queued == 1, "behind what came first"
    _, client = wire.run()
    assert [d.tag for event in of(Arrived, client) for d in event.deliveries] == [b"a", b"b", b"c"]
    assert [d.id for event in of(Arrived, client) for d in event.deliveries] == [0, 1, 2]


def test_deliveries_beyond_the_credit_wait() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(2)
    wire.run()
    theirs.deliver([b"1", b"2", b"3"], [b"x"] * 3, False)
    assert theirs.queued == 1 and theirs.credit == 0
    _, client = wire.run()
    assert len(the(Arrived, client).deliveries) == 2
    ours.grant(5)
    server, client = wire.run()
    assert len(the(Arrived, client).deliveries) == 1
    assert theirs.credit == 4 and the(CreditChanged, server).link is theirs


def test_a_link_that_waits_for_credit_does_not_stop_others() -> None:
    wire = Wire()
    session = wire.start()
    poor, rich = wire.receiver(session, "poor"), wire.receiver(session, "rich")
    rich[0].grant(5)
    wire.run()
    poor[1].deliver([b"1"], [b"x"], False)
    rich[1].deliver([b"2"], [b"y"], False)
    _, client = wire.run()
    assert [d.tag for d in the(Arrived, client).deliveries] == [b"2"]


def test_credit_is_lowered() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.receiver(session)
    for credit in (10, 3, 0, 7):
        ours.grant(credit)
        wire.run()
        assert theirs.credit == credit


def test_sends_without_credit_are_taken() -> None:
    wire = Wire()
    wire.grants = 0
    session = wire.start()
    ours, theirs = wire.sender(session)
    ours._sendable = 3  # type: ignore[misc]  # Python assumes credit
    ours.deliver([b"1", b"2"], [b"x", b"y"], False)
    server, _ = wire.run()
    assert len(the(Arrived, server).deliveries) == 2
    assert theirs.credit == 0 and theirs.delivery_count == 2


def test_drain() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(10)
    wire.run()
    theirs.deliver([b"1"], [b"x"], True)
    wire.run()
    ours.grant(9, drain=True)
    server, _ = wire.run()
    event = the(CreditChanged, server)
    assert event.drain and theirs.credit == 9
    theirs.deliver([b"2"], [b"y"], True)
    theirs.drained()
    assert theirs.credit == 0 and theirs.delivery_count == 10
    _, client = wire.run()
    assert names(client) == ["Arrived", "CreditChanged"]
    assert the(CreditChanged, client).drain and ours.credit == 0 and ours.delivery_count == 10
    for link in (ours, theirs):
        assert delivered(link.delivery_count, link.uncounted) == 2, (
            "credit that was given back is no delivery"
        )
    ours.grant(5)
    server, _ = wire.run()
    assert theirs.credit == 5 and not the(CreditChanged, server).drain


def test_drain_waits_for_what_the_window_holds_back() -> None:
    wire = Wire(client=client_config(incoming_window=2))
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(10)
    wire.run()
    theirs.deliver([b"1", b"2", b"3", b"4", b"5"], [b"x"] * 5, True)
    ours.grant(10, drain=True)
    wire.server.receive_data(wire.client.data_to_send(), 1)
    theirs.drained()
    _, client = wire.run()
    assert sum(len(event.deliveries) for event in of(Arrived, client)) == 5
    assert client[-1] is of(CreditChanged, client)[-1], "the answer comes last"
    assert theirs.credit == 0 and ours.credit == 0 and ours.delivery_count == 10 == theirs.delivery_count


def test_drain_that_was_taken_back() -> None:
    server, link = _server_with_receiver()
    drain = frame(0, 0x13, [*_window(), UInt(0), UInt(0), UInt(4), None, True])
    again = frame(0, 0x13, [*_window(), UInt(0), UInt(0), UInt(9), None, False])
    event = the(CreditChanged, server.receive_data(drain + again, 1))
    assert not event.drain and link.credit == 9, "the last flow counts"


def test_echo_is_answered_for_session_and_link() -> None:
    server, link = _server_with_receiver()
    assert server.receive_data(frame(0, 0x13, [*_window(), None, None, None, None, None, True]), 1) == []
    (answer,) = bodies(server.data_to_send())
    assert answer[8:12] == b"\x00\x53\x13\xc0" and answer.endswith(b"\x40\x40\x40")
    echo = frame(0, 0x13, [*_window(), UInt(0), UInt(0), UInt(4), None, False, True])
    assert the(CreditChanged, server.receive_data(echo, 1)).link is link
    (answer,) = bodies(server.data_to_send())
    assert answer.endswith(b"\x43\x43\x52\x04\x43\x42"), "handle 0, count 0, credit 4, available 0, no drain"


def test_flow_of_a_sending_peer_changes_nothing() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.sender(session)
    session.write_flow(ours)
    server, _ = wire.run()
    assert server == [] and theirs.credit == 100


def test_delivery_ids_wrap() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.receiver(session)
    theirs.session.next_delivery_id = MASK - 1
    ours.grant(10)
    wire.run()
    theirs.deliver([b"1", b"2", b"3", b"4"], [b"x"] * 4, False)
    _, client = wire.run()
    ids = [d.id for d in the(Arrived, client).deliveries]
    assert ids == [MASK - 1, MASK, 0, 1]
    ours.dispose(ids, empty_state(ACCEPTED), settled=False)
    assert len(bodies(wire.client.data_to_send())) == 1, "one range around the end of the numbers"
    ours.dispose(ids, empty_state(ACCEPTED), settled=False)
    server, _ = wire.run()
    assert the(Disposed, server).ids == ids
    theirs.confirm(ids, ACCEPTED)
    assert len(bodies(wire.server.data_to_send())) == 1
    assert theirs.unsettled == 0


def test_delivery_count_wraps() -> None:
    server, link = _server_with_receiver()
    link.delivery_count = MASK
    server.receive_data(frame(0, 0x13, [*_window(), UInt(0), UInt(MASK), UInt(3)]), 1)
    assert link.credit == 3
    link.deliver([b"1", b"2"], [b"x", b"y"], True)
    assert link.delivery_count == 1
    server.receive_data(frame(0, 0x13, [*_window(), UInt(0), UInt(MASK), UInt(3)]), 1)
    assert link.credit == 1


def test_disposition_ranges_cost_what_is_unsettled() -> None:
    server, link = _server_with_receiver()
    server.receive_data(frame(0, 0x13, [*_window(), UInt(0), UInt(0), UInt(9)]), 1)
    link.deliver([b"1", b"2", b"3"], [b"x"] * 3, False)
    wide = frame(0, 0x15, [True, UInt(1), UInt(0x7FFFFFFF), True, Described(0x24, [])])
    assert the(Disposed, server.receive_data(wide * 100, 1)).ids == [1, 2]
    backwards = frame(0, 0x15, [True, UInt(0), UInt(0xFFFFFFFF), True, Described(0x24, [])])
    assert server.receive_data(backwards * 100, 1) == [] and link.unsettled == 1
    assert the(Disposed, server.receive_data(frame(0, 0x15, [True, UInt(0), None, True]), 1)).outcome is None


def test_contiguous_ids_share_a_frame() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.sender(session)
    ours.deliver([bytes([n]) for n in range(10)], [b"m"] * 10, False)
    wire.run()
    theirs.accept_deliveries([0, 1, 2, 5, 6, 9])
    sent = bodies(wire.server.data_to_send())
    assert [part[14:20] for part in sent] == [
        b"\x41\x43\x52\x02\x41\x00",
        b"\x41\x52\x05\x52\x06\x41",
        b"\x41\x52\x09\x52\x09\x41",
    ]


def test_oversized_deliveries_are_thrown_away_but_named() -> None:
    wire = Wire(server_config(max_frame_size=512))

    def small(link: Link) -> None:
        link.accept(1000)
        link.grant(10)

    wire.answer = small
    session = wire.start()
    ours, theirs = wire.sender(session)
    assert ours.remote_max_message_size == 1000
    ours.deliver([b"a", b"b", b"c"], [bytes(1000), bytes(1001), bytes(100_000)], False)
    server, _ = wire.run()
    deliveries = [d for event in of(Arrived, server) for d in event.deliveries]
    assert [(d.tag, len(d.payload), d.oversized) for d in deliveries] == [
        (b"a", 1000, False),
        (b"b", 0, True),
        (b"c", 0, True),
    ]
    theirs.reject_delivery(deliveries[1].id, "amqp:link:message-size-exceeded", "too large")
    _, client = wire.run()
    assert the(Disposed, client).tags == [b"b"]


def test_aborted_delivery_leaves_nothing() -> None:
    wire = Wire()
    session = wire.start()
    _, theirs = wire.sender(session)
    part = frame(0, 0x14, [UInt(0), UInt(0), b"t", UInt(0), False, True], b"half")
    aborted = frame(0, 0x14, [UInt(0), None, None, None, None, False, None, None, None, True])
    whole = frame(0, 0x14, [UInt(0), UInt(1), b"u", UInt(0), False, False], b"whole")
    (delivery,) = the(Arrived, wire.server.receive_data(part + aborted + whole, 1)).deliveries
    assert (delivery.id, delivery.tag, delivery.payload) == (1, b"u", b"whole")
    assert theirs.delivery_count == 2


def test_settled_may_come_with_a_later_frame() -> None:
    wire = Wire()
    session = wire.start()
    wire.sender(session)
    part = frame(0, 0x14, [UInt(0), UInt(0), b"t", UInt(0), None, True], b"one ")
    last = frame(0, 0x14, [UInt(0), None, None, None, True, False], b"two")
    (delivery,) = the(Arrived, wire.server.receive_data(part + last, 1)).deliveries
    assert delivery.settled and delivery.payload == b"one two"


def test_heartbeats_only_into_silence() -> None:
    wire = Wire(client=client_config(idle_timeout=60_000))
    session = wire.start()
    server = wire.server
    assert server.next_tick(1000) == 31_000
    wire.now = 20_000
    session.write_flow(None)
    wire.run()
    wire.server.receive_data(frame(0, 0x13, [*_window(), None, None, None, None, None, True]), 20_000)
    assert server.data_to_send() != b""
    assert server.next_tick(20_000) == 50_000
    assert server.tick(49_999) == [] and server.data_to_send() == b""
    assert server.tick(50_000) == [] and server.data_to_send() == b"\0\0\0\x08\x02\0\0\0"
    assert server.next_tick(50_000) == 80_000
    assert wire.client.receive_data(b"\0\0\0\x08\x02\0\0\0", 50_000) == []


def test_silence_of_twice_the_time_out_ends_it() -> None:
    wire = Wire(server_config(idle_timeout=1000), client_config(idle_timeout=0))
    wire.start()
    assert wire.server.next_tick(1000) == 3000
    assert wire.server.tick(2999) == []
    error = the(Closed, wire.server.tick(3000)).error
    assert (
        error is not None
        and error.condition == "amqp:resource-limit-exceeded"
        and "idle" in error.description
    )
    assert wire.server.next_tick(3000) == 0 and wire.server.tick(9000) == []
    _, client = wire.run()
    told = the(Closed, client).error
    assert told is not None and told.condition == "amqp:resource-limit-exceeded"


def test_a_client_that_never_speaks() -> None:
    server = Connection(server_config(idle_timeout=1000))
    assert server.next_tick(50) == 2050
    assert server.tick(50) == []
    assert names(server.tick(2050)) == ["Closed"]
    assert server.data_to_send() == b""


def test_idle_time_out_of_zero_means_none() -> None:
    wire = Wire(server_config(idle_timeout=0), client_config(idle_timeout=0))
    wire.start()
    assert wire.server.next_tick(1) == 0
    assert wire.server.tick(10**12) == []


def _window() -> list[object]:
    return [UInt(1), UInt(1000), UInt(0), UInt(1000)]


def _server_with_receiver() -> tuple[Connection, Link]:
    """A server with a link on which its peer receives, accepted, on channel and handle 0."""
    server = Connection(server_config())
    attach = frame(0, 0x12, ["r", UInt(0), True, None, None, Described(0x28, ["q"]), Described(0x29, ["me"])])
    begin = frame(0, 0x11, [None, UInt(0), UInt(1000), UInt(1000)])
    events = server.receive_data(AMQP + frame(0, 0x10, ["c"]) + begin + attach, 1)
    link = the(LinkAttaching, events).link
    link.accept(262144)
    server.data_to_send()
    return server, link


def test_terminus_without_content() -> None:
    """rhea attaches $cbs with an empty source on one side."""
    server = Connection(server_config())
    fields = [
        "r",
        UInt(0),
        False,
        None,
        None,
        Described(0x28, []),
        Described(0x29, ["$cbs"]),
        None,
        None,
        UInt(0),
    ]
    begin = frame(0, 0x11, [None, UInt(0), UInt(1000), UInt(1000)])
    events = server.receive_data(AMQP + frame(0, 0x10, ["c"]) + begin + frame(0, 0x12, fields), 1)
    link = the(LinkAttaching, events).link
    assert link.source is not None and link.source.address is None
    link.accept(262144)
    assert b"\x00\x53\x28\x45\x00\x53\x29\xc0\x07\x01\xa1\x04$cbs" in server.data_to_send()


def test_dynamic_terminus_round_trip() -> None:
    source = Terminus("a", {"x": 1}, True, 2, ["c"])
    assert source.encoded(0x28)[:3] == b"\x00\x53\x28"
