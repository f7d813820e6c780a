"""The shims of this directory, built: shared objects that are preloaded into a serving process and break something."""

from __future__ import annotations

import subprocess
from pathlib import Path


def build_shim(name: str, directory: Path) -> Path:
    """The shared object made of `name`.c, in a directory of the caller's."""
    built = directory / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"], check=True)
    return built
