"""Transactions of a client whose gateway is in another broker process."""

from __future__ import annotations

import msgspec

from busbar.cluster import protocol
from busbar.cluster.codec import commands_codec
from busbar.cluster.peer_server import PeerServer
from busbar.model.commands import (
    COMPLETE,
    Command,
    Probe,
    Send,
    SetSessionState,
    Settle,
    Transact,
    TransactionPart,
)
from busbar.model.message import Draft
from tests.conformance.port_process import fragments

THEIRS = 5


async def test_the_parts_of_a_transaction_have_the_origin_of_their_command() -> None:
    """A fragment tells the holder of a message session by it. Another client may have the other process's number here."""
    async with fragments() as port:
        submitted: list[Command] = []
        port.submit = submitted.extend  # type: ignore[method-assign, assignment]
        served = PeerServer(port, list, lambda _: None)
        for kind in (Probe, Transact):
            parts: list[TransactionPart] = [
                Send(1, THEIRS, 0, [Draft(b"m", "1", None, None, 0, 0)], True),
                Settle(1, THEIRS, 0, COMPLETE, [1], [2], None, True),
                SetSessionState(1, THEIRS, 0, 9, b"state"),
            ]
            encoded = commands_codec.encode([kind(1, THEIRS, 3, parts)])
            served.handle_frame(protocol.CommandsFrame("port", msgspec.Raw(encoded)))
        for command in submitted:
            assert isinstance(command, Probe | Transact)
            assert command.origin != THEIRS
            assert {part.origin for part in command.parts} == {command.origin}
        assert len(submitted) == 2
