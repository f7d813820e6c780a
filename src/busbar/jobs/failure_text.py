"""Describes the failure of a job in one sentence: errors of Spark contain it between the traces of several processes."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

LONGEST: Final = 400
_CONDITION: Final = re.compile(r"\[(BUSBAR_[A-Z_]+)\] ([^\n]+)")
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+(?:Exception|Error): )?([^\n]+)$", re.MULTILINE)
_RAISED: Final = re.compile(r"^(?:[A-Za-z_][\w.]*)(?:Error|Exception|Interrupt): ([^\n]+)$", re.MULTILINE)


class JobFailureKind(Enum):
    """What a failure means for the one who started the job."""

    OTHER = "other"
    USAGE = "usage"
    NOT_FOUND = "not found"
    REFUSED = "refused"


class JobError(Exception):
    """A job cannot be done as requested, or cannot continue. The text is a sentence; a cause of Spark is its `__cause__`."""

    kind: JobFailureKind | None = None
    """None: the condition in the text decides."""

    def __init__(self, text: str, kind: JobFailureKind | None = None) -> None:
        super().__init__(text)
        if kind is not None:
            self.kind = kind


KINDS: Final = {
    "BUSBAR_OPTION": JobFailureKind.USAGE,
    "BUSBAR_NOT_FOUND": JobFailureKind.NOT_FOUND,
    "BUSBAR_UNAUTHORIZED": JobFailureKind.REFUSED,
    "BUSBAR_TAP_OWNED": JobFailureKind.REFUSED,
    "BUSBAR_REFUSED": JobFailureKind.REFUSED,
}
BATCH_OVER: Final = "BUSBAR_SINK_BATCH_OVER"


def condition_of(text: str) -> tuple[str, str] | None:
    """The first condition of the `busbar` format in a text, and its sentence."""
    found = _CONDITION.search(text)
    return None if found is None else (found[1], found[2].strip())


def sentence_of(error: BaseException | str) -> str:
    """The sentence in an error: that of Busbar, else of the exception that was raised first, else its first line."""
    text = str(error).strip()
    own = condition_of(text)
    if own is not None:
        return _bounded(own[1])
    if "Traceback (most recent call last)" in text and (raised := _RAISED.findall(text)):
        return _bounded(raised[-1])
    if causes := _CAUSE.findall(text):
        return _bounded(causes[-1])
    first = text.split("\n", 1)[0].strip()
    return _bounded(first or type(error).__name__)


def kind_of(error: BaseException | str) -> JobFailureKind:
    own = condition_of(str(error))
    return JobFailureKind.OTHER if own is None else KINDS.get(own[0], JobFailureKind.OTHER)


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
