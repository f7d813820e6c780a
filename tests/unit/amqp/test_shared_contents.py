"""Deliveries whose payload goes out in two parts: one of its own, and what is in a content from some byte on."""

from __future__ import annotations

import pytest

from busbar.amqp.events import Arrived
from tests.unit.amqp.fake_wire import Wire, client_config, of

SKIP = 8
HEADS = [b"", b"short", b"exactly8", b"h" * 200, b"last"]
CONTENTS = [bytes(SKIP) + b"behind" * 20, b"12345678" + b"x" * 1_000, b"1" * 9, bytes(SKIP), b"2" * 5_000]


def whole() -> list[bytes]:
    return [head + content[SKIP:] for head, content in zip(HEADS, CONTENTS, strict=True)]


@pytest.mark.parametrize("credit", [len(HEADS), 2], ids=["at once", "some wait for credit"])
@pytest.mark.parametrize("frame", [1 << 16, 512], ids=["one frame each", "several frames"])
def test_what_arrives_is_both_parts(credit: int, frame: int) -> None:
    wire = Wire(client=client_config(max_frame_size=frame))
    ours, theirs = wire.receiver(wire.start())
    ours.grant(credit)
    wire.run()
    tags = [b"%d" % number for number in range(len(HEADS))]
    theirs.deliver(tags, HEADS, True, contents=CONTENTS, skip=SKIP)
    _, events = wire.run()
    ours.grant(len(HEADS))
    _, more = wire.run()
    arrived = [each for event in of(Arrived, [*events, *more]) for each in event.deliveries]
    assert [each.payload for each in arrived] == whole()
    assert [each.tag for each in arrived] == tags
    assert HEADS[2] == b"exactly8" and CONTENTS[1][:SKIP] == b"12345678", "nothing was changed"


def test_each_payload_has_its_content() -> None:
    wire = Wire()
    ours, theirs = wire.receiver(wire.start())
    ours.grant(2)
    wire.run()
    with pytest.raises(ValueError, match="1 contents for 2 payloads"):
        theirs.deliver([b"1", b"2"], [b"a", b"b"], True, contents=[b"c" * 9], skip=SKIP)
