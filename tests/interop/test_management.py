"""`$management` as it is on the wire: what no method of the Python SDK does, and the exact types of the rest."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from proton import Array, Data, Delivery, Message, int32, symbol, timestamp, uint

from tests.interop.plain_amqp import PlainAmqp, array, owned

pytestmark = pytest.mark.timeout(60)

FAR = timestamp(253402300799999)


def send(plain: PlainAmqp, queue: str, *texts: str) -> None:
    plain.send(queue, *(Message(body=text.encode(), inferred=True) for text in texts))


def peek(plain: PlainAmqp, queue: str) -> list[str]:
    """The bodies of everything in the queue."""
    status, body = plain.manage(
        queue, "peek-message", {"from-sequence-number": 0, "message-count": int32(100)}
    )
    if status == 204:
        return []
    assert status == 200
    return [decoded(entry["message"]).body.decode() for entry in body["messages"]]


def decoded(encoded: Any) -> Any:
    message = Message()
    message.decode(bytes(encoded))
    return owned(message)


def delete(plain: PlainAmqp, queue: str, count: int, before: timestamp = FAR) -> tuple[int, Any]:
    return plain.manage(
        queue, "batch-delete-messages", {"message-count": int32(count), "enqueued-time-utc": before}
    )


@pytest.mark.req("U15")
def test_batch_delete(plain: PlainAmqp, queue: str) -> None:
    send(plain, queue, *(str(n) for n in range(10)))

    status, body = delete(plain, queue, 4)

    assert (status, body) == (200, {"message-count": 4})
    assert type(body["message-count"]) is int32
    assert peek(plain, queue) == ["4", "5", "6", "7", "8", "9"]
    assert delete(plain, queue, 100)[1] == {"message-count": 6}
    assert delete(plain, queue, 100)[0] == 204


def test_batch_delete_takes_only_what_is_old_enough(plain: PlainAmqp, queue: str) -> None:
    send(plain, queue, "old")
    time.sleep(0.05)
    line = timestamp(int(time.time() * 1000))
    time.sleep(0.05)
    send(plain, queue, "new")

    assert delete(plain, queue, 100, line)[1] == {"message-count": 1}

    assert peek(plain, queue) == ["new"]


def test_batch_delete_takes_what_was_enqueued_in_the_millisecond_of_its_time(
    plain: PlainAmqp, queue: str
) -> None:
    """A client that sends, and deletes at once, names the millisecond in which its message was enqueued."""
    send(plain, queue, "sent just now")
    asked: dict[str, object] = {"from-sequence-number": 1, "message-count": int32(1)}
    _status, body = plain.manage(queue, "peek-message", asked)
    (entry,) = body["messages"]
    enqueued = int(decoded(entry["message"]).annotations[symbol("x-opt-enqueued-time")])

    assert delete(plain, queue, 100, timestamp(enqueued - 1))[0] == 204
    assert delete(plain, queue, 100, timestamp(enqueued))[1] == {"message-count": 1}


@pytest.mark.req("U15")
def test_batch_delete_leaves_locked_deferred_and_scheduled_messages(plain: PlainAmqp, queue: str) -> None:
    send(plain, queue, "locked", "deferred", "active")
    scheduled = Message(body=b"scheduled", inferred=True)
    scheduled.annotations = {
        symbol("x-opt-scheduled-enqueue-time"): timestamp(int(time.time() * 1000) + 3_600_000)
    }
    plain.send(queue, scheduled)
    receiver = plain.receiver(queue, 2)
    _message, locked = plain.take(receiver)
    _message, deferred = plain.take(receiver)
    plain.settle(deferred, Delivery.MODIFIED, undeliverable=True)

    assert delete(plain, queue, 100)[1] == {"message-count": 1}

    assert peek(plain, queue) == ["locked", "deferred", "scheduled"]
    assert plain.settle(locked, Delivery.ACCEPTED) == Delivery.ACCEPTED


def test_batch_delete_of_dead_letters(plain: PlainAmqp, queue: str) -> None:
    send(plain, queue, "dead", "alive")
    _message, delivery = plain.take(plain.receiver(queue, 1))
    plain.settle(delivery, Delivery.REJECTED)

    assert delete(plain, f"{queue}/$DeadLetterQueue", 10)[1] == {"message-count": 1}

    assert peek(plain, f"{queue}/$DeadLetterQueue") == []
    assert peek(plain, queue) == ["alive"]


@pytest.mark.parametrize("count", [0, -1, 4001])
def test_batch_delete_refuses_a_count_out_of_range(plain: PlainAmqp, queue: str, count: int) -> None:
    assert delete(plain, queue, count)[0] == 400


def test_schedule_answers_with_an_array_of_longs(plain: PlainAmqp, queue: str) -> None:
    message = Message(body=b"later", inferred=True, id="m")
    message.annotations = {
        symbol("x-opt-scheduled-enqueue-time"): timestamp(int(time.time() * 1000) + 3_600_000)
    }
    status, body = plain.manage(
        queue, "schedule-message", {"messages": [{"message-id": "m", "message": message.encode()}]}
    )

    assert status == 200
    numbers = body["sequence-numbers"]
    assert isinstance(numbers, Array) and numbers.type == Data.LONG
    assert list(numbers.elements) == [1]
    status, body = plain.manage(queue, "cancel-scheduled-message", {"sequence-numbers": numbers})
    assert (status, body) == (200, {})
    assert peek(plain, queue) == []


def deferred_token(plain: PlainAmqp, queue: str) -> uuid.UUID:
    """Send a message, defer it and take it again; the token of its lock."""
    send(plain, queue, "x")
    _message, delivery = plain.take(plain.receiver(queue, 1))
    plain.settle(delivery, Delivery.MODIFIED, undeliverable=True)
    status, body = plain.manage(
        queue,
        "receive-by-sequence-number",
        {"sequence-numbers": array(Data.LONG, 1), "receiver-settle-mode": uint(1)},
    )
    assert status == 200
    [entry] = body["messages"]
    return uuid.UUID(str(entry["lock-token"]))


def test_renew_answers_with_an_array_of_timestamps(plain: PlainAmqp, queue: str) -> None:
    token = deferred_token(plain, queue)

    status, body = plain.manage(queue, "renew-lock", {"lock-tokens": array(Data.UUID, token)})

    assert status == 200
    expirations = body["expirations"]
    assert isinstance(expirations, Array) and expirations.type == Data.TIMESTAMP
    [until] = expirations.elements
    assert 55_000 < until - time.time() * 1000 <= 60_000


@pytest.mark.parametrize(
    ("status", "left", "dead"),
    [
        ("completed", [], []),
        ("abandoned", ["x"], []),
        ("defered", ["x"], []),
        ("suspended", [], ["x"]),
        ("unlocked", ["x"], []),
    ],
)
def test_update_disposition(
    plain: PlainAmqp, queue: str, status: str, left: list[str], dead: list[str]
) -> None:
    token = deferred_token(plain, queue)
    body = {
        "disposition-status": status,
        "lock-tokens": array(Data.UUID, token),
        "deadletter-reason": "why",
        "properties-to-modify": {"mine": 1},
    }

    assert plain.manage(queue, "update-disposition", body)[0] == 200

    assert peek(plain, queue) == left
    assert peek(plain, f"{queue}/$DeadLetterQueue") == dead
    assert plain.manage(queue, "update-disposition", body)[0] == 410


WRONG: dict[str, tuple[str, Any, int, str]] = {
    "no such operation": ("no-such-thing", {}, 501, "amqp:not-implemented"),
    "no count": ("peek-message", {"from-sequence-number": 1}, 400, "com.microsoft:argument-error"),
    "a text for a number": (
        "peek-message",
        {"from-sequence-number": "one", "message-count": int32(1)},
        400,
        "com.microsoft:argument-error",
    ),
    "a body that is no map": ("peek-message", "text", 400, "com.microsoft:argument-error"),
    "an unknown token": (
        "renew-lock",
        {"lock-tokens": array(Data.UUID, uuid.UUID(int=1))},
        410,
        "com.microsoft:message-lock-lost",
    ),
    "no tokens": ("renew-lock", {"lock-tokens": []}, 400, "com.microsoft:argument-out-of-range"),
    "an unknown disposition": (
        "update-disposition",
        {"disposition-status": "eaten", "lock-tokens": array(Data.UUID, uuid.UUID(int=1))},
        400,
        "com.microsoft:argument-error",
    ),
    "a number that is not deferred": (
        "receive-by-sequence-number",
        {"sequence-numbers": array(Data.LONG, 5), "receiver-settle-mode": uint(1)},
        404,
        "com.microsoft:message-not-found",
    ),
    "a message that is none": (
        "schedule-message",
        {"messages": [{"message-id": "m", "message": b"\x00garbage"}]},
        400,
        "amqp:decode-error",
    ),
}


@pytest.mark.req("U7")
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_gets_status_condition_and_text(plain: PlainAmqp, queue: str, case: str) -> None:
    operation, body, status, condition = WRONG[case]

    reply = plain.request(f"{queue}/$management", f"com.microsoft:{operation}", body)

    assert reply.properties["statusCode"] == status
    assert type(reply.properties["statusCode"]) is int32
    assert reply.properties["errorCondition"] == symbol(condition)
    assert type(reply.properties["errorCondition"]) is symbol
    assert isinstance(reply.properties["statusDescription"], str) and reply.properties["statusDescription"]
    # The link lives on.
    send(plain, queue, "after")
    assert peek(plain, queue) == ["after"]
