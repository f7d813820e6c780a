"""Answers of several fragments in one turn: the client gets them together."""

from __future__ import annotations

import asyncio

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, ULong
from busbar.model.commands import Send
from busbar.model.effects import Refused, Sent
from busbar.model.errors import InternalError
from harness.amqp_driver import LoadConnection, payload_of
from harness.waiting import until
from tests.unit.gateway.transactional_port import TransactionalPort

MESSAGES = 40
PLAIN = payload_of(b"x")
DISPOSITION = b"\x00\x53\x15"


def keyed(number: int) -> bytes:
    annotations = {Symbol("x-opt-partition-key"): f"key-{number}"}
    return encode_value(Described(ULong(0x72), annotations)) + PLAIN(number)


async def test_fragments_that_answer_together_are_answered_in_one_range(
    broker: TransactionalPort, client: LoadConnection
) -> None:
    broker.held.add(Send)
    sender = await client.sender("p", keyed, in_flight=MESSAGES)
    frames = 0
    receive = client.data_received

    def count_frames(data: bytes) -> None:
        nonlocal frames
        frames += data.count(DISPOSITION)
        receive(data)

    client.data_received = count_frames  # type: ignore[method-assign]
    sender.start(MESSAGES)
    await until(lambda: sum(len(send.drafts) for send in broker.said(Send)) == MESSAGES)
    sends = broker.said(Send)
    assert len({send.fragment for send in sends}) > 1
    broker.emit_together(*[Sent(send.origin, send.request, [0] * len(send.drafts), []) for send in sends])
    await asyncio.wait_for(sender.until(lambda: sender.acknowledged == MESSAGES), 10)
    assert frames == 1


async def test_a_fragment_that_refuses_does_not_hold_up_the_others(
    broker: TransactionalPort, client: LoadConnection
) -> None:
    broker.held.add(Send)
    sender = await client.sender("p", keyed, in_flight=MESSAGES)
    sender.start(MESSAGES)
    await until(lambda: sum(len(send.drafts) for send in broker.said(Send)) == MESSAGES)
    failed, *stored = broker.said(Send)
    error = InternalError("it failed")
    broker.emit_together(
        *[Sent(send.origin, send.request, [0] * len(send.drafts), []) for send in stored],
        Refused(failed.origin, failed.request, error.condition, error.text, True),
    )
    await asyncio.wait_for(sender.until(lambda: not sender.outstanding), 10)
    assert len(sender.refused) == len(failed.drafts)
    assert sender.acknowledged == MESSAGES - len(failed.drafts)
