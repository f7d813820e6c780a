"""What an entity's fragments need to know of its description."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64


@final
class FragmentSettings:
    """The slice of an entity's description that its fragments act on (durations in ms, 0 = unlimited)."""

    def __init__(
        self,
        lock_ms: i64,
        max_deliveries: i64,
        ttl_ms: i64,
        dead_letter_on_expiration: bool,
        quota_bytes: i64,
        can_send: bool,
        can_receive: bool,
        duplicate_window_ms: i64 = 0,
        requires_session: bool = False,
    ) -> None:
        self.lock_ms = lock_ms
        self.max_deliveries = max_deliveries
        self.ttl_ms = ttl_ms
        self.dead_letter_on_expiration = dead_letter_on_expiration
        self.quota_bytes = quota_bytes
        self.can_send = can_send
        self.can_receive = can_receive
        self.duplicate_window_ms = duplicate_window_ms  # 0: duplicates are not looked for
        self.requires_session = requires_session  # never changes while the entity lives
