"""Scripts in front of programs that Spark starts: they change a little and then execute the real program.

They are in the user's cache directory. If the content of a script is not as expected, it is written again.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
from functools import cache
from pathlib import Path


def wrapper(name: str, real: Path, before: str) -> Path:
    """Create a script that executes another program after some lines."""
    script = f'#!/bin/sh\n# Made by busbar.\n{before}exec {shlex.quote(str(real))} "$@"\n'
    key = hashlib.sha256(script.encode()).hexdigest()[:12]
    program = cache_directory() / f"{name}-{key}" / "bin" / name
    try:
        if program.read_text(encoding="utf-8") == script and os.access(program, os.X_OK):
            return program
    except OSError:
        pass
    program.parent.mkdir(parents=True, exist_ok=True)
    # Written beside it and renamed: another process may be starting from it.
    descriptor, fresh = tempfile.mkstemp(dir=program.parent, prefix=f"{name}-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(script)
    os.chmod(fresh, 0o755)
    os.replace(fresh, program)
    return program


def cache_directory() -> Path:
    """The cache directory, for this user only, because its files are executed."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        base.mkdir(parents=True, exist_ok=True)
        if os.access(base, os.W_OK):
            return base / "busbar"
    except OSError:
        pass
    return _process_directory()


@cache
def _process_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="busbar-"))
