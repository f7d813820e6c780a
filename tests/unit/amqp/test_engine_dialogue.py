"""Client and server over a fake wire: the life of connections, sessions and links."""

from __future__ import annotations

import pytest

from busbar.amqp.events import (
    Arrived,
    Closed,
    CreditChanged,
    Disposed,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    Opened,
    SaslInit,
    SaslOutcome,
    SessionBegun,
    SessionEnded,
)
from busbar.amqp.link import Link
from busbar.amqp.outcomes import ACCEPTED, MODIFIED, REJECTED, empty_state
from busbar.amqp.performatives import Terminus
from tests.unit.amqp.fake_wire import Wire, client_config, names, of, server_config, the


@pytest.mark.parametrize("chunk", [0, 1, 7, 64])
def test_hello_however_the_bytes_are_cut(chunk: int) -> None:
    wire = Wire(client=client_config(properties={"product": "test"}))
    wire.client.open()
    session = wire.client.begin()
    link = session.attach_sender("s", Terminus("me"), Terminus("q"))
    server, client = wire.run(chunk)
    assert names(server) == ["SaslInit", "Opened", "SessionBegun", "LinkAttaching"]
    assert names(client) == ["SaslOutcome", "Opened", "SessionBegun", "LinkAttached", "CreditChanged"]
    opened = the(Opened, server)
    assert (opened.container_id, opened.hostname, opened.properties) == (
        "client",
        "localhost",
        {"product": "test"},
    )
    assert wire.server.remote_container_id == "client" and wire.client.remote_container_id == "broker"
    assert link.is_attached and link.credit == 100
    assert link.target is not None and link.target.address == "q"


def test_plain_credentials_arrive() -> None:
    wire = Wire(client=client_config(mechanisms=["PLAIN"], user="rule", password="key"))
    wire.client.open()
    server, client = wire.run()
    assert the(SaslInit, server).response == b"\0rule\0key"
    assert the(SaslOutcome, client).code == 0


def test_refused_credentials_end_both() -> None:
    wire = Wire()
    wire.verdict = 1
    wire.client.open()
    server, client = wire.run()
    assert names(server) == ["SaslInit"] and wire.server.is_closed
    assert the(SaslOutcome, client).code == 1
    error = the(Closed, client).error
    assert error is not None and error.condition == "amqp:unauthorized-access"


def test_mechanism_that_was_not_offered() -> None:
    wire = Wire(server=server_config(mechanisms=["PLAIN"]))
    wire.client.open()
    _, client = wire.run()
    error = the(Closed, client).error
    assert error is not None and "PLAIN" in error.description


def test_client_without_sasl() -> None:
    wire = Wire(client=client_config(mechanisms=[]))
    wire.start()
    assert wire.server.remote_container_id == "client"


def test_late_sasl_outcome_reads_what_was_pipelined() -> None:
    wire = Wire()
    wire.client.open()
    up = wire.client.data_to_send()
    server = wire.server
    assert server.receive_data(up, 1) == []
    init = wire.client
    init.receive_data(server.data_to_send(), 1)
    ahead = (
        init.data_to_send() + b"AMQP\x00\x01\x00\x00" + bytes.fromhex("00000010 02000000 005310c0 0301a100")
    )
    assert names(server.receive_data(ahead, 1)) == ["SaslInit"]
    assert server.next_tick(5) == 480_001
    server.sasl_outcome(0)
    assert server.next_tick(5) == 5, "an event waits"
    assert names(server.tick(5)) == ["Opened"]


def test_detach_is_answered_once_by_either_side() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.sender(session)
    ours.detach()
    server, client = wire.run()
    event = the(LinkDetached, server)
    assert event.link is theirs and event.closed and event.error is None
    assert names(client) == ["LinkDetached"]
    ours, theirs = wire.sender(session)
    theirs.detach("amqp:link:detach-forced", "idle")
    server, client = wire.run()
    assert server == [], "a server knows of the links it detached"
    error = the(LinkDetached, client).error
    assert error is not None and (error.condition, error.description) == ("amqp:link:detach-forced", "idle")
    assert not wire.server.is_closed and not wire.client.is_closed
    assert len(session.links) == 0 and len(theirs.session.links) == 0


def test_detaches_that_cross() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.sender(session)
    ours.detach()
    theirs.detach("amqp:not-found", "deleted")
    server, client = wire.run()
    assert server == [] and names(client) == ["LinkDetached"]
    assert not wire.client.is_closed and not wire.server.is_closed


def test_refused_link() -> None:
    wire = Wire()
    session = wire.start()
    wire.answer = lambda link: link.refuse("amqp:not-found", "no such entity")
    link = session.attach_receiver("r", Terminus("nowhere"), Terminus("me"))
    server, client = wire.run()
    assert names(server) == ["LinkAttaching"]
    assert names(client) == ["LinkAttached", "LinkDetached"]
    assert link.source is None and link.target is None and not link.is_attached
    error = the(LinkDetached, client).error
    assert error is not None and error.condition == "amqp:not-found"
    assert len(wire.server.sessions[0].links) == 0
    wire.answer = wire.accept
    assert wire.sender(session)[0].is_attached, "the session goes on"


def test_answer_later_and_not_at_all() -> None:
    wire = Wire()
    session = wire.start()
    waiting: list[Link] = []
    wire.answer = waiting.append
    first = session.attach_receiver("one", Terminus("q"), Terminus("me"))
    second = session.attach_receiver("two", Terminus("q"), Terminus("me"))
    wire.run()
    assert [link.name for link in waiting] == ["one", "two"] and not first.is_attached
    second.detach()
    server, client = wire.run()
    assert the(LinkDetached, server).link is waiting[1]
    assert names(client) == ["LinkDetached"], "it had given up before the answer"
    waiting[1].accept(1024)
    waiting[0].accept(1024)
    _, client = wire.run()
    assert the(LinkAttached, client).link is first and first.is_attached
    assert first.remote_max_message_size == 1024


def test_credit_that_came_before_the_answer() -> None:
    wire = Wire()
    session = wire.start()
    waiting: list[Link] = []
    wire.answer = waiting.append
    link = session.attach_receiver("r", Terminus("q"), Terminus("me"))
    link.state = 2  # as proton does: grant with the attach, without waiting for the answer
    link.grant(5)
    link.state = 1
    server, _ = wire.run()
    assert names(server) == ["LinkAttaching", "CreditChanged"]
    waiting[0].accept(1024)
    assert waiting[0].credit == 5
    assert names(wire.server.tick(2)) == ["CreditChanged"], "said again when it can be used"


def test_modes_source_and_target_are_echoed() -> None:
    wire = Wire()
    session = wire.start()
    for snd in (0, 1, 2):
        for rcv in (0, 1):
            source = Terminus("amqps://h/q", {"f": "v"}, durable=1, capabilities=["queue"])
            link = session.attach_receiver(f"{snd}{rcv}", source, Terminus("t", dynamic=True), snd, rcv)
            server, _ = wire.run()
            theirs = the(LinkAttaching, server).link
            assert (link.snd_settle_mode, link.rcv_settle_mode) == (snd, rcv)
            for end in (link, theirs):
                assert end.source is not None and end.target is not None
                assert (end.source.address, end.source.filter, end.source.durable) == (
                    "amqps://h/q",
                    {"f": "v"},
                    1,
                )
                assert end.source.capabilities == ["queue"]
                assert (end.target.address, end.target.dynamic) == ("t", True)


def test_capabilities_are_wished_for_and_offered() -> None:
    wire = Wire()
    session = wire.start()
    wire.answer = lambda link: link.accept(1000, {"said": 2}, None, ["a"])
    link = session.attach_sender(
        "s", Terminus("me"), Terminus("q"), properties={"asked": 1}, desired_capabilities=["a", "b"]
    )
    server, _ = wire.run()
    theirs = the(LinkAttaching, server).link
    assert (theirs.desired_capabilities, theirs.offered_capabilities) == (["a", "b"], None)
    assert (link.desired_capabilities, link.offered_capabilities) == (None, ["a"])
    assert (theirs.properties, link.properties) == ({"asked": 1}, {"said": 2})


def test_coordinator() -> None:
    wire = Wire()
    session = wire.start()
    capabilities = ["amqp:local-transactions", "amqp:multi-txns-per-ssn"]
    target = Terminus(None, coordinator=True, capabilities=capabilities)
    link = session.attach_sender("txn", Terminus("me"), target)
    server, _ = wire.run()
    theirs = the(LinkAttaching, server).link
    assert theirs.target is not None and theirs.target.coordinator
    assert theirs.target.capabilities == capabilities
    assert link.target is not None and link.target.coordinator
    link.deliver([b"1"], [b"declare"], False)
    server, _ = wire.run()
    theirs.declared(the(Arrived, server).deliveries[0].id, b"txn-1")
    _, client = wire.run()
    outcome = the(Disposed, client).outcome
    assert outcome is not None and (outcome.code, outcome.txn) == (0x33, b"txn-1")


def test_send_settle_and_confirm() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.sender(session)
    ours.deliver([b"a", b"b", b"c", b"d"], [b"1", b"2", b"3", b"4"], False, 0x80013700)
    assert ours.unsettled == 4 and ours.credit == 96
    server, _ = wire.run()
    arrived = the(Arrived, server)
    assert [(d.id, d.tag, d.payload, d.format) for d in arrived.deliveries] == [
        (0, b"a", b"1", 0x80013700),
        (1, b"b", b"2", 0x80013700),
        (2, b"c", b"3", 0x80013700),
        (3, b"d", b"4", 0x80013700),
    ]
    assert theirs.credit == 96 and theirs.delivery_count == 4
    theirs.accept_deliveries([0, 1, 3])
    theirs.reject_delivery(2, "amqp:not-allowed", "not this one")
    _, client = wire.run()
    good, bad = of(Disposed, client)
    assert good.tags == [b"a", b"b", b"d"] and good.settled
    assert good.outcome is not None and good.outcome.code == ACCEPTED
    assert bad.tags == [b"c"] and bad.outcome is not None and bad.outcome.code == REJECTED
    assert bad.outcome.error is not None and bad.outcome.error.description == "not this one"
    assert ours.unsettled == 0


def test_settlement_in_two_steps() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(10)
    server, _ = wire.run()
    assert the(CreditChanged, server).link is theirs and theirs.credit == 10
    theirs.deliver([b"1", b"2", b"3"], [b"x", b"y", b"z"], False)
    assert theirs.unsettled == 3 and theirs.credit == 7
    _, client = wire.run()
    ids = [delivery.id for delivery in the(Arrived, client).deliveries]
    ours.dispose(ids[:2], empty_state(ACCEPTED), settled=False)
    ours.dispose(ids[2:], empty_state(MODIFIED), settled=False)
    server, _ = wire.run()
    first, second = of(Disposed, server)
    assert (first.ids, first.tags, first.settled) == (ids[:2], [b"1", b"2"], False)
    assert (second.ids, second.tags) == (ids[2:], [b"3"])
    assert theirs.unsettled == 3, "until confirmed"
    theirs.confirm(first.ids, ACCEPTED)
    theirs.deny(second.ids[0], "com.microsoft:message-lock-lost", "too late")
    assert theirs.unsettled == 0
    _, client = wire.run()
    confirmed, denied = of(Disposed, client)
    assert confirmed.link is ours and confirmed.ids == ids[:2] and confirmed.settled
    assert denied.ids == ids[2:] and denied.outcome is not None and denied.outcome.error is not None
    assert denied.outcome.error.condition == "com.microsoft:message-lock-lost"
    assert ours.unsettled == 0


def test_presettled_deliveries_are_not_kept() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(10)
    wire.run()
    theirs.deliver([b"1"], [b"x"], True)
    assert theirs.unsettled == 0
    _, client = wire.run()
    (delivery,) = the(Arrived, client).deliveries
    assert delivery.settled
    ours.dispose([delivery.id], empty_state(ACCEPTED))
    assert wire.run()[0] == [], "a disposition about it concerns nobody"


def test_transactional_state_passes_through() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.sender(session)
    from busbar.amqp.outcomes import transactional_state

    ours.deliver([b"1"], [b"x"], False, 0, transactional_state(b"T", b""))
    server, _ = wire.run()
    (delivery,) = the(Arrived, server).deliveries
    assert delivery.txn == b"T"
    theirs.accept_in_txn([delivery.id], b"T")
    _, client = wire.run()
    outcome = the(Disposed, client).outcome
    assert outcome is not None and (outcome.code, outcome.txn) == (ACCEPTED, b"T")

    ours, theirs = wire.receiver(session)
    ours.grant(1)
    wire.run()
    theirs.deliver([b"1"], [b"x"], False)
    _, client = wire.run()
    id = the(Arrived, client).deliveries[0].id
    ours.dispose([id], transactional_state(b"T", empty_state(MODIFIED)), settled=False)
    server, _ = wire.run()
    outcome = the(Disposed, server).outcome
    assert outcome is not None and (outcome.code, outcome.txn) == (MODIFIED, b"T")
    theirs.confirm_in_txn([id], MODIFIED, b"T")
    _, client = wire.run()
    outcome = the(Disposed, client).outcome
    assert outcome is not None and (outcome.code, outcome.txn) == (MODIFIED, b"T")


def test_disposition_over_several_links_is_grouped() -> None:
    wire = Wire()
    session = wire.start()
    pairs = [wire.receiver(session, name) for name in ("one", "two")]
    for ours, _ in pairs:
        ours.grant(10)
    wire.run()
    for tag in (b"1", b"2"):
        for _, theirs in pairs:
            theirs.deliver([tag], [b"m"], False)
    wire.run()
    pairs[0][0].dispose([0, 1, 2, 3], empty_state(ACCEPTED))
    server, _ = wire.run()
    events = of(Disposed, server)
    assert [(event.link, event.ids, event.tags) for event in events] == [
        (pairs[0][1], [0, 2], [b"1", b"2"]),
        (pairs[1][1], [1, 3], [b"1", b"2"]),
    ]
    assert all(theirs.unsettled == 0 for _, theirs in pairs)


def test_session_end() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.sender(session)
    session.end()
    server, client = wire.run()
    ended = the(SessionEnded, server)
    assert ended.error is None and list(ended.session.links.values()) == [theirs]
    assert not theirs.is_attached and not ours.is_attached
    assert names(client) == ["SessionEnded"]
    assert wire.server.sessions == {} and wire.client.sessions == {}
    again = wire.client.begin()
    server, _ = wire.run()
    assert the(SessionBegun, server).session.channel == again.channel


def test_session_ended_by_the_server() -> None:
    wire = Wire()
    session = wire.start()
    wire.sender(session)
    wire.server.sessions[0].end("amqp:internal-error", "oops")
    server, client = wire.run()
    assert server == []
    error = the(SessionEnded, client).error
    assert error is not None and error.condition == "amqp:internal-error"


def test_close_by_either_side() -> None:
    wire = Wire()
    wire.start()
    wire.client.close()
    server, client = wire.run()
    assert the(Closed, server).error is None and the(Closed, client).error is None
    assert wire.server.is_closed and wire.client.is_closed
    assert wire.server.receive_data(b"anything", 1) == []

    wire = Wire()
    wire.start()
    wire.server.close("amqp:connection:forced", "shutting down")
    server, client = wire.run()
    error = the(Closed, client).error
    assert error is not None and (error.condition, error.description) == (
        "amqp:connection:forced",
        "shutting down",
    )
    assert the(Closed, server).error is None


def test_late_calls_do_nothing() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.sender(session)
    ours.detach()
    wire.run()
    theirs.accept(1)
    theirs.refuse("x", "y")
    theirs.detach()
    theirs.grant(1)
    theirs.accept_deliveries([1])
    theirs.reject_delivery(1, "x", "y")
    theirs.confirm([1], ACCEPTED)
    theirs.drained()
    theirs.deliver([b"1"], [b"x"], False)
    assert wire.server.data_to_send() == b""


def test_many_sessions_and_links() -> None:
    wire = Wire()
    wire.start()
    sessions = [wire.client.begin() for _ in range(10)]
    wire.run()
    assert sorted(wire.server.sessions) == list(range(11))
    pairs = [wire.sender(session, f"{n}") for session in sessions for n in range(5)]
    assert {link.handle for link, _ in pairs} == set(range(5))
    for ours, _ in pairs:
        ours.deliver([b"t"], [b"m"], True)
    server, _ = wire.run()
    assert len(of(Arrived, server)) == 50
