"""What must be true of messages, by what clients of several brokers asked for and what they were answered.

Each message has a content of its own, by which it is recognised wherever it turns up. What was answered is certain; what was
refused without certainty, or never answered, may or may not have taken place: such a message is there once or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from busbar.model.message import Record


class Fate(Enum):
    """What became of a send, as its sender knows it."""

    ASKED = auto()
    UNKNOWN = auto()
    SENT = auto()
    DUPLICATE = auto()
    REFUSED = auto()


@dataclass(slots=True)
class SimulatedMessage:
    content: bytes
    fragment: int
    message_id: str
    session: str | None
    fate: Fate = Fate.ASKED
    removals: int = 0
    """Completions under way, and those of unknown outcome."""
    removed_at: int = 0
    """When its completion was acknowledged (0: it was not), as a number of the world's log."""
    was_seen: bool = False

    @property
    def must_be_there(self) -> bool:
        return self.fate is Fate.SENT and not self.removals and not self.removed_at

    @property
    def must_not_be_there(self) -> bool:
        return self.removed_at > 0 or self.fate in (Fate.DUPLICATE, Fate.REFUSED)


class Truth:
    def __init__(self) -> None:
        self.messages: dict[bytes, SimulatedMessage] = {}
        self._contents: dict[tuple[int, int], bytes] = {}
        """By fragment and number."""

    def message(self, fragment: int, message_id: str, session: str | None) -> SimulatedMessage:
        """Another message, about to be sent."""
        content = b"%d" % (len(self.messages) + 1)
        made = self.messages[content] = SimulatedMessage(content, fragment, message_id, session)
        return made

    # ---- answers to sends ----

    def sent(self, message: SimulatedMessage, number: int) -> None:
        assert message.fate is Fate.ASKED
        message.fate = Fate.SENT
        self._numbered(message.fragment, number, message.content)

    def dropped(self, message: SimulatedMessage) -> None:
        """It has the id of an earlier one."""
        assert message.fate is Fate.ASKED
        assert not message.was_seen, f"{message} was dropped, and yet it was seen"
        message.fate = Fate.DUPLICATE

    def send_refused(self, message: SimulatedMessage, certain: bool) -> None:
        assert message.fate is Fate.ASKED
        if certain:
            assert not message.was_seen, f"{message} was certainly refused, and yet it was seen"
            message.fate = Fate.REFUSED
        else:
            message.fate = Fate.UNKNOWN

    # ---- sights ----

    def seen(self, fragment: int, record: Record, since: int) -> SimulatedMessage:
        """A client got to see a record. `since` is a moment at or after which it certainly was there."""
        assert record.content is not None
        message = self.messages.get(record.content)
        assert message is not None, f"{record.content!r} was never sent"
        assert message.fragment == fragment, f"{message} is in fragment {fragment}"
        assert message.fate not in (Fate.DUPLICATE, Fate.REFUSED), f"{message} was seen"
        assert not 0 < message.removed_at < since, f"{message} has come back"
        message.was_seen = True
        self._numbered(fragment, record.n, record.content)
        return message

    def _numbered(self, fragment: int, number: int, content: bytes) -> None:
        known = self._contents.setdefault((fragment, number), content)
        assert known == content, f"{known!r} and {content!r} have the number {number} of fragment {fragment}"

    # ---- all of it ----

    def check(
        self, fragment: int, contents: Iterable[bytes], *, detects_duplicates: bool, at_most_once: bool
    ) -> None:
        """Compare a fragment's durable messages with what was answered, when nothing is under way. If messages are deleted
        as they are delivered (`at_most_once`), any of them may be gone."""
        there = Counter(contents)
        assert not [content for content, times in there.items() if times > 1], "a message is there twice"
        by_id: dict[str, list[SimulatedMessage]] = {}
        for message in self.messages.values():
            if message.fragment != fragment:
                continue
            is_there = message.content in there
            assert is_there or not message.must_be_there or at_most_once, f"{message} is lost"
            assert not (is_there and message.must_not_be_there), f"{message} is there"
            if is_there or message.was_seen or message.removed_at:
                by_id.setdefault(message.message_id, []).append(message)
        if detects_duplicates:
            twice = {id: both for id, both in by_id.items() if len(both) > 1}
            assert not twice, f"these have the same id: {twice}"
            for message in self.messages.values():
                if message.fragment == fragment and message.fate is Fate.DUPLICATE:
                    others = [one for one in self.messages.values() if one.message_id == message.message_id]
                    assert any(
                        one.fate in (Fate.SENT, Fate.UNKNOWN) and one.fragment == fragment for one in others
                    ), f"{message} was dropped, and there is no original"
        assert there.keys() <= self.messages.keys()
