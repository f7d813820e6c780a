"""A queue whose messages are moved to other fragments, or come from there: the mover's side, step by step."""

from __future__ import annotations

from itertools import count

from busbar.fragment.bounds import Bounds
from busbar.fragment.changes import Changes
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import DEAD, OUTBOX, TRANSFER_DEAD, VIA, Draft, Record
from busbar.model.settings import TARGET_OPEN, ForwardSettings, FragmentSettings, TapSettings
from tests.unit.fragment.queue import LOCK, Queue

TARGET = 50
ALL = list(range(50, 66))


def to(*fragments: int, takes: int = TARGET_OPEN, detects_duplicates: bool = False) -> ForwardSettings:
    return ForwardSettings("target", list(fragments or (TARGET,)), detects_duplicates, 3, takes)


def forwarding(
    forward: ForwardSettings | None = None,
    dead: ForwardSettings | None = None,
    *,
    ttl_ms: int = 0,
    quota_bytes: int = 0,
    can_send: bool = True,
    can_receive: bool = True,
    dead_letter_on_expiration: bool = False,
    requires_session: bool = False,
    duplicate_window_ms: int = 0,
    taps: list[TapSettings] | None = None,
    patience: int = 60_000,
    max_message_bytes: int = 0,
    max_header_bytes: int = 0,
) -> FragmentSettings:
    return FragmentSettings(
        LOCK,
        10,
        ttl_ms,
        dead_letter_on_expiration,
        quota_bytes,
        can_send,
        can_receive,
        duplicate_window_ms,
        requires_session,
        taps,
        None,
        False,
        "source",
        forward,
        dead,
        patience,
        max_message_bytes,
        max_header_bytes,
    )


def via(content: bytes = b"v", target: int = TARGET, path: str = "target") -> Draft:
    return Draft(content, "", None, None, 0, 0, 0, target, VIA, path)


class MovingQueue(Queue):
    """Gathers commits like its base if `group` is set; `fail` undoes what was gathered."""

    def __init__(self, given: FragmentSettings | None = None, bounds: Bounds | None = None) -> None:
        self.unheard: list[e.Effect] = []
        self.fences = count(1)
        super().__init__(given or forwarding(), bounds=bounds)

    def step(self, command: c.Command) -> list[e.Effect]:
        effects = super().step(command)
        if self.group:
            self.unheard += effects
        return effects

    def fail(self) -> list[e.Effect]:
        changes = self.machine.take_changes()
        batches: list[Changes] = [] if changes is None else [changes]
        store = self.store
        self.machine.undo(
            batches,
            self.unheard,
            self.stored.head,
            store.next_due(1),
            store.taps(1),
            store.writers(1),
            store.outbox(1),
        )
        self.unheard = []
        self.group = False
        return self.tick() if self.machine.has_work(self.now) else []

    def change(self, given: FragmentSettings) -> list[e.Effect]:
        """Other settings from now on."""
        self.machine.settings = given
        return self.tick()

    # ---- as the mover ----

    def page(
        self, target: int = TARGET, count: int = 500, max_bytes: int = 1 << 20, after: int = 0
    ) -> e.OutboxPage:
        (answer,) = self.run(c.PullOutbox(1, -1, 5, target, count, max_bytes, after))
        assert isinstance(answer, e.OutboxPage)
        return answer

    def pull(self, target: int = TARGET, count: int = 500, max_bytes: int = 1 << 20) -> list[Record]:
        return self.page(target, count, max_bytes).records

    def remove(
        self, upto: int, refused: int = 0, condition: str = "", text: str = "", target: int = TARGET
    ) -> list[e.Effect]:
        return self.run(c.RemoveMoved(1, target, upto, refused, condition, text))

    def move_all(self, target: int = TARGET) -> list[Record]:
        moved: list[Record] = []
        while page := self.pull(target):
            moved += page
            self.remove(page[-1].n, target=target)
        return moved

    def take(self, *moved: tuple[int, Draft], source: int = 9, fence: int = 0) -> e.Effect:
        """With a fence of its own, unless one is given."""
        fence = fence or next(self.fences)
        command = c.TakeMoved(1, -1, 5, source, fence, [n for n, _ in moved], [one for _, one in moved])
        return self.run(command)[0]

    def taken(self, *moved: tuple[int, Draft], source: int = 9, fence: int = 0) -> tuple[int, int, str]:
        """The mark, how many were refused, and why."""
        answer = self.take(*moved, source=source, fence=fence)
        assert isinstance(answer, e.MovedTaken)
        return answer.upto, answer.refused, answer.condition

    # ---- what is there ----

    def in_lane(self, lane: int) -> list[Record]:
        return [self.lane(lane)[n] for n in sorted(self.lane(lane))]

    def contents(self, lane: int) -> list[bytes]:
        return [record.content or b"" for record in self.in_lane(lane)]

    def reasons(self, lane: int = DEAD) -> list[str]:
        return [text_of((record.overlay or {}).get("DeadLetterReason", b"")) for record in self.in_lane(lane)]

    def waiting(self) -> list[bytes]:
        return self.contents(OUTBOX)

    def transfer_dead(self) -> list[bytes]:
        return self.contents(TRANSFER_DEAD)


def ready(effects: list[e.Effect]) -> list[int]:
    """The targets of which the mover is told."""
    return [effect.target for effect in effects if isinstance(effect, e.OutboxReady)]


def text_of(encoded: bytes) -> str:
    return encoded[2:].decode() if encoded[:1] == b"\xa1" else encoded[5:].decode()
