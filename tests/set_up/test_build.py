"""Compiling again: what did not change is not compiled, what did is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.installed import ROOT
from tools.build_rooms import can_compile

pytestmark = pytest.mark.skipif(not can_compile(), reason="there is no C compiler")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The sources with what was built from them."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for part in ("c", f"temp.{_platform()}"):
        shutil.copytree(ROOT / "build" / part, tmp_path / "build" / part)
    return tmp_path


def _platform() -> str:
    (path,) = ROOT.joinpath("build").glob("temp.*")
    return path.name.removeprefix("temp.")


def build(clone: Path) -> tuple[int, int]:
    """How many C files there are, and how many were compiled."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = re.search(r"(\d+) of (\d+) C files are as they were", done.stderr)
    assert kept is not None, done.stderr
    return int(kept[2]), int(kept[2]) - int(kept[1])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_only_what_changed_is_compiled(clone: Path) -> None:
    everything, compiled = build(clone)
    assert compiled == 0
    assert everything > 57
    # A room with another text of its own: its table of strings and the module.
    edit(clone / "src/busbar/fragment/intake.py", "The entity is disabled", "This entity is disabled")
    _, compiled = build(clone)
    assert 1 <= compiled <= 30
    program = "import sys; sys.path.insert(0, 'src'); import busbar.fragment.intake as it; print(it.__file__)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=clone, capture_output=True, text=True, check=True, env={}
    ).stdout
    module = Path(loaded.strip())
    assert module.suffix == ".so"
    group = next((clone / "src").glob("busbar_fragment__mypyc*.so"))
    assert b"This entity is disabled" in group.read_bytes()
