"""The queues of the interop server: several of each kind, so that every test has its own and none sees another's."""

from __future__ import annotations

from collections.abc import Mapping

from harness.serving import PATIENCE

LIMITS = {
    **PATIENCE,
    "min_lock_duration": 100,
    "min_time_to_live": 100,
    "min_size_in_megabytes": 1,
    "size_increment": 1,
    "min_duplicate_window": 100,
}

BRIEF_LOCK = 0.8
"""Seconds that a lock of a `brief` queue holds."""
MODEST_LOCK = 3
"""Seconds that a lock of a `modest` queue holds: the SDK's automatic renewer looks only every half second."""
BRIEF_LIFE = 0.4
"""Seconds that a message of a `fading` or `vanishing` queue lives."""
BRIEF_WINDOW = 0.8
"""Seconds for which a `unique-briefly` queue remembers the ids of its messages."""

_KINDS: dict[str, tuple[int, Mapping[str, object]]] = {
    "plain": (220, {}),
    "brief": (30, {"LockDuration": f"PT{BRIEF_LOCK}S"}),
    "modest": (8, {"LockDuration": f"PT{MODEST_LOCK}S"}),
    "twice": (10, {"MaxDeliveryCount": 2}),
    "brief-once": (6, {"MaxDeliveryCount": 1, "LockDuration": f"PT{BRIEF_LOCK}S"}),
    "vanishing": (6, {"DefaultMessageTimeToLive": f"PT{BRIEF_LIFE}S"}),
    "fading": (
        6,
        {"DefaultMessageTimeToLive": f"PT{BRIEF_LIFE}S", "DeadLetteringOnMessageExpiration": True},
    ),
    "buried": (10, {"DeadLetteringOnMessageExpiration": True}),
    "tiny": (6, {"MaxSizeInMegabytes": 1}),
    "unique": (16, {"RequiresDuplicateDetection": True}),
    "unique-briefly": (
        2,
        {
            "RequiresDuplicateDetection": True,
            "DuplicateDetectionHistoryTimeWindow": f"PT{BRIEF_WINDOW}S",
        },
    ),
    "disabled": (1, {"Status": "Disabled"}),
    "send-disabled": (1, {"Status": "SendDisabled"}),
    "receive-disabled": (1, {"Status": "ReceiveDisabled"}),
    "sessions": (1, {"RequiresSession": True}),
}


def pool_queues() -> dict[str, Mapping[str, object]]:
    """All queues, as `serving` wants them."""
    return {
        f"{kind}-{index}": properties
        for kind, (count, properties) in _KINDS.items()
        for index in range(count)
    }


class QueuePool:
    """Hands out each queue once."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def take(self, kind: str) -> str:
        index = self._taken.get(kind, 0)
        assert index < _KINDS[kind][0], f"the pool has too few queues of the kind {kind}"
        self._taken[kind] = index + 1
        return f"{kind}-{index}"
