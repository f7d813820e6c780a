"""Runs the benchmarks of this directory: all of them, or those named.

    python bench/run.py [name ...]

A benchmark is a module here with a `main()` and a docstring whose first line is its title. The exit code is 1 if one of
them failed or is over its budget.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def title_of(path: Path) -> str | None:
    """The title of a benchmark; None for another module."""
    module = ast.parse(path.read_text("utf-8"))
    runs = any(isinstance(part, ast.FunctionDef) and part.name == "main" for part in module.body)
    return (ast.get_docstring(module) or path.stem).splitlines()[0] if runs else None


def main() -> int:
    titles = {path.stem: title_of(path) for path in sorted(HERE.glob("*.py")) if path.stem != "run"}
    known = {name: title for name, title in titles.items() if title is not None}
    chosen = sys.argv[1:] or list(known)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        print(f"no benchmark is named {', '.join(unknown)}; there are: {', '.join(known)}")
        return 2
    paths = os.pathsep.join(path for path in (str(HERE.parent), os.environ.get("PYTHONPATH", "")) if path)
    failed = []
    for name in chosen:
        print(f"\n=== {name}: {known[name]}", flush=True)
        began = time.monotonic()
        code = subprocess.run(
            [sys.executable, "-m", f"bench.{name}"],
            cwd=HERE.parent,
            env=os.environ | {"PYTHONPATH": paths},
            check=False,
        ).returncode
        print(f"({time.monotonic() - began:.0f} s)")
        if code:
            failed.append(name)
    if failed:
        print(f"\nfailed or over budget: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
