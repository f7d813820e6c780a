"""Builds the shims of this directory: shared objects that are preloaded into a controller."""

from __future__ import annotations

import subprocess
from pathlib import Path


def build_shim(name: str, directory: Path) -> Path:
    """Compile `name`.c into a directory of the caller's. Fails without a C compiler, because tests with a shim are not
    skipped."""
    built = directory / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"], check=True)
    return built
