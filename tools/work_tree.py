"""The files of this work tree as a fresh clone would have them, including uncommitted ones.

It does not use git, so it also works for a tree that was downloaded as an archive.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = {
    *(".git", ".venv", ".busbar", "build", "dist", "node_modules", "__pycache__"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache"),
}
"""Directories that can be created again, or are data."""


def files(directory: Path = ROOT) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.name in MADE or path.suffix in {".so", ".pyd", ".egg-info"}:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from files(path)
        elif path.is_file():
            yield path


def copy_to(target: Path, root: Path = ROOT) -> None:
    """Copy the tree as a fresh clone, without its history."""
    for source in files(root):
        copy = target / source.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
        copy.chmod(source.stat().st_mode)
