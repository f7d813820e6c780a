"""Properties that settlements set count in the size of their entity, and end at its quota: one frame names many messages."""

from __future__ import annotations

import re
import time
from uuid import UUID

import pytest

from busbar.amqp.codec import decode_value, encode_value
from busbar.amqp.types import Array, Described, Symbol, UInt, ULong
from harness.serving import Busbar
from tests.interop.administration import BareHttp
from tests.robustness.attacks import server as server  # the fixture
from tests.robustness.bystander import Bystander
from tests.robustness.test_listeners import fill
from tests.robustness.wire import (
    DISPOSITION,
    MODIFIED,
    RECEIVER,
    REJECTED,
    SENDER,
    TRANSFER,
    Wire,
    logged_in,
    performative,
)

MEGABYTE = 1024 * 1024
COUNT = 1_000
NOTE = 50_000
QUOTA_EXCEEDED = "amqp:resource-limit-exceeded"
OVER_AMQP = {
    "abandon": Described(ULong(MODIFIED), [True, False, {Symbol("note"): b"n" * NOTE}]),
    "defer": Described(ULong(MODIFIED), [True, True, {Symbol("note"): b"n" * NOTE}]),
    "dead-letter": Described(
        ULong(REJECTED),
        [Described(ULong(0x1D), [Symbol("com.microsoft:dead-letter"), None, {Symbol("note"): b"n" * NOTE}])],
    ),
}
STATUSES = {"abandon": "abandoned", "defer": "defered", "dead-letter": "suspended"}


def size_of(server: Busbar, queue: str) -> int:
    """What the namespace says how large the queue is."""
    status, _, text = BareHttp(server).request("GET", f"/{queue}?api-version=2021-05")
    found = re.search("<SizeInBytes>([0-9]+)</SizeInBytes>", text)
    assert status == 200 and found is not None
    return int(found[1])


def bytes_on_disk(server: Busbar) -> int:
    return sum(file.stat().st_size for file in server.data.rglob("*") if file.is_file())


def held(wire: Wire, queue: str, count: int) -> list[UUID]:
    """Receive so many messages and leave them locked; their lock tokens."""
    wire.attach(0, RECEIVER, queue)
    wire.grant(0, count)
    return [UUID(bytes_le=bytes(wire.until(TRANSFER).field(2))) for _ in range(count)]  # type: ignore[call-overload]


def dispose(wire: Wire, how: str, count: int) -> str:
    """One frame about all of them; the condition with which they are refused, or nothing."""
    wire.say(DISPOSITION, [True, UInt(0), UInt(count - 1), False, OVER_AMQP[how]])
    answered, conditions = 0, set()
    while answered < count:
        heard = wire.until(DISPOSITION)
        answered += heard.count
        conditions.add(heard.condition)
    [condition] = conditions
    return condition


def ask(wire: Wire, queue: str, how: str, tokens: list[UUID]) -> str:
    """The same over the management link; the condition in its answer, or nothing."""
    wire.attach(1, SENDER, f"{queue}/$management", name="ask")
    wire.attach(2, RECEIVER, f"{queue}/$management", name="answer")
    wire.grant(2, 10)
    operation = encode_value(Described(ULong(0x74), {"operation": "com.microsoft:update-disposition"}))
    value = {
        "disposition-status": STATUSES[how],
        "lock-tokens": Array(0x98, [*tokens]),
        "properties-to-modify": {"note": b"n" * NOTE},
    }
    request = performative(0x73, ["r", None, None, None, "answer-end"]) + operation
    request += encode_value(Described(ULong(0x77), value))
    wire.transfer(1, 0, request[:60_000], more=True)
    wire.transfer(1, 0, request[60_000:])
    answer, position = wire.until(TRANSFER).payload, 0
    while position < len(answer):
        section, position = decode_value(answer, position, len(answer))
        assert isinstance(section, Described)
        if section.descriptor == 0x74:
            assert isinstance(section.value, dict)
            return str(section.value.get("errorCondition") or "")
    raise AssertionError("the answer has no application properties")


def settle(server: Busbar, queue: str, road: str, how: str, count: int) -> str:
    with logged_in(server.port, 30) as wire:
        tokens = held(wire, queue, count)
        return dispose(wire, how, count) if road == "disposition" else ask(wire, queue, how, tokens)


@pytest.mark.parametrize("how", STATUSES)
@pytest.mark.parametrize("road", ["disposition", "management"])
def test_fifty_kilobytes_do_not_become_fifty_megabytes(
    server: Busbar, bystander: Bystander, road: str, how: str
) -> None:
    """In a queue of one megabyte: refused, with nothing on disk, and the messages are there as before."""
    queue = f"{road}-{how}"
    fill(server, queue, COUNT)
    before, disk = size_of(server, queue), bytes_on_disk(server)
    assert settle(server, queue, road, how, COUNT) == QUOTA_EXCEEDED
    bystander.works()
    grown = bytes_on_disk(server) - disk
    print(f"{road}, {how}: {grown >> 10} KB more on disk")
    assert grown < 4 * MEGABYTE
    assert size_of(server, queue) == before


@pytest.mark.parametrize("how", STATUSES)
@pytest.mark.parametrize("road", ["disposition", "management"])
def test_what_is_taken_is_counted(server: Busbar, bystander: Bystander, road: str, how: str) -> None:
    """In a queue with room for it the size shows every byte."""
    queue, count = f"roomy-{road}-{how}", 20
    fill(server, queue, count)
    before = size_of(server, queue)
    assert settle(server, queue, road, how, count) == ""
    deadline = time.monotonic() + 10
    while size_of(server, queue) - before < count * NOTE and time.monotonic() < deadline:
        time.sleep(0.05)
    grown = size_of(server, queue) - before
    assert count * NOTE <= grown < count * (NOTE + 200)
