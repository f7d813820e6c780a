"""What happened in a simulation, in short lines. Nothing in them depends on the run: no address, no hash, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from busbar.model.message import Draft, Record

KEPT_LINES = 60
_SKIPPED = {"fragment", "overlay", "content", "drafts", "copies", "selected", "topic", "text"}


class Trace:
    """The last lines, for a failure; each line as it comes, for whoever wants them all."""

    def __init__(self) -> None:
        self.on_line: Callable[[str], None] | None = None
        self.lines = 0
        self._last: deque[tuple[str, object]] = deque(maxlen=KEPT_LINES)

    def add(self, text: str, about: object = None) -> None:
        self.lines += 1
        if self.on_line is not None:
            self.on_line(_line(text, about))
        else:
            self._last.append((text, about))

    def last(self) -> list[str]:
        return [_line(text, about) for text, about in self._last]


def _line(text: str, about: object) -> str:
    return text if about is None else f"{text} {short(about)}"


def short(value: object) -> str:
    """The type and the fields of a command, an effect or settings."""
    names = [name for name in dir(value) if not name.startswith("_") and name not in _SKIPPED]
    fields = {name: _field(getattr(value, name)) for name in names}
    shown = " ".join(f"{name}={field}" for name, field in fields.items() if field not in ("None", "[]"))
    counted = [
        f"{len(items)} {name}" for name in ("drafts", "copies") if (items := getattr(value, name, None))
    ]
    return " ".join([type(value).__name__, *counted, shown])


def _field(value: object) -> str:
    if isinstance(value, list):
        return "[" + ",".join(_field(item) for item in value) + "]"
    if isinstance(value, Record):
        return str(value.n)
    if isinstance(value, Draft):
        return f"{len(value.content)} bytes"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, bool | int | tuple) or value is None:
        return str(value)
    return type(value).__name__
