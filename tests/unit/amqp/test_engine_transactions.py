"""Transactions over a fake wire: the coordinator's requests, and states that name a transaction."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.amqp.codec import DecodeError, encode_value
from busbar.amqp.errors import ProtocolError
from busbar.amqp.events import Arrived, Disposed, LinkAttaching, SettledDisposed
from busbar.amqp.link import Link
from busbar.amqp.outcomes import (
    ACCEPTED,
    DECLARED,
    REJECTED,
    TRANSACTIONAL,
    StateReader,
    empty_state,
    outcome_of,
    transactional_state,
)
from busbar.amqp.performatives import Terminus
from busbar.amqp.session import Session
from busbar.amqp.transactions import (
    DECLARE,
    DISCHARGE,
    LOCAL_TRANSACTIONS,
    coordinator_request,
    declare_message,
    discharge_message,
)
from busbar.amqp.types import Described, Symbol, ULong
from tests.unit.amqp.fake_wire import Wire, the


def test_equal_states_in_a_row_are_one_outcome() -> None:
    one, two = [transactional_state(id, empty_state(ACCEPTED)) for id in (b"1" * 16, b"2" * 16)]
    reader = StateReader()
    first = reader.state_at(b"..." + one, 3, 3 + len(one))
    assert first is not None and (first.code, first.txn) == (ACCEPTED, b"1" * 16)
    assert reader.state_at(one + b"\x41", 0, len(one) + 1) is first
    other = reader.state_at(two, 0, len(two))
    assert other is not None and other.txn == b"2" * 16
    again = reader.state_at(one, 0, len(one))
    assert again is not None and again.txn == b"1" * 16
    plain = reader.state_at(empty_state(ACCEPTED), 0, 4)
    assert plain is not None and plain.txn is None
    with pytest.raises(DecodeError):
        reader.state_at(one[:-1], 0, len(one) - 1)


def coordinator(wire: Wire, session: Session, name: str = "txn") -> tuple[Link, Link]:
    target = Terminus(None, coordinator=True, capabilities=[LOCAL_TRANSACTIONS])
    link = session.attach_sender(name, Terminus("me"), target)
    events, _ = wire.run()
    return link, the(LinkAttaching, events).link


def section(value: object, code: int | str = 0x77) -> bytes:
    return encode_value(Described(ULong(code) if isinstance(code, int) else Symbol(code), value))


def test_declare_and_discharge() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = coordinator(wire, session)

    ours.deliver([b"1"], [declare_message()], False)
    server, _ = wire.run()
    (asked,) = the(Arrived, server).deliveries
    request = coordinator_request(asked.payload)
    assert (request.code, request.has_global_id) == (DECLARE, False)
    theirs.declared(asked.id, b"T" * 16)
    _, client = wire.run()
    outcome = the(Disposed, client).outcome
    assert outcome is not None and (outcome.code, outcome.txn) == (DECLARED, b"T" * 16)

    for fail in (False, True):
        ours.deliver([b"2"], [discharge_message(b"T" * 16, fail)], False)
        server, _ = wire.run()
        (asked,) = the(Arrived, server).deliveries
        request = coordinator_request(asked.payload)
        assert (request.code, request.txn, request.fail) == (DISCHARGE, b"T" * 16, fail)
        theirs.accept_deliveries([asked.id])
        _, client = wire.run()
        outcome = the(Disposed, client).outcome
        assert outcome is not None and (outcome.code, outcome.txn) == (ACCEPTED, None)


def test_two_coordinators_on_one_session() -> None:
    """The .NET client attaches one that it never uses, and then the one that it declares on."""
    wire = Wire()
    session = wire.start()
    _, idle = coordinator(wire, session, "first")
    ours, theirs = coordinator(wire, session, "second")
    assert idle is not theirs and idle.is_attached
    ours.deliver([b"1"], [declare_message()], False)
    server, _ = wire.run()
    assert the(Arrived, server).link is theirs


@pytest.mark.parametrize(
    "payload",
    [
        section(Described(ULong(0x31), [])),
        section(Described(ULong(0x31), [None])),
        section(Described(Symbol("amqp:declare:list"), []), "amqp:amqp-value:*"),
        section([True], 0x70) + section(["id"], 0x73) + section(Described(ULong(0x31), [])),
        section(Described(ULong(0x31), [])) + section({}, 0x78),
    ],
    ids=["plain", "null", "symbolic", "with sections around", "with a footer"],
)
def test_a_declare_however_it_is_written(payload: bytes) -> None:
    request = coordinator_request(payload)
    assert (request.code, request.has_global_id) == (DECLARE, False)


def test_a_global_transaction_is_told_apart() -> None:
    assert coordinator_request(section(Described(ULong(0x31), [b"global"]))).has_global_id


def test_a_discharge_commits_unless_it_says_otherwise() -> None:
    assert not coordinator_request(section(Described(ULong(0x32), [b"T"]))).fail
    assert not coordinator_request(section(Described(ULong(0x32), [b"T", None]))).fail


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (b"", "amqp:decode-error"),
        (b"\x00\x53", "amqp:decode-error"),
        (encode_value("declare"), "amqp:decode-error"),
        (section([], 0x70), "amqp:decode-error"),
        (section(Described(ULong(0x31), []), 0x31), "amqp:decode-error"),
        (section("declare"), "amqp:not-implemented"),
        (section(Described(ULong(0x33), [b"T"])), "amqp:not-implemented"),
        (section(Described(ULong(0x31), {})), "amqp:invalid-field"),
        (section(Described(ULong(0x32), [])), "amqp:invalid-field"),
        (section(Described(ULong(0x32), ["T"])), "amqp:invalid-field"),
        (section(Described(ULong(0x32), [b"T", 1])), "amqp:invalid-field"),
        (section(Described(ULong(0x32), [b"T", [None] * 300])), "amqp:decode-error"),
    ],
)
def test_what_is_neither(payload: bytes, condition: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        coordinator_request(payload)
    assert refused.value.condition == condition


VALID = st.sampled_from([declare_message(), discharge_message(b"T" * 16, True)])


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=60), VALID), st.integers(0, 60), st.binary(max_size=4))
def test_any_bytes_are_a_request_or_a_protocol_error(payload: bytes, at: int, noise: bytes) -> None:
    changed = payload[:at] + noise + payload[at + len(noise) :]
    for data in (payload, changed, payload + noise, payload[:at]):
        try:
            assert coordinator_request(data).code in (DECLARE, DISCHARGE)
        except ProtocolError as error:
            assert error.condition.startswith("amqp:")


def test_a_state_may_name_a_transaction_and_no_outcome() -> None:
    outcome = outcome_of(Described(ULong(TRANSACTIONAL), [b"T"]))
    assert (outcome.code, outcome.txn) == (TRANSACTIONAL, b"T")


@pytest.mark.parametrize(
    "fields",
    [
        [],
        ["T"],
        [b"T", "accepted"],
        [b"T", Described(ULong(TRANSACTIONAL), [b"U"])],
        [b"T", Described(ULong(0x99), [])],
    ],
)
def test_a_transactional_state_that_is_none(fields: list[object]) -> None:
    with pytest.raises(ProtocolError):
        outcome_of(Described(ULong(TRANSACTIONAL), fields))


def test_a_large_delivery_keeps_its_transaction() -> None:
    """Only the first of its frames has the state."""
    wire = Wire()
    session = wire.start()
    ours, _ = wire.sender(session)
    ours.deliver([b"1"], [bytes(200_000)], False, 0, transactional_state(b"T", b""))
    server, _ = wire.run()
    (delivery,) = the(Arrived, server).deliveries
    assert (delivery.txn, len(delivery.payload)) == (b"T", 200_000)


@pytest.mark.parametrize("last", [0, 5])
def test_a_settled_delivery_cannot_join_a_transaction(last: int) -> None:
    """ReceiveAndDelete: the deliveries are settled when they come. The client is answered all the same."""
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(10)
    wire.run()
    theirs.deliver([b"%d" % n for n in range(6)], [b"x"] * 6, True)
    wire.run()
    ours.dispose([*range(last + 1)], transactional_state(b"T", empty_state(ACCEPTED)), settled=False)
    server, _ = wire.run()
    event = the(SettledDisposed, server)
    assert (event.first, event.last, event.txn) == (0, last, b"T")
    event.session.deny_settled(event.first, event.last, "amqp:not-allowed", "settled")
    _, client = wire.run()
    denied = the(Disposed, client)
    assert denied.ids == [*range(last + 1)] and denied.outcome is not None
    assert (denied.outcome.code, denied.outcome.txn) == (REJECTED, None)


def test_a_disposition_that_is_under_way_is_not_denied() -> None:
    wire = Wire()
    session = wire.start()
    ours, theirs = wire.receiver(session)
    ours.grant(10)
    wire.run()
    theirs.deliver([b"0", b"1"], [b"x", b"y"], False)
    wire.run()
    state = transactional_state(b"T", empty_state(ACCEPTED))
    ours.dispose([0, 1], state, settled=False)
    server, _ = wire.run()
    assert the(Disposed, server).ids == [0, 1]
    ours.dispose([0, 1], state, settled=False)
    assert wire.run()[0] == []
