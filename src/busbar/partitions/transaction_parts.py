"""The parts of a transaction, merged into the one command that commits it.

1. There is one Send for each fragment, with all messages in the order in which the client sent them.
2. There is one Settle for each fragment, outcome and set of properties, one CancelScheduled for each fragment, and one
   SetSessionState for each message session: the last state counts.
3. Parts of one fragment make a Transact of that fragment. Parts of several are those of a topic and its subscriptions; their
   Transact names the topic's fragment, which leads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbar.model.commands import CancelScheduled, Send, SetSessionState, Settle, TransactionPart
from busbar.model.message import Overlay
from busbar.partitions.transaction import Operation

SettleKey = tuple[int, int, tuple[tuple[str, bytes], ...]]


def merged_parts(operations: Sequence[Operation]) -> list[TransactionPart]:
    """One part of each kind: settlements, cancellations, states, messages."""
    if len(operations) == 1:
        return operations[0].parts  # which concern one fragment each
    settles: dict[SettleKey, Settle] = {}
    cancels: dict[int, CancelScheduled] = {}
    states: dict[tuple[int, int], SetSessionState] = {}
    sends: dict[int, Send] = {}
    for operation in operations:
        for part in operation.parts:
            fragment = int(part.fragment)
            if isinstance(part, Settle):
                _merge_settle(settles, part)
            elif isinstance(part, CancelScheduled):
                cancel = cancels.setdefault(fragment, CancelScheduled(fragment, part.origin, 0, []))
                cancel.numbers += part.numbers
            elif isinstance(part, SetSessionState):
                states[fragment, int(part.consumer)] = part
            else:
                sends.setdefault(fragment, Send(fragment, part.origin, 0, [], True)).drafts += part.drafts
    return [*settles.values(), *cancels.values(), *states.values(), *sends.values()]


def fragments_of(operations: Sequence[Operation]) -> list[int]:
    """The fragments that the operations concern."""
    return list(dict.fromkeys([int(part.fragment) for operation in operations for part in operation.parts]))


def _merge_settle(settles: dict[SettleKey, Settle], part: Settle) -> None:
    key = (int(part.fragment), int(part.outcome), _properties(part.overlay))
    known = settles.get(key)
    if known is None:
        known = Settle(part.fragment, part.origin, 0, part.outcome, [], [], part.overlay, True)
        settles[key] = known
    known.numbers += part.numbers
    known.nonces += part.nonces


def _properties(overlay: Overlay | None) -> tuple[tuple[str, bytes], ...]:
    return () if overlay is None else tuple(sorted(overlay.items()))
