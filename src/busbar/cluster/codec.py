"""Commands and effects as bytes, for processes that do not have both sides of a fragment.

Each value is an array: the tag of its class, then its fields in their order (msgpack). Decoding is strict: a tag, a
type or a number that does not fit is a WireError, never another exception and never a half-read value.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, Union

import msgspec

from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.commands import Command
from busbar.model.effects import Effect
from busbar.model.message import Draft, Record

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Overlay = dict[str, bytes] | None


class WireError(Exception):
    """The other side sent something that is not of this protocol."""


# The fields of each class, in the order of its constructor. The compiled classes cannot be asked for them.
_Fields = list[tuple[str, Any]]
_HEAD: _Fields = [("fragment", Int), ("origin", Int), ("request", Int)]
_ANSWER: _Fields = [("origin", Int), ("request", Int)]

_DRAFT: _Fields = [
    ("content", bytes),
    ("message_id", str),
    ("session_id", str | None),
    ("partition_key", str | None),
    ("ttl", Int),
    ("scheduled", Int),
]
_RECORD: _Fields = [
    ("n", Int),
    ("enqueued", Int),
    ("ttl", Int),
    ("due", Int),
    ("deliveries", Int),
    ("size", Int),
    ("content", bytes | None),
    ("overlay", _Overlay),
    ("session_id", str | None),
    ("dead_letter_number", Int),
]
_TAP_STATE: _Fields = [
    ("id", Int),
    ("position", Int),
    ("lost", Int),
    ("event_position", Int),
    ("event_lost", Int),
    ("truncated", bool),
    ("kept", Int),
    ("kept_bytes", Int),
    ("end", Int),
    ("truncations", Int),
]
_EVENT: _Fields = [
    ("at", Int),
    ("n", Int),
    ("outcome", Int),
    ("time", Int),
    ("enqueued", Int),
    ("deliveries", Int),
    ("reason", str),
]
_PARTS: dict[type[Any], _Fields] = {
    Draft: _DRAFT,
    Record: _RECORD,
    e.TapState: _TAP_STATE,
    e.MessageEvent: _EVENT,
}
"""What lists within commands and effects are made of."""


def _struct(name: str, fields: _Fields, tag: int | None = None) -> type[msgspec.Struct]:
    return msgspec.defstruct(name, fields, array_like=True, tag=tag, forbid_unknown_fields=True)


def _list_of(part: type[Any]) -> Any:
    return list[tuple[tuple(kind for _, kind in _PARTS[part])]]  # type: ignore[misc]  # made by the table above


_Drafts = _list_of(Draft)
_Records = _list_of(Record)
_TapStates = _list_of(e.TapState)
_Events = _list_of(e.MessageEvent)
_LISTS = [(_Drafts, Draft), (_Records, Record), (_TapStates, e.TapState), (_Events, e.MessageEvent)]

_COMMANDS: dict[type[Command], tuple[int, _Fields]] = {
    c.Send: (
        1,
        [*_HEAD, ("drafts", _Drafts), ("atomic", bool), ("writer", str | None), ("batch", Int)],
    ),
    c.Demand: (
        2,
        [
            ("fragment", Int),
            ("origin", Int),
            ("consumer", Int),
            ("sub", Int),
            ("credit", Int),
            ("drain", bool),
            ("delete", bool),
        ],
    ),
    c.Leave: (3, [("fragment", Int), ("origin", Int), ("consumer", Int)]),
    c.Settle: (
        4,
        [
            *_HEAD,
            ("outcome", Int),
            ("numbers", list[Int]),
            ("nonces", list[Int]),
            ("overlay", _Overlay),
            ("atomic", bool),
        ],
    ),
    c.Renew: (5, [*_HEAD, ("numbers", list[Int]), ("nonces", list[Int])]),
    c.ReceiveDeferred: (
        6,
        [*_HEAD, ("sub", Int), ("numbers", list[Int]), ("delete", bool), ("consumer", Int)],
    ),
    c.Peek: (
        7,
        [
            *_HEAD,
            ("sub", Int),
            ("from_number", Int),
            ("count", Int),
            ("max_bytes", Int),
            ("session", str | None),
        ],
    ),
    c.CancelScheduled: (8, [*_HEAD, ("numbers", list[Int])]),
    c.Purge: (9, [*_HEAD, ("sub", Int), ("before", Int), ("count", Int), ("session", str | None)]),
    c.Inspect: (10, _HEAD),
    c.Tick: (11, [("fragment", Int)]),
    c.InspectDuplicates: (12, _HEAD),
    c.AwaitSession: (13, _HEAD),
    c.CancelAwait: (14, [("fragment", Int), ("origin", Int), ("awaited", Int)]),
    c.AcceptSession: (15, [*_HEAD, ("consumer", Int), ("session", str | None)]),
    c.RenewSession: (16, [*_HEAD, ("consumer", Int)]),
    c.GetSessionState: (17, [*_HEAD, ("consumer", Int)]),
    c.SetSessionState: (18, [*_HEAD, ("consumer", Int), ("state", bytes | None)]),
    c.ListSessions: (19, [*_HEAD, ("updated_after", Int), ("after", str | None), ("top", Int)]),
    c.ReadTap: (
        20,
        [
            *_HEAD,
            ("tap", Int),
            ("sub", Int),
            ("stream", Int),
            ("after", Int),
            ("upto", Int),
            ("count", Int),
            ("max_bytes", Int),
        ],
    ),
    c.ShowTaps: (21, _HEAD),
    c.AdvanceTap: (22, [*_HEAD, ("tap", Int), ("stream", Int), ("position", Int), ("owner", str)]),
    c.ResumeTap: (23, [*_HEAD, ("tap", Int), ("owner", str)]),
    c.FindTime: (24, [*_HEAD, ("sub", Int), ("at", Int)]),
    c.CommitWrites: (25, [*_HEAD, ("writer", str), ("batch", Int)]),
}

_EFFECTS: dict[type[Effect], tuple[int, _Fields]] = {
    e.Sent: (
        1,
        [
            *_ANSWER,
            ("numbers", list[Int]),
            ("refused", list[tuple[Int, str, str]]),
            ("duplicates", list[Int]),
        ],
    ),
    e.Delivered: (
        2,
        [
            ("origin", Int),
            ("consumer", Int),
            ("fragment", Int),
            ("records", _Records),
            ("nonce", Int),
            ("until", Int),
        ],
    ),
    e.Drained: (3, [("origin", Int), ("consumer", Int)]),
    e.Settled: (4, [*_ANSWER, ("lost", list[Int])]),
    e.Renewed: (5, [*_ANSWER, ("until", Int)]),
    e.DeferredReceived: (6, [*_ANSWER, ("records", _Records), ("nonce", Int), ("until", Int)]),
    e.Peeked: (7, [*_ANSWER, ("records", _Records), ("lanes", list[Int])]),
    e.Purged: (8, [*_ANSWER, ("count", Int)]),
    e.Inspected: (
        9,
        [*_ANSWER, ("counts", list[Int]), ("size", Int), ("last", Int), ("duplicates", Int)],
    ),
    e.Done: (10, _ANSWER),
    e.Refused: (11, [*_ANSWER, ("condition", str), ("text", str), ("certain", bool)]),
    e.DuplicateReport: (
        12,
        [
            *_ANSWER,
            ("dropped", Int),
            ("remembered", Int),
            ("ids", list[str]),
            ("times", list[Int]),
            ("numbers", list[Int]),
        ],
    ),
    e.SessionOffered: (13, _ANSWER),
    e.SessionAccepted: (14, [*_ANSWER, ("consumer", Int), ("session", str), ("until", Int)]),
    e.SessionLost: (15, [("origin", Int), ("consumer", Int)]),
    e.SessionState: (16, [*_ANSWER, ("state", bytes | None)]),
    e.SessionList: (17, [*_ANSWER, ("ids", list[str])]),
    e.TapStates: (
        18,
        [*_ANSWER, ("taps", _TapStates), ("end", Int), ("dead_end", Int), ("event_end", Int)],
    ),
    e.TapPage: (
        19,
        [
            *_ANSWER,
            ("heads", bytes),
            ("contents", list[bytes]),
            ("overlays", dict[Int, dict[str, bytes]]),
            ("upto", Int),
        ],
    ),
    e.EventPage: (20, [*_ANSWER, ("events", _Events), ("upto", Int)]),
    e.PositionFound: (21, [*_ANSWER, ("position", Int)]),
}


class Codec:
    """Batches of one family of values: all commands, or all effects."""

    def __init__(self, table: dict[Any, tuple[int, _Fields]]) -> None:
        # There is a row for every message: what is done for each in Python counts.
        self._rows: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
            part: _row_of(fields) for part, fields in _PARTS.items()
        }
        self._builders: dict[type[Any], Callable[[Any], Any]] = {}
        structs = []
        for kind, (tag, fields) in table.items():
            self._rows[kind] = _tagged_row_of(tag, fields)
            struct = _struct(kind.__name__ + "Row", fields, tag)
            self._builders[struct] = _builder(kind, fields)
            structs.append(struct)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._row)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[Union[tuple(structs)]])  # type: ignore[misc]  # noqa: UP007

    def encode(self, values: list[Any]) -> bytes:
        return self._encoder.encode(values)

    def decode(self, encoded: bytes | msgspec.Raw) -> list[Any]:
        try:
            rows = self._decoder.decode(encoded)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WireError(str(error)) from None
        builders = self._builders
        return [builders[type(row)](row) for row in rows]

    def _row(self, value: Any) -> tuple[Any, ...]:
        return self._rows[type(value)](value)


def _row_of(fields: _Fields) -> Callable[[Any], tuple[Any, ...]]:
    if len(fields) == 1:  # of one field attrgetter makes no tuple
        only = attrgetter(fields[0][0])
        return lambda value: (only(value),)
    return attrgetter(*[name for name, _ in fields])


def _tagged_row_of(tag: int, fields: _Fields) -> Callable[[Any], tuple[Any, ...]]:
    row = _row_of(fields)
    return lambda value: (tag, *row(value))


def _builder(kind: type[Any], fields: _Fields) -> Callable[[Any], Any]:
    """How to make the value from its decoded row."""
    places = enumerate(declared for _, declared in fields)
    lists = [(place, part) for place, declared in places for rows, part in _LISTS if declared is rows]

    def build(row: Any) -> Any:
        values = list(msgspec.structs.astuple(row))
        for place, part in lists:
            values[place] = [part(*item) for item in values[place]]
        return kind(*values)

    return build


commands_codec = Codec(_COMMANDS)
effects_codec = Codec(_EFFECTS)
