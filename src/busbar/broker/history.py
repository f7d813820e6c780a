"""Records the history of messages in memory, for the entities that are switched on (fragment/history.py).

Rules
- Steps come as effects, so they are durable. They are kept in this process alone: nothing is written, and nothing survives
  the process.
- The newest `limit` steps are kept, of all entities together. The oldest goes first.
- A step is found by the id of its message. If a step has no content, the id is that of an earlier step with the same number.
  Without one the step is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, final

from busbar.fragment.history import HistorySwitch
from busbar.message.parsing import read_draft
from busbar.model import effects as e
from busbar.model.effects import Effect, Happened
from busbar.model.errors import MalformedMessage
from busbar.model.history import NAMES, HistoryRecording, HistoryStep
from busbar.model.names import key_of

KEPT_STEPS: Final = 100_000
_ARRIVALS: Final = frozenset(
    (e.SENT, e.SENT_VIA, e.SCHEDULED_FOR_LATER, e.COPIED, e.ARRIVED, e.ACTIVATED, e.DUPLICATE_DROPPED)
)
"""Steps with which a message comes: a number that is known may be that of another one."""
_KeptStep: TypeAlias = tuple[str, int, str, e.MessageStep, str, int]
"""The id of the message, the fragment and its path, the step, and the client: its gateway and the number there."""


class HistorySource(Protocol):
    """What a recorder needs of the dispatcher of its process."""

    def connect_history(self, sink: Callable[[list[Effect]], None]) -> None:
        """Pass effects of HISTORY_ORIGIN to this sink."""

    def client_of(self, origin: int) -> tuple[str, int]:
        """The gateway (empty: of this process) and the number there of the connection that an origin stands for."""


@final
class HistoryRecorder:
    def __init__(self, source: HistorySource, limit: int = KEPT_STEPS) -> None:
        self.switch = HistorySwitch()
        self._source = source
        self._limit = limit
        self._steps: deque[_KeptStep] = deque()
        self._by_id: dict[str, deque[_KeptStep]] = {}
        self._ids: dict[tuple[int, int], str] = {}  # by fragment and number
        source.connect_history(self.record)

    def set_recording(self, recording: HistoryRecording) -> None:
        self.switch.set(recording.everything, {key_of(path) for path in recording.entities})

    def record(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Happened):
                self._record(effect)

    def _record(self, happened: Happened) -> None:
        fragment, path = happened.fragment, happened.path
        for step in happened.steps:
            place = (fragment, step.n)
            message_id = None if step.what in _ARRIVALS else self._ids.get(place)
            if message_id is None:
                if step.content is None:
                    continue
                message_id = self._ids[place] = _id_of(step.content)
            step.content = None  # of which the id is enough
            gateway, origin = ("", 0) if step.by <= 0 else self._source.client_of(step.by)
            kept = (message_id, fragment, path, step, gateway, origin)
            self._steps.append(kept)
            self._by_id.setdefault(message_id, deque()).append(kept)
        while len(self._steps) > self._limit:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        message_id, fragment, _, step, _, _ = self._steps.popleft()
        left = self._by_id[message_id]
        left.popleft()
        if not left:
            del self._by_id[message_id]
        if not any(other[1] == fragment and other[3].n == step.n for other in left):
            self._ids.pop((fragment, step.n), None)

    def steps_of(self, message_id: str) -> list[HistoryStep]:
        """The steps of all messages with an id, in their order."""
        return [_shown(kept) for kept in self._by_id.get(message_id, ())]

    @property
    def count(self) -> int:
        return len(self._steps)


def _shown(kept: _KeptStep) -> HistoryStep:
    message_id, fragment, path, step, gateway, origin = kept
    return HistoryStep(
        step.time,
        path,
        NAMES[step.what],
        message_id,
        fragment,
        step.n,
        step.deliveries,
        step.reason,
        gateway,
        origin,
        step.consumer,
    )


def _id_of(content: bytes) -> str:
    try:
        return read_draft(content).message_id
    except MalformedMessage:
        return ""
