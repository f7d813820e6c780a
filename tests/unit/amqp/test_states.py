"""Every state of links, sessions and connections with every input: the next state, and the frames that are written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from busbar.amqp import connection as phases
from busbar.amqp.codec import encode_value
from busbar.amqp.connection import Connection
from busbar.amqp.events import Closed, LinkAttaching
from busbar.amqp.link import Link
from busbar.amqp.performatives import Fields, Terminus
from busbar.amqp.session import Session
from busbar.amqp.states import (
    ATTACH_SENT,
    ATTACHED,
    ATTACHING,
    BEGINNING,
    BEGUN,
    DETACHED,
    DETACHING,
    ENDED,
    ENDING,
)
from busbar.amqp.types import Symbol, UInt, UShort
from tests.unit.amqp.fake_wire import AMQP, SASL, Wire, bodies, frame, of, server_config, the

PERFORMATIVES = {
    0x10: "open",
    0x11: "begin",
    0x12: "attach",
    0x13: "flow",
    0x14: "transfer",
    0x15: "disposition",
    0x16: "detach",
    0x17: "end",
    0x18: "close",
}


def written(connection: Connection) -> str:
    """The names of the frames that the connection has written."""
    return " ".join(PERFORMATIVES[body[10]] for body in bodies(connection.data_to_send()))


# Links

LINK_STATES = {
    "attaching": ATTACHING,
    "attach sent": ATTACH_SENT,
    "attached": ATTACHED,
    "detaching": DETACHING,
    "detached": DETACHED,
}
LINK_INPUTS: dict[str, Callable[[Link], object]] = {
    "accept": lambda link: link.accept(0),
    "refuse": lambda link: link.refuse("amqp:not-found", "there is none"),
    "detach": lambda link: link.detach(),
    "remote attach": lambda link: link.on_attach(),
    "remote detach": lambda link: link.on_detach(True),
    "session end": lambda link: link.on_session_end(),
}
# The next state, and what is written.
LINKS: dict[str, list[tuple[str, str]]] = {
    "attaching": [
        ("attached", "attach"),
        ("detaching", "attach detach"),
        ("detaching", "attach detach"),
        ("attaching", ""),
        ("detached", "attach detach"),
        ("detached", ""),
    ],
    "attach sent": [
        ("attach sent", ""),
        ("attach sent", ""),
        ("detaching", "detach"),
        ("attached", ""),
        ("detached", "detach"),
        ("detached", ""),
    ],
    "attached": [
        ("attached", ""),
        ("attached", ""),
        ("detaching", "detach"),
        ("attached", ""),
        ("detached", "detach"),
        ("detached", ""),
    ],
    "detaching": [
        ("detaching", ""),
        ("detaching", ""),
        ("detaching", ""),
        ("detaching", ""),
        ("detached", ""),
        ("detached", ""),
    ],
    "detached": [("detached", "")] * 6,
}


def link_in(state: str, *, sending: bool = False) -> tuple[Connection, Link]:
    """A link in a state, and its connection, which has nothing to write. `sending`: the link is one on which it sends."""
    wire = Wire()
    wire.answer = lambda link: None
    session = wire.start()
    attach = session.attach_receiver if sending != (state == "attach sent") else session.attach_sender
    ours = attach("name", Terminus("me"), Terminus("q"))
    if state == "attach sent":
        wire.client.data_to_send()
        return wire.client, ours
    events, _ = wire.run()
    theirs = the(LinkAttaching, events).link
    if state != "attaching":
        theirs.accept(0)
        wire.run()
    if state == "detaching":
        theirs.detach()
    elif state == "detached":
        ours.detach()
        wire.run()
    wire.server.data_to_send()
    return wire.server, theirs


@pytest.mark.parametrize(
    ("state", "name", "after", "frames"),
    [
        (state, name, *outcome)
        for state, row in LINKS.items()
        for name, outcome in zip(LINK_INPUTS, row, strict=True)
    ],
)
def test_a_link(state: str, name: str, after: str, frames: str) -> None:
    connection, link = link_in(state)
    assert link.state == LINK_STATES[state] and written(connection) == ""
    LINK_INPUTS[name](link)
    assert (link.state, written(connection)) == (LINK_STATES[after], frames)
    assert link.is_attached == (after == "attached")
    # A connection counts the links that are in use.
    assert connection._wire.links == (1 if link.state <= ATTACHED else 0)


@pytest.mark.parametrize("state", LINK_STATES)
def test_only_an_attached_link_sends_grants_and_settles(state: str) -> None:
    connection, sender = link_in(state, sending=True)
    sender.on_flow(0, 10, False)
    sender.deliver([b"t"], [b"payload"], False)
    sender.drained()
    sender.confirm([0], 0x24)
    assert written(connection) == ("transfer flow disposition" if state == "attached" else "")
    connection, receiver = link_in(state)
    receiver.grant(10)
    receiver.accept_deliveries([0])
    assert written(connection) == ("flow disposition" if state == "attached" else "")


# Sessions

SESSION_STATES = {"beginning": BEGINNING, "begun": BEGUN, "ending": ENDING, "ended": ENDED}
SESSION_INPUTS: dict[str, Callable[[Session], object]] = {
    "remote begin": lambda session: session.on_begin(begin_fields()),
    "end": lambda session: session.end(),
    "remote end": lambda session: session.on_end(),
    "connection end": lambda session: session.on_connection_end(),
}
SESSIONS: dict[str, list[tuple[str, str]]] = {
    "beginning": [("begun", ""), ("ending", "end"), ("ended", "end"), ("ended", "")],
    "begun": [("begun", ""), ("ending", "end"), ("ended", "end"), ("ended", "")],
    "ending": [("ending", ""), ("ending", ""), ("ended", ""), ("ended", "")],
    "ended": [("ended", "")] * 4,
}


def begin_fields() -> Fields:
    body = encode_value([UShort(0), UInt(1), UInt(100), UInt(100)])
    return Fields("begin", body, 0, len(body))


def session_in(state: str) -> tuple[Connection, Session, list[Link]]:
    """A client's session in a state, its connection, which has nothing to write, and two links of the session."""
    wire = Wire()
    if state == "beginning":
        wire.client.open()
        wire.run()
        session = wire.client.begin()
        links = [session.attach_sender(name, Terminus("me"), Terminus("q")) for name in "ab"]
    else:
        session = wire.start()
        links = [wire.sender(session, "a")[0], wire.receiver(session, "b")[0]]
    if state in ("ending", "ended"):
        session.end()
    if state == "ended":
        wire.run()
    wire.client.data_to_send()
    return wire.client, session, links


@pytest.mark.parametrize(
    ("state", "name", "after", "frames"),
    [
        (state, name, *outcome)
        for state, row in SESSIONS.items()
        for name, outcome in zip(SESSION_INPUTS, row, strict=True)
    ],
)
def test_a_session(state: str, name: str, after: str, frames: str) -> None:
    connection, session, links = session_in(state)
    assert session.state == SESSION_STATES[state]
    SESSION_INPUTS[name](session)
    assert (session.state, written(connection)) == (SESSION_STATES[after], frames)
    assert session.is_begun == (after == "begun")
    # The links of a session end with it, at the latest with our own end.
    over = session.state >= ENDING
    assert all((link.state == DETACHED) == over for link in links)
    assert connection._wire.links == (0 if over else 2)


@pytest.mark.parametrize("state", ["ending", "ended"])
def test_a_link_of_a_session_that_is_over_is_detached_from_the_beginning(state: str) -> None:
    connection, session, _links = session_in(state)
    late = session.attach_sender("late", Terminus("me"), Terminus("q"))
    assert late.state == DETACHED and written(connection) == ""


# Connections: the phases of a server

PHASES = {
    "header": phases.HEADER,
    "sasl": phases.SASL,
    "deciding": phases.DECIDING,
    "amqp header": phases.AMQP_HEADER_PHASE,
    "frames": phases.FRAMES,
    "over": phases.OVER,
}
INIT = frame(0, 0x41, [Symbol("ANONYMOUS")], kind=1)
INPUTS = {
    "SASL header": SASL,
    "AMQP header": AMQP,
    "sasl-init": INIT,
    "open": frame(0, 0x10, ["client"]),
    "begin": frame(0, 0x11, [None, UInt(1), UInt(100), UInt(100)]),
    "close": frame(0, 0x18, []),
    "heartbeat": b"\0\0\0\x08\x02\0\0\0",
}
CALLS: dict[str, Callable[[Connection], object]] = {
    "let in": lambda connection: connection.sasl_outcome(0),
    "turn away": lambda connection: connection.sasl_outcome(1),
    "close()": lambda connection: connection.close(),
}
FRAMING = "amqp:connection:framing-error"
ILLEGAL = "amqp:illegal-state"
# The next phase by input, and the condition of the Closed event; "-" without a condition, nothing without the event.
BYTES: dict[str, list[tuple[str, str]]] = {
    "header": [("sasl", ""), ("frames", ""), *[("over", FRAMING)] * 5],
    "sasl": [("over", FRAMING), ("over", FRAMING), ("deciding", ""), *[("over", FRAMING)] * 4],
    "deciding": [("deciding", "")] * 7,
    "amqp header": [("over", FRAMING), ("frames", ""), *[("over", FRAMING)] * 5],
    "frames": [
        ("over", FRAMING),
        ("over", FRAMING),
        ("over", FRAMING),
        ("frames", ""),
        ("over", ILLEGAL),
        ("over", "-"),
        ("frames", ""),
    ],
    "over": [("over", "")] * 7,
}
# The next phase by call. A close() waits for the peer's close once there are frames.
AFTER_CALLS: dict[str, list[str]] = {
    "header": ["header", "header", "over"],
    "sasl": ["sasl", "sasl", "over"],
    "deciding": ["amqp header", "over", "over"],
    "amqp header": ["amqp header", "amqp header", "over"],
    "frames": ["frames", "frames", "frames"],
    "over": ["over", "over", "over"],
}


def connection_in(phase: str) -> Connection:
    connection = Connection(server_config())
    for name, step in (
        ("header", b""),
        ("sasl", SASL),
        ("deciding", INIT),
        ("amqp header", None),
        ("frames", AMQP),
    ):
        if step is None:
            connection.sasl_outcome(0)
        else:
            connection.receive_data(step, 1000)
        if name == phase:
            return connection
    connection.receive_data(INPUTS["close"], 1000)
    return connection


@pytest.mark.parametrize(
    ("phase", "name", "after", "condition"),
    [
        (phase, name, *outcome)
        for phase, row in BYTES.items()
        for name, outcome in zip(INPUTS, row, strict=True)
    ],
)
def test_bytes_for_a_server(phase: str, name: str, after: str, condition: str) -> None:
    connection = connection_in(phase)
    assert connection._phase == PHASES[phase]
    events = connection.receive_data(INPUTS[name], 1000)
    assert connection._phase == PHASES[after]
    closed = of(Closed, events)
    if condition:
        (event,) = closed
        assert ("-" if event.error is None else event.error.condition) == condition
    else:
        assert not closed
    assert connection.is_closed == (after == "over")


@pytest.mark.parametrize(
    ("phase", "name", "after"),
    [
        (phase, name, after)
        for phase, row in AFTER_CALLS.items()
        for name, after in zip(CALLS, row, strict=True)
    ],
)
def test_calls_of_a_server(phase: str, name: str, after: str) -> None:
    connection = connection_in(phase)
    CALLS[name](connection)
    assert connection._phase == PHASES[after]


@pytest.mark.parametrize("phase", PHASES)
def test_a_silent_peer_is_gone_in_every_phase(phase: str) -> None:
    connection = connection_in(phase)
    idle = connection.config.idle_timeout
    connection.tick(1000)
    assert idle > 0 and connection._phase == PHASES[phase]
    closed = of(Closed, connection.tick(1000 + 2 * idle))
    assert connection._phase == phases.OVER and len(closed) == (0 if phase == "over" else 1)
