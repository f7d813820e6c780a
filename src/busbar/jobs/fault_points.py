"""Named points at which a test may end the process, as a power cut would.

`BUSBAR_FAULT_POINT=before-commit` kills the process with SIGKILL when it reaches that point, `before-commit:3` when it
reaches it for the third time. No other code reads the variable, and without it nothing happens.

For each batch, a capture passes: after-offset-log, mid-write, before-commit, before-place, before-advance. When it compacts,
it passes: inside-compaction, before-replace.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

VARIABLE = "BUSBAR_FAULT_POINT"

_passed: dict[str, int] = {}
_lock = threading.Lock()


def reached(point: str) -> None:
    """End the process here, if `point` is the configured one."""
    if _is_due(point):
        os.kill(os.getpid(), signal.SIGKILL)


def reached_when_written(point: str, is_written: Callable[[], bool]) -> threading.Thread | None:
    """End the process at `point` as soon as other processes have begun to write, which `is_written` finds out. A caller that
    joins the thread does not go beyond it."""
    if not _is_due(point):
        return None
    watch = threading.Thread(target=_kill_when_written, args=(is_written,), daemon=True)
    watch.start()
    return watch


def _is_due(point: str) -> bool:
    name, _, wanted = os.environ.get(VARIABLE, "").partition(":")
    if name != point:
        return False
    with _lock:
        _passed[point] = _passed.get(point, 0) + 1
        return _passed[point] >= int(wanted or 1)


def _kill_when_written(is_written: Callable[[], bool]) -> None:
    while not is_written():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
