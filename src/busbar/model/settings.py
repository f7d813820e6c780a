"""The part of an entity's description that its fragments act on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from busbar.model.message import ACTIVE

if TYPE_CHECKING:
    from busbar.model.topic_settings import (
        TopicSettings,  # made of descriptions, which are made into settings
    )

EARLIEST: Final = 0
LATEST: Final = 1


@final
class TapSettings:
    """A tap of the entity, as its fragments act on it. Ids are given once in a namespace."""

    def __init__(
        self,
        id: i64,
        name: str,
        sub: i64 = ACTIVE,
        events: bool = False,
        consumes: bool = False,
        start: i64 = 0,
        owner: str = "",
        max_age_ms: i64 = 0,
        max_bytes: i64 = 0,
        lease_ms: i64 = 0,
    ) -> None:
        self.id = id
        self.name = name
        self.sub = sub  # ACTIVE: the queue; DEAD: its dead-letter queue
        self.events = events  # what happens to messages is recorded too
        self.consumes = consumes  # what it passes is deleted, and receivers get nothing
        self.start = start  # where it begins in a fragment that meets it: EARLIEST or LATEST
        self.owner = owner  # the checkpoint it belongs to; empty: none so far
        self.max_age_ms = max_age_ms  # 0: no limit
        self.max_bytes = max_bytes  # kept in each fragment; 0: no limit
        self.lease_ms = lease_ms  # how long receivers get nothing after a command of a tap that consumes


TARGET_OPEN: Final = 0
TARGET_MISSING: Final = 1
TARGET_DISABLED: Final = 2


@final
class ForwardSettings:
    """Where one fragment of an entity forwards to."""

    def __init__(
        self,
        path: str,
        fragments: list[int],
        detects_duplicates: bool = False,
        index: i64 = 0,
        takes: i64 = TARGET_OPEN,
    ) -> None:
        self.path = path  # of the target
        self.fragments = (
            fragments  # of the target: one, or as many as a partitioned entity has; none if it is missing
        )
        self.detects_duplicates = detects_duplicates  # then the MessageId is a key there
        self.index = index  # of the fragment that forwards, in its own entity
        self.takes = takes  # TARGET_OPEN, or why the target takes no messages


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
        taps: list[TapSettings] | None = None,
        topic: TopicSettings | None = None,
        only_selected: bool = False,
        path: str = "",
        forward: ForwardSettings | None = None,
        forward_dead_letters: ForwardSettings | None = None,
        transfer_patience_ms: i64 = 60_000,
        max_message_bytes: i64 = 0,
        max_header_bytes: i64 = 0,
        shares_commits: bool = True,
        express_ms: i64 = 0,
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
        self.taps: list[TapSettings] = taps if taps is not None else []
        self.topic: TopicSettings | None = topic  # only of a topic's fragments
        self.only_selected = only_selected  # a message that no subscription selects is refused
        self.path = path  # of the entity
        self.forward = forward  # ForwardTo; of a topic always None
        self.forward_dead_letters = forward_dead_letters  # ForwardDeadLetteredMessagesTo
        self.transfer_patience_ms = transfer_patience_ms  # for which a move waits for a target that is full
        # The gateway checks the size of what is sent; the fragment that of what is moved to it. 0: no limit
        self.max_message_bytes = max_message_bytes
        self.max_header_bytes = max_header_bytes  # of all that is not the body
        self.shares_commits = shares_commits  # EnableBatchedOperations
        self.express_ms = express_ms  # a message that stays longer is written; 0: the entity is not express
