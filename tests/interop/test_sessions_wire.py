"""Message sessions as they are on the wire: what no method of the Python SDK does, and the exact types of the rest."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from proton import Data, Delivery, Described, Message, int32, symbol, timestamp, uint, ulong
from proton.reactor import Filter, LinkOption
from proton.utils import LinkDetached

from tests.interop.plain_amqp import PlainAmqp, ReceiveSecond, array, owned
from tests.interop.session_queues import SessionQueues

pytestmark = pytest.mark.timeout(60)

KEY = symbol("com.microsoft:session-filter")
GO_DESCRIPTOR = ulong(0x000000137000000C)
TICKS_OF_1970 = 621355968000000000


class Timeout(LinkOption):
    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds

    def apply(self, link: Any) -> None:
        link.properties = {symbol("com.microsoft:timeout"): uint(self._milliseconds)}


def of_session(value: Any) -> LinkOption:
    return Filter({KEY: value})


def accept(client: PlainAmqp, queue: str, value: object, wait: int = 2_000) -> Any:
    return client.receiver(queue, 0, of_session(value), Timeout(wait), ReceiveSecond())


def begin_to_accept(client: PlainAmqp, queue: str, wait: int) -> Any:
    """The next available session, without waiting for the answer."""
    connection: Any = client.connection
    return connection.container.create_receiver(
        connection.conn, queue, name=uuid.uuid4().hex, options=[of_session(None), Timeout(wait)]
    )


def send(client: PlainAmqp, queue: str, session: str | None, *texts: str) -> None:
    client.send(queue, *(Message(body=text.encode(), inferred=True, group_id=session) for text in texts))


def answered_filter(receiver: Any) -> Any:
    """The session filter of the broker's attach."""
    data = receiver.link.remote_source.filter
    data.rewind()
    assert data.next()
    return data.get_dict()[KEY]


@pytest.mark.parametrize("session", ["s", ""])
def test_a_bare_filter_is_answered_bare(plain_sessions: PlainAmqp, session_queue: str, session: str) -> None:
    receiver = accept(plain_sessions, session_queue, session)
    assert answered_filter(receiver) == session
    assert type(answered_filter(receiver)) is str
    assert receiver.link.remote_source.address == session_queue, "echoed as it was asked for"


@pytest.mark.parametrize("session", ["s", "", None])
def test_a_described_filter_is_answered_with_the_same_descriptor(
    plain_sessions: PlainAmqp, session_queue: str, session: str | None
) -> None:
    if session is None:
        send(plain_sessions, session_queue, "found", "1")
    receiver = accept(plain_sessions, session_queue, Described(GO_DESCRIPTOR, session))
    answer = answered_filter(receiver)
    assert isinstance(answer, Described)
    assert answer.descriptor == GO_DESCRIPTOR and type(answer.descriptor) is ulong
    assert answer.value == ("found" if session is None else session)


def test_the_end_of_the_lock_is_a_long_in_ticks(plain_sessions: PlainAmqp, session_queue: str) -> None:
    receiver = accept(plain_sessions, session_queue, "s")
    until = receiver.link.remote_properties[symbol("com.microsoft:locked-until-utc")]
    assert type(until) is int
    assert 50 < (until - TICKS_OF_1970) / 1e7 - time.time() < 61


@pytest.mark.req("S3")
def test_the_session_id_is_the_group_id(plain_sessions: PlainAmqp, session_queue: str) -> None:
    send(plain_sessions, session_queue, "the-group", "1")
    receiver = accept(plain_sessions, session_queue, None)
    assert answered_filter(receiver) == "the-group"
    receiver.link.flow(1)
    message, _delivery = plain_sessions.take(receiver)
    assert message.group_id == "the-group"


def test_nothing_to_accept_is_a_time_out(plain_sessions: PlainAmqp, session_queue: str) -> None:
    began = time.monotonic()
    with pytest.raises(LinkDetached) as refused:
        accept(plain_sessions, session_queue, None, wait=400)
    assert refused.value.condition == "com.microsoft:timeout"
    assert 0.3 < time.monotonic() - began < 3


def test_a_waiting_accept_does_not_hold_up_its_connection(
    plain_sessions: PlainAmqp, session_queue: str
) -> None:
    """Another link of the same connection sends what the first waits for."""
    waiting = begin_to_accept(plain_sessions, session_queue, 8_000)
    plain_sessions.listen(0.2)
    assert not waiting.remote_source.address
    send(plain_sessions, session_queue, "s", "1")
    plain_sessions.pump(lambda: waiting.remote_source.address)
    assert waiting.state & waiting.REMOTE_ACTIVE


def test_who_detaches_while_waiting_takes_no_session(plain_sessions: PlainAmqp, session_queue: str) -> None:
    for _ in range(3):
        waiting = begin_to_accept(plain_sessions, session_queue, 60_000)
        plain_sessions.listen(0.1)
        waiting.close()
    plain_sessions.listen(0.1)
    send(plain_sessions, session_queue, "s", "1")
    assert answered_filter(accept(plain_sessions, session_queue, None)) == "s"


@pytest.mark.parametrize("wrong", [uint(5), ["s"], "x" * 129])
def test_what_is_no_session_id(plain_sessions: PlainAmqp, session_queue: str, wrong: object) -> None:
    with pytest.raises(LinkDetached) as refused:
        accept(plain_sessions, session_queue, wrong)
    assert refused.value.condition.startswith("com.microsoft:argument-")


def test_held_elsewhere(plain_sessions: PlainAmqp, session_queue: str) -> None:
    accept(plain_sessions, session_queue, "s")
    with pytest.raises(LinkDetached) as refused:
        accept(plain_sessions, session_queue, "s")
    assert refused.value.condition == "com.microsoft:session-cannot-be-locked"


@pytest.mark.req("S6")
def test_peek_needs_no_session(plain_sessions: PlainAmqp, session_queue: str) -> None:
    for session in ("a", "b"):
        send(plain_sessions, session_queue, session, f"{session}1", f"{session}2")
    accept(plain_sessions, session_queue, "a")
    assert peeked(plain_sessions, session_queue) == ["a1", "a2", "b1", "b2"]
    assert peeked(plain_sessions, session_queue, {"session-id": "b"}) == ["b1", "b2"]
    assert peeked(plain_sessions, session_queue, {"session-id": "nobody"}) == []


def test_a_partition_key_must_equal_the_session_id(
    plain_sessions: PlainAmqp, session_pool: SessionQueues
) -> None:
    session_queue = session_pool.take("partitioned")
    key = symbol("x-opt-partition-key")
    same: Any = Message(body=b"1", inferred=True, group_id="s", annotations={key: "s"})
    other: Any = Message(body=b"2", inferred=True, group_id="s", annotations={key: "k"})
    plain_sessions.send(session_queue, same)
    sender = plain_sessions.connection.create_sender(session_queue)
    refused: Any = sender.link.send(other)
    plain_sessions.pump(lambda: refused.settled)
    assert refused.remote_state == Delivery.REJECTED
    assert refused.remote.condition.name == "amqp:not-allowed"
    sender.close()
    assert peeked(plain_sessions, session_queue) == ["1"]


def peeked(client: PlainAmqp, queue: str, limit: dict[str, object] | None = None) -> list[str]:
    found: list[str] = []
    start = 0
    while True:
        request = {"from-sequence-number": start, "message-count": int32(10), **(limit or {})}
        status, body = client.manage(queue, "peek-message", request)
        if status == 204:
            return sorted(found)
        assert status == 200
        for entry in body["messages"]:
            message: Any = Message()
            message.decode(bytes(entry["message"]))
            found.append(bytes(owned(message).body).decode())
            start = message.annotations[symbol("x-opt-sequence-number")] + 1


def test_replies_have_the_types_that_clients_cast(plain_sessions: PlainAmqp, session_queue: str) -> None:
    accept(plain_sessions, session_queue, "s")
    named: dict[str, object] = {"session-id": "s"}
    status, body = plain_sessions.manage(session_queue, "renew-session-lock", named)
    assert status == 200 and type(body["expiration"]) is timestamp
    assert 50_000 < body["expiration"] - time.time() * 1000 < 61_000
    assert plain_sessions.manage(session_queue, "get-session-state", named) == (200, {"session-state": None})
    state: dict[str, object] = {**named, "session-state": b"\0state"}
    assert plain_sessions.manage(session_queue, "set-session-state", state) == (200, {})
    assert plain_sessions.manage(session_queue, "get-session-state", named) == (
        200,
        {"session-state": b"\0state"},
    )
    everything: dict[str, object] = {
        "last-updated-time": timestamp(253402300800000),
        "skip": int32(0),
        "top": int32(10),
    }
    status, body = plain_sessions.manage(session_queue, "get-message-sessions", everything)
    assert status == 200 and body["skip"] == 0 and type(body["skip"]) is int32
    assert list(body["sessions-ids"].elements) == ["s"]


@pytest.mark.parametrize(
    ("operation", "extra"),
    [
        ("renew-session-lock", {}),
        ("get-session-state", {}),
        ("set-session-state", {"session-state": b"x"}),
        (
            "receive-by-sequence-number",
            {"sequence-numbers": array(Data.LONG, 1), "receiver-settle-mode": uint(1)},
        ),
        (
            "update-disposition",
            {"disposition-status": "completed", "lock-tokens": array(Data.UUID, uuid.uuid4())},
        ),
        ("batch-delete-messages", {"message-count": int32(1), "enqueued-time-utc": timestamp(1)}),
    ],
)
def test_who_does_not_hold_the_session_has_lost_its_lock(
    plain_sessions: PlainAmqp, session_queue: str, operation: str, extra: dict[str, object]
) -> None:
    reply = plain_sessions.request(
        f"{session_queue}/$management", f"com.microsoft:{operation}", {"session-id": "s", **extra}
    )
    assert reply.properties["statusCode"] == 410
    assert reply.properties["errorCondition"] == symbol("com.microsoft:session-lock-lost")


def test_a_message_lock_is_not_renewed_by_itself(plain_sessions: PlainAmqp, session_queue: str) -> None:
    reply = plain_sessions.request(
        f"{session_queue}/$management",
        "com.microsoft:renew-lock",
        {"lock-tokens": array(Data.UUID, uuid.uuid4())},
    )
    assert reply.properties["statusCode"] == 400
    assert reply.properties["errorCondition"] == symbol("amqp:not-allowed")


def test_a_session_is_emptied_by_its_holder(plain_sessions: PlainAmqp, session_queue: str) -> None:
    send(plain_sessions, session_queue, "a", "a1", "a2")
    send(plain_sessions, session_queue, "b", "b1")
    accept(plain_sessions, session_queue, "a")
    request: dict[str, object] = {
        "session-id": "a",
        "message-count": int32(100),
        "enqueued-time-utc": timestamp(253402300799999),
    }
    assert plain_sessions.manage(session_queue, "batch-delete-messages", request) == (
        200,
        {"message-count": 2},
    )
    assert peeked(plain_sessions, session_queue) == ["b1"]


def test_a_plain_queue_and_a_dead_letter_queue_have_no_sessions(
    plain_sessions: PlainAmqp, session_queue: str
) -> None:
    for address in ("plain", f"{session_queue}/$deadletterqueue"):
        with pytest.raises(LinkDetached) as refused:
            accept(plain_sessions, address, "s")
        assert refused.value.condition == "amqp:not-allowed"
        reply = plain_sessions.request(
            f"{address}/$management", "com.microsoft:get-session-state", {"session-id": "s"}
        )
        assert reply.properties["errorCondition"] == symbol("amqp:not-allowed")
    plain_sessions.receiver(f"{session_queue}/$deadletterqueue").close()
