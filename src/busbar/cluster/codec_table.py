"""The fields of commands, effects and settings, in the order of their constructors, as they cross channels.

Made by tools/generate_codec.py from the sources of busbar.model. Do not edit it; run the tool.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from busbar.model.commands import (
    AcceptSession,
    AdvanceTap,
    AvoidTargets,
    AwaitSession,
    CancelAwait,
    CancelScheduled,
    CommitWrites,
    Demand,
    FindTime,
    ForgetMarks,
    GetSessionState,
    Inspect,
    InspectDuplicates,
    InspectSession,
    Leave,
    ListSessions,
    Peek,
    Probe,
    PullOutbox,
    Purge,
    ReadTap,
    ReceiveDeferred,
    RemoveMoved,
    Renew,
    RenewSession,
    ReserveNumbers,
    ResumeTap,
    Send,
    SetSessionState,
    Settle,
    ShowTaps,
    TakeMoved,
    Tick,
    Transact,
)
from busbar.model.effects import (
    DeferredReceived,
    Delivered,
    Done,
    Drained,
    DuplicateReport,
    EventPage,
    Inspected,
    MessageEvent,
    MovedTaken,
    NumbersReserved,
    OutboxPage,
    OutboxReady,
    Peeked,
    PositionFound,
    Purged,
    Refused,
    Renewed,
    Sent,
    SessionAccepted,
    SessionInspected,
    SessionList,
    SessionLost,
    SessionOffered,
    SessionState,
    Settled,
    TapPage,
    TapState,
    TapStates,
)
from busbar.model.hold_commands import ReleaseHolds, ResumeSession
from busbar.model.message import Draft, Record
from busbar.model.settings import ForwardSettings, TapSettings

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Fields = list[tuple[str, Any]]

# fmt: off
PARTS: dict[type[Any], Fields] = {
    Draft: [
        ("content", bytes), ("message_id", str), ("session_id", str | None), ("partition_key", str | None),
        ("ttl", Int), ("scheduled", Int), ("hops", Int), ("target", Int), ("kind", Int), ("path", str),
        ("number", Int), ("forced", bool),
    ],
    Record: [
        ("n", Int), ("enqueued", Int), ("ttl", Int), ("due", Int), ("deliveries", Int), ("size", Int),
        ("content", bytes | None), ("overlay", dict[str, bytes] | None), ("session_id", str | None),
        ("dead_letter_number", Int), ("hops", Int), ("target", Int), ("kind", Int),
    ],
    TapState: [
        ("id", Int), ("position", Int), ("lost", Int), ("event_position", Int), ("event_lost", Int),
        ("truncated", bool), ("kept", Int), ("kept_bytes", Int), ("end", Int), ("truncations", Int),
    ],
    MessageEvent: [
        ("at", Int), ("n", Int), ("outcome", Int), ("time", Int), ("enqueued", Int), ("deliveries", Int),
        ("reason", str),
    ],
    TapSettings: [
        ("id", Int), ("name", str), ("sub", Int), ("events", bool), ("consumes", bool), ("start", Int),
        ("owner", str), ("max_age_ms", Int), ("max_bytes", Int), ("lease_ms", Int),
    ],
    ForwardSettings: [
        ("path", str), ("fragments", list[Int]), ("detects_duplicates", bool), ("index", Int),
        ("takes", Int),
    ],
}
"""What commands, effects and settings are made of, alone or in lists, but for other commands."""

COMMANDS: dict[type[Any], tuple[int, Fields]] = {
    Send: (1, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("drafts", list[Draft]), ("atomic", bool),
        ("writer", str | None), ("batch", Int),
    ]),
    Demand: (2, [
        ("fragment", Int), ("origin", Int), ("consumer", Int), ("sub", Int), ("credit", Int),
        ("drain", bool), ("delete", bool),
    ]),
    Leave: (3, [
        ("fragment", Int), ("origin", Int), ("consumer", Int),
    ]),
    Settle: (4, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("outcome", Int), ("numbers", list[Int]),
        ("nonces", list[Int]), ("overlay", dict[str, bytes] | None), ("atomic", bool),
    ]),
    Renew: (5, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("numbers", list[Int]), ("nonces", list[Int]),
    ]),
    ReceiveDeferred: (6, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("sub", Int), ("numbers", list[Int]),
        ("delete", bool), ("consumer", Int),
    ]),
    Peek: (7, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("sub", Int), ("from_number", Int),
        ("count", Int), ("max_bytes", Int), ("session", str | None), ("with_locks", bool),
    ]),
    CancelScheduled: (8, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("numbers", list[Int]),
    ]),
    Purge: (9, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("sub", Int), ("before", Int), ("count", Int),
        ("session", str | None),
    ]),
    AwaitSession: (10, [
        ("fragment", Int), ("origin", Int), ("request", Int),
    ]),
    CancelAwait: (11, [
        ("fragment", Int), ("origin", Int), ("awaited", Int),
    ]),
    AcceptSession: (12, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("consumer", Int), ("session", str | None),
        ("holder", str),
    ]),
    RenewSession: (13, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("consumer", Int),
    ]),
    GetSessionState: (14, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("consumer", Int),
    ]),
    SetSessionState: (15, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("consumer", Int), ("state", bytes | None),
    ]),
    ListSessions: (16, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("updated_after", Int), ("after", str | None),
        ("top", Int),
    ]),
    InspectSession: (17, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("session", str), ("with_state", bool),
    ]),
    ReadTap: (18, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("tap", Int), ("sub", Int), ("stream", Int),
        ("after", Int), ("upto", Int), ("count", Int), ("max_bytes", Int),
    ]),
    ShowTaps: (19, [
        ("fragment", Int), ("origin", Int), ("request", Int),
    ]),
    AdvanceTap: (20, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("tap", Int), ("stream", Int),
        ("position", Int), ("owner", str),
    ]),
    ResumeTap: (21, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("tap", Int), ("owner", str),
    ]),
    FindTime: (22, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("sub", Int), ("at", Int),
    ]),
    CommitWrites: (23, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("writer", str), ("batch", Int),
    ]),
    Transact: (24, [
        ("fragment", Int), ("origin", Int), ("request", Int),
        ("parts", list[Send | Settle | CancelScheduled | SetSessionState]),
    ]),
    Probe: (25, [
        ("fragment", Int), ("origin", Int), ("request", Int),
        ("parts", list[Send | Settle | CancelScheduled | SetSessionState]),
    ]),
    ReserveNumbers: (26, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("count", Int),
    ]),
    PullOutbox: (27, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("target", Int), ("count", Int),
        ("max_bytes", Int), ("after", Int),
    ]),
    TakeMoved: (28, [
        ("fragment", Int), ("origin", Int), ("request", Int), ("source", Int), ("fence", Int),
        ("numbers", list[Int]), ("drafts", list[Draft]),
    ]),
    RemoveMoved: (29, [
        ("fragment", Int), ("target", Int), ("upto", Int), ("refused", Int), ("condition", str),
        ("text", str),
    ]),
    AvoidTargets: (30, [
        ("fragment", Int), ("targets", list[Int]),
    ]),
    ForgetMarks: (31, [
        ("fragment", Int), ("sources", list[Int]),
    ]),
    Inspect: (32, [
        ("fragment", Int), ("origin", Int), ("request", Int),
    ]),
    InspectDuplicates: (33, [
        ("fragment", Int), ("origin", Int), ("request", Int),
    ]),
    Tick: (34, [
        ("fragment", Int),
    ]),
    ResumeSession: (35, [
        ("fragment", Int), ("origin", Int), ("consumer", Int), ("session", str), ("numbers", list[Int]),
        ("nonces", list[Int]), ("holder", str),
    ]),
    ReleaseHolds: (36, [
        ("fragment", Int), ("gateway", str),
    ]),
}

EFFECTS: dict[type[Any], tuple[int, Fields]] = {
    Sent: (1, [
        ("origin", Int), ("request", Int), ("numbers", list[Int]), ("refused", list[tuple[Int, str, str]]),
        ("duplicates", list[Int]),
    ]),
    Delivered: (2, [
        ("origin", Int), ("consumer", Int), ("fragment", Int), ("records", list[Record]), ("nonce", Int),
        ("until", Int),
    ]),
    Drained: (3, [
        ("origin", Int), ("consumer", Int),
    ]),
    Settled: (4, [
        ("origin", Int), ("request", Int), ("lost", list[Int]),
    ]),
    Renewed: (5, [
        ("origin", Int), ("request", Int), ("until", Int),
    ]),
    DeferredReceived: (6, [
        ("origin", Int), ("request", Int), ("records", list[Record]), ("nonce", Int), ("until", Int),
    ]),
    Peeked: (7, [
        ("origin", Int), ("request", Int), ("records", list[Record]), ("lanes", list[Int]),
        ("locked", list[Int]),
    ]),
    SessionOffered: (8, [
        ("origin", Int), ("request", Int),
    ]),
    SessionAccepted: (9, [
        ("origin", Int), ("request", Int), ("consumer", Int), ("session", str), ("until", Int),
    ]),
    SessionLost: (10, [
        ("origin", Int), ("consumer", Int),
    ]),
    SessionState: (11, [
        ("origin", Int), ("request", Int), ("state", bytes | None),
    ]),
    SessionList: (12, [
        ("origin", Int), ("request", Int), ("ids", list[str]),
    ]),
    SessionInspected: (13, [
        ("origin", Int), ("request", Int), ("until", Int), ("locked", Int), ("size", Int),
        ("state", bytes | None),
    ]),
    Purged: (14, [
        ("origin", Int), ("request", Int), ("count", Int),
    ]),
    Inspected: (15, [
        ("origin", Int), ("request", Int), ("counts", list[Int]), ("size", Int), ("last", Int),
        ("duplicates", Int), ("outbox", dict[Int, Int] | None), ("locked", Int), ("oldest", Int),
    ]),
    DuplicateReport: (16, [
        ("origin", Int), ("request", Int), ("dropped", Int), ("remembered", Int), ("ids", list[str]),
        ("times", list[Int]), ("numbers", list[Int]),
    ]),
    TapStates: (17, [
        ("origin", Int), ("request", Int), ("taps", list[TapState]), ("end", Int), ("dead_end", Int),
        ("event_end", Int),
    ]),
    TapPage: (18, [
        ("origin", Int), ("request", Int), ("heads", bytes), ("contents", list[bytes]),
        ("overlays", dict[Int, dict[str, bytes]]), ("upto", Int),
    ]),
    EventPage: (19, [
        ("origin", Int), ("request", Int), ("events", list[MessageEvent]), ("upto", Int),
    ]),
    PositionFound: (20, [
        ("origin", Int), ("request", Int), ("position", Int),
    ]),
    OutboxReady: (21, [
        ("origin", Int), ("fragment", Int), ("target", Int),
    ]),
    OutboxPage: (22, [
        ("origin", Int), ("request", Int), ("target", Int), ("path", str), ("source", str),
        ("records", list[Record]),
    ]),
    MovedTaken: (23, [
        ("origin", Int), ("request", Int), ("upto", Int), ("refused", Int), ("condition", str),
        ("text", str),
    ]),
    NumbersReserved: (24, [
        ("origin", Int), ("request", Int), ("first", Int),
    ]),
    Done: (25, [
        ("origin", Int), ("request", Int),
    ]),
    Refused: (26, [
        ("origin", Int), ("request", Int), ("condition", str), ("text", str), ("certain", bool),
    ]),
}

SETTINGS: Fields = [
    ("lock_ms", Int), ("max_deliveries", Int), ("ttl_ms", Int), ("dead_letter_on_expiration", bool),
    ("quota_bytes", Int), ("can_send", bool), ("can_receive", bool), ("duplicate_window_ms", Int),
    ("requires_session", bool), ("taps", list[TapSettings]), ("only_selected", bool), ("path", str),
    ("forward", ForwardSettings | None), ("forward_dead_letters", ForwardSettings | None),
    ("transfer_patience_ms", Int), ("max_message_bytes", Int), ("max_header_bytes", Int),
    ("shares_commits", bool), ("express_ms", Int),
]
