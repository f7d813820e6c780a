"""Commands and effects as bytes: all of them there and back, and nothing but them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.cluster.codec import WireError, commands_codec, effects_codec
from busbar.cluster.codec_table import COMMANDS as COMMANDS_TABLE
from busbar.cluster.codec_table import EFFECTS as EFFECTS_TABLE
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model import hold_commands as h
from busbar.model.message import DEAD_FORWARD, VIA, Draft, Record
from tools.generate_codec import TABLE, generate

DRAFTS = [
    Draft(b"\x00\xff", "id", None, "pk", 5, 6),
    Draft(b"", "", "session", None, 0, 0),
    Draft(b"", "", "", "", 0, 0),
    Draft(b"", "", None, None, 0, 0, 1, 2, VIA, "path", 3),
]
SEND, SETTLE, INSPECT, TRANSACT = (
    COMMANDS_TABLE[kind][0] for kind in (c.Send, c.Settle, c.Inspect, c.Transact)
)
RECORDS = [
    Record(1, 2, 3, 4, 5, 6, b"c", {"k": b"v"}),
    Record(2**62, 0, 0, 0, 0, 0, None, None, "s", 7, 8, 9, DEAD_FORWARD),
]

COMMANDS: list[c.Command] = [
    c.Send(1, 2, 3, DRAFTS, True),
    c.Send(1, 2, 3, DRAFTS, False, "writer", 7),
    c.ReadTap(1, 2, 3, 4, 1, c.EVENTS, 5, 6, 7, 8),
    c.ShowTaps(1, 2, 3),
    c.AdvanceTap(1, 2, 3, 4, c.MESSAGES, 5, "owner"),
    c.ResumeTap(1, 2, 3, 4, ""),
    c.FindTime(1, 2, 3, 1, 4),
    c.CommitWrites(1, 2, 3, "writer", c.MAX_BATCH),
    c.Demand(1, 2, 3, 1, 100, True, False),
    c.Leave(1, 2, 3),
    c.Settle(1, 2, 3, c.DEAD_LETTER, [1, 2], [3, 4], {"DeadLetterReason": b"\xa1\x01x"}, True),
    c.Settle(1, 2, 3, c.COMPLETE, [], [], None, False),
    c.Renew(1, 2, 3, [1], [2**48 - 1]),
    c.ReceiveDeferred(1, 2, 3, 1, [7], True),
    c.Peek(1, 2, 3, 0, 9, 10, 11),
    c.CancelScheduled(1, 2, 3, [1]),
    c.Purge(1, 2, 3, 0, 4, 5),
    c.Inspect(1, 2, 3),
    c.InspectDuplicates(1, 2, 3),
    c.Tick(1),
    c.ReceiveDeferred(1, 2, 3, 0, [7], False, 4),
    c.Peek(1, 2, 3, 0, 9, 10, 11, "s"),
    c.Purge(1, 2, 3, 0, 4, 5, ""),
    c.AwaitSession(1, 2, 3),
    c.CancelAwait(1, 2, 3),
    c.AcceptSession(1, 2, 3, 4, None),
    c.AcceptSession(1, 2, 3, 4, "s"),
    c.AcceptSession(1, 2, 3, 4, "s", "gateway 5 6"),
    h.ResumeSession(1, 2, 3, "s", [4, 5], [6, 7], "gateway 2 3"),
    h.ReleaseHolds(1, "gateway"),
    c.RenewSession(1, 2, 3, 4),
    c.GetSessionState(1, 2, 3, 4),
    c.SetSessionState(1, 2, 3, 4, None),
    c.SetSessionState(1, 2, 3, 4, b""),
    c.ListSessions(1, 2, 3, 4, None, 6),
    c.ListSessions(1, 2, 3, 4, "s", 6),
    c.InspectSession(1, 2, 3, "s", True),
    c.Transact(
        1,
        2,
        3,
        [
            c.Send(4, 5, 6, DRAFTS, True),
            c.Settle(4, 5, 6, c.DEFER, [7], [8], {"k": b"v"}, True),
            c.CancelScheduled(4, 5, 6, [7]),
            c.SetSessionState(4, 5, 6, 7, b"state"),
        ],
    ),
    c.Transact(1, 2, 3, []),
    c.Probe(1, 2, 3, [c.Settle(1, 2, 3, c.COMPLETE, [4], [5], None, True)]),
    c.ReserveNumbers(1, 2, 3, 4),
    c.PullOutbox(1, 2, 3, 4, 5, 6),
    c.TakeMoved(1, 2, 3, 4, c.fence_of(5, 6), [7, 8, 9, 10], DRAFTS),
    c.RemoveMoved(1, 2, 3, 4, "condition", "text"),
    c.RemoveMoved(1, 2, 3, 0),
    c.AvoidTargets(1, [2, 3]),
    c.ForgetMarks(1, [2]),
]
EFFECTS: list[e.Effect] = [
    e.Sent(1, 2, [3, 0, 2], [(1, "condition", "text")], [2]),
    e.Delivered(1, 2, 3, RECORDS, 4, 5),
    e.Drained(1, 2),
    e.Settled(1, 2, [0]),
    e.Renewed(1, 2, 3),
    e.DeferredReceived(1, 2, RECORDS, 3, 4),
    e.Peeked(1, 2, RECORDS, [0, 1], [0, 5]),
    e.Purged(1, 2, 3),
    e.Inspected(1, 2, [1, 2, 3, 4, 5], 6, 7, 8),
    e.Inspected(1, 2, [], 6, 7, 8, {9: 10, 11: 12}),
    e.DuplicateReport(1, 2, 3, 4, ["id", ""], [5, 6], [7, 8]),
    e.Done(1, 2),
    e.Refused(1, 2, "condition", "text", False),
    e.SessionOffered(1, 2),
    e.SessionAccepted(1, 2, 3, "s", 4),
    e.SessionLost(1, 2),
    e.SessionInspected(1, 2, 3, 4, -1, None),
    e.SessionInspected(1, 2, 0, 0, 5, b"state"),
    e.SessionState(1, 2, None),
    e.SessionState(1, 2, b""),
    e.SessionList(1, 2, ["a", ""]),
    e.TapStates(1, 2, [e.TapState(3, 4, 5, 6, 7, True, 8, 9, 10, 14)], 11, 12, 13),
    e.TapPage(1, 2, b"heads", [b"one", b""], {3: {"name": b"value"}}, 4),
    e.TapPage(1, 2, b"", [], {}, 3),
    e.EventPage(1, 2, [e.MessageEvent(3, 4, e.COMPLETED, 5, 6, 7, "reason")], 8),
    e.PositionFound(1, 2, 3),
    e.OutboxReady(e.MOVER_ORIGIN, 2, 3),
    e.OutboxPage(1, 2, 3, "path", "source", RECORDS),
    e.MovedTaken(1, 2, 3, 4, "condition", "text"),
    e.NumbersReserved(1, 2, 3),
]


def shape(value: Any) -> Any:
    """A value as plain data, from the class's own table of fields."""
    if isinstance(value, list | tuple):
        return [shape(item) for item in value]
    rows = commands_codec._rows | effects_codec._rows
    if type(value) in rows:
        return [type(value).__name__, *map(shape, rows[type(value)](value))]
    return value


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_comes_back_as_it_was(command: c.Command) -> None:
    (back,) = commands_codec.decode(commands_codec.encode([command]))
    assert type(back) is type(command)
    assert shape(back) == shape(command)


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: type(effect).__name__)
def test_an_effect_comes_back_as_it_was(effect: e.Effect) -> None:
    (back,) = effects_codec.decode(effects_codec.encode([effect]))
    assert type(back) is type(effect)
    assert shape(back) == shape(effect)


def test_the_table_is_that_of_the_constructors() -> None:
    assert TABLE.read_text() == generate(), "run tools/generate_codec.py"


def test_every_class_has_a_place_on_the_wire() -> None:
    def subclasses(root: type, module: Any) -> set[type]:
        return {
            kind for kind in vars(module).values() if isinstance(kind, type) and kind.__mro__[1:2] == (root,)
        }

    inside = {c.StoreCopies, h.KeepHolds}  # they stay in one process
    commands = subclasses(c.Command, c) | subclasses(c.Command, h)
    assert commands - inside == set(COMMANDS_TABLE) == {type(one) for one in COMMANDS}
    assert (
        subclasses(e.Effect, e) - {e.Happened} == set(EFFECTS_TABLE) == {type(effect) for effect in EFFECTS}
    )


@pytest.mark.parametrize(
    "rows",
    [
        [[99, 1, 2, 3]],  # no such tag
        [[SEND, 1, 2, 3, "drafts", True]],
        [[INSPECT, 1, 2]],  # a field is missing
        [[INSPECT, 1, 2, 3, 4]],  # a field too many
        [[INSPECT, 1, 2, "3"]],
        [[INSPECT, 1, 2, 2**63]],  # does not fit
        [[SETTLE, 1, 2, 3, 0, [1.5], [1], None, False]],
        [[TRANSACT, 1, 2, 3, [[INSPECT, 1, 2, 3]]]],  # no part of a transaction
        [[TRANSACT, 1, 2, 3, [[1, 2, 3]]]],
        {"not": "a list"},
    ],
)
def test_what_is_not_a_command_is_an_error(rows: Any) -> None:
    with pytest.raises(WireError):
        commands_codec.decode(msgspec.msgpack.encode(rows))


@given(st.binary(max_size=200))
def test_any_bytes_are_commands_or_an_error(data: bytes) -> None:
    for each in (commands_codec, effects_codec):
        try:
            each.decode(data)
        except WireError:
            pass
