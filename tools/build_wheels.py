"""Builds dist/: a wheel with compiled rooms for this Python and this kind of machine, and a pure one for any.

Both hold the same source. The compiled output of `make run` is used again. Without a C compiler there is only the pure one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.build_rooms import can_compile  # noqa: E402


def build(target: Path, *, compiled: bool) -> Path:
    """Build one wheel in the target directory."""
    # A module that was deleted since must not be included.
    for left in ROOT.joinpath("build").glob("lib*"):
        shutil.rmtree(left)
    environment = {name: value for name, value in os.environ.items() if name != "BUSBAR_INTERPRETED"}
    if not compiled:
        environment["BUSBAR_INTERPRETED"] = "1"
    before = set(target.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(target), "."]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    (made,) = set(target.glob("*.whl")) - before
    return made


def main() -> int:
    target = Path(sys.argv[1] if sys.argv[1:] else ROOT / "dist").absolute()
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("busbar_mq-*.whl"):
        old.unlink()
    kinds = (True, False) if can_compile() else (False,)
    if len(kinds) == 1:
        print("no C compiler on this machine: only the pure wheel is built")
    for compiled in kinds:
        began = time.monotonic()
        try:
            made = build(target, compiled=compiled)
        except subprocess.CalledProcessError as error:
            print(f"the wheel could not be built; the reason stands above (exit code {error.returncode})")
            return 1
        print(f"{made.name}: {made.stat().st_size / 1e6:.1f} MB, built in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
