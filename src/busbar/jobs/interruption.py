"""Ends a job on SIGTERM or Ctrl-C within two seconds, whatever it waits for.

1. The first signal raises JobInterrupted in the main thread. So each wait ends: for the broker, for Java, for a batch. The
   blocks that release locks, delete taps or unlock an archive run as usual.
2. When the time is over, a thread ends the process, whatever the main thread does then. A job can be killed at any time
   without harm, so this does none either.
3. The processes that the job has started, Java above all, get SIGTERM and delete their own files.
4. A second signal ends the process at once.
5. SparkContext replaces the handler of SIGINT. `rearm` puts the handler of the job back.

    with Interruption("capture", "the same command continues there") as interruption:
        ...
"""

from __future__ import annotations

import os
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
ALLOWED_SECONDS: Final = 1.8
"""From the signal to the end of the process."""
BATCH_SECONDS: Final = 1.0
"""From the signal to the moment when a batch under way is abandoned; the rest is for what depends on it."""
SHOW_CURSOR: Final = b"\x1b[?25h"


class JobInterrupted(BaseException):
    """A signal ends the job. No part of a job but the outermost handles it; others release what they hold."""

    def __init__(self, number: int, at: float) -> None:
        super().__init__(number)
        self.number = number
        self.at = at
        """When the signal came, by time.monotonic."""

    @property
    def batch_deadline(self) -> float:
        return self.at + BATCH_SECONDS


class Interruption:
    """Handles the signals of this process for the time of a `with` block. In other threads than the main one it does
    nothing, because those get no signals."""

    def __init__(self, name: str, then: str = "", *, is_success: bool = False) -> None:
        """`then` completes the sentence that is printed. If `is_success`, a signal is the usual end of the job."""
        self.name = name
        self.then = then
        self.is_success = is_success
        self.number: int | None = None
        self.descriptor = 2
        """Of standard error."""
        self.at_end: Callable[[], None] = lambda: None
        """Called before the process is ended by force."""
        self._at = 0.0
        self._came = threading.Event()
        self._before: dict[int, object] = {}
        self._is_said = False

    def __enter__(self) -> Interruption:
        global _current
        if threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._watch, name="busbar-interruption", daemon=True).start()
            self._before = {number: signal.getsignal(number) for number in SIGNALS}
            _current = self
            self.rearm()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Put the earlier handlers back, unless a signal came: then the process is about to end."""
        global _current
        if self.number is None and self._before:
            for number, handler in self._before.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            _current = None
            self._came.set()

    def rearm(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    @property
    def exit_code(self) -> int:
        return 0 if self.is_success or self.number is None else 128 + self.number

    @property
    def sentence(self) -> str:
        how = "Ctrl-C" if self.number == signal.SIGINT else "SIGTERM"
        return f"busbar: {self.name} stopped by {how}{'; ' if self.then else ''}{self.then}."

    def finish(self) -> int:
        """Print the sentence, end the processes of Spark, and return the exit code."""
        sys.stdout.flush()
        self._say()
        # The servers of Spark in this process would print a trace for each connection that ends with Java.
        socketserver.BaseServer.handle_error = _ignore_error  # type: ignore[assignment,method-assign]
        _wait_for(_end_children(), self._at + ALLOWED_SECONDS - 0.2)
        return self.exit_code

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            self._force()
        self.number = number
        self._at = time.monotonic()
        self._came.set()
        raise JobInterrupted(number, self._at)

    def _watch(self) -> None:
        self._came.wait()
        if self.number is None:
            return
        time.sleep(max(0.0, self._at + ALLOWED_SECONDS - time.monotonic()))
        self._force()

    def _force(self) -> None:
        self._say()
        self.at_end()
        _end_children()
        os._exit(self.exit_code)

    def _say(self) -> None:
        """Print the sentence, once. The main thread may be writing to standard error at this moment, so the text goes
        around Python's buffers."""
        if self._is_said:
            return
        self._is_said = True
        cursor = SHOW_CURSOR if os.isatty(self.descriptor) else b""
        try:
            os.write(self.descriptor, cursor + self.sentence.encode() + b"\n")
        except OSError:
            pass  # the reader has ended


def _ignore_error(_server: socketserver.BaseServer, _request: object, _address: object) -> None:
    """Print nothing."""


_current: Interruption | None = None


def rearm() -> None:
    """Handle signals again after SparkContext has replaced a handler."""
    if _current is not None and threading.current_thread() is threading.main_thread():
        _current.rearm()


def _end_children() -> list[int]:
    """Send SIGTERM to the processes that this one has started; returns their ids. Without /proc there are none: Java ends
    when its standard input does."""
    found: list[int] = []
    try:
        for path in Path("/proc/self/task").glob("*/children"):
            found += map(int, path.read_text().split())
    except OSError:
        pass
    for pid in found:
        try:
            os.kill(pid, signal.SIGTERM)
        except OSError:
            pass
    return found


def _wait_for(children: list[int], deadline: float) -> None:
    left = set(children)
    while left and time.monotonic() < deadline:
        for pid in list(left):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except OSError:
                ended = True
            if ended:
                left.discard(pid)
        time.sleep(0.02)
