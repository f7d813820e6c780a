"""The queues of the tests of partitioning: of each kind as many regular ones, to compare."""

from __future__ import annotations

from collections import Counter
from typing import Any

from proton import Message, symbol

from harness.serving import PATIENCE

PARTITIONED = 64
BRIEF = 12
BRIEF_LOCK = 0.8
LIMITS = {
    **PATIENCE,
    "min_lock_duration": 100,
    "min_size_in_megabytes": 1,
    "size_increment": 1,
    "min_duplicate_window": 100,
}


def queue_table() -> dict[str, dict[str, object]]:
    table: dict[str, dict[str, object]] = {}
    for index in range(PARTITIONED):
        table[f"regular-{index}"] = {}
        table[f"partitioned-{index}"] = {"EnablePartitioning": True}
    for index in range(BRIEF):
        table[f"partitioned-brief-{index}"] = {
            "EnablePartitioning": True,
            "LockDuration": f"PT{BRIEF_LOCK}S",
        }
        table[f"regular-brief-{index}"] = {"LockDuration": f"PT{BRIEF_LOCK}S"}
    table["unique"] = {"EnablePartitioning": True, "RequiresDuplicateDetection": True}
    table["small"] = {"EnablePartitioning": True, "MaxSizeInMegabytes": 1}
    return table


class Names:
    def __init__(self) -> None:
        self._given: Counter[str] = Counter()

    def take(self, kind: str) -> str:
        self._given[kind] += 1
        return f"{kind}-{self._given[kind] - 1}"


def index_of(message: Any) -> int:
    """The index of the fragment in which a message lies."""
    return int(message.sequence_number) >> 48


def data(text: str, key: str | None = None, session: str | None = None) -> Message:
    """A message of Proton's."""
    message = Message(body=text.encode(), inferred=True, group_id=session)
    if key is not None:
        message.annotations = {symbol("x-opt-partition-key"): key}
    return message
