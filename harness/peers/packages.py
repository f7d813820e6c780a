"""Finds the program of a peer: on the PATH, or in a Debian package that is unpacked into a cache directory of the user.

No administrator is needed, and nothing is installed into the system: apt-get downloads the package and what it depends on,
and dpkg unpacks them. A program that cannot be had this way is Unavailable, with the advice what to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

DOWNLOAD_SECONDS = 120
_WITHOUT_LOCK = ("-o", "Debug::NoLocking=1")


class Unavailable(Exception):
    """A peer cannot be measured on this machine."""


@dataclass(frozen=True, slots=True)
class Program:
    path: Path
    root: Path
    """Where its package is unpacked; / if it is installed."""

    def environment(self) -> dict[str, str]:
        """What a program below another root needs, to find its libraries."""
        if self.root == Path("/"):
            return {}
        libraries = [
            str(path) for base in ("lib", "usr/lib") for path in sorted(self.root.glob(f"{base}/*-linux-*"))
        ]
        return {"LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def find_program(program: str, package: str, pattern: str = "usr/*bin/{}") -> Program:
    """The program on the PATH, or that of the package, whose path fits the pattern."""
    on_path = shutil.which(program)
    if on_path is not None:
        return Program(Path(on_path), Path("/"))
    return find_packaged(package, pattern.format(program))


def is_at_hand(program: str, package: str) -> bool:
    """Whether nothing has to be downloaded."""
    return shutil.which(program) is not None or (cache_directory() / package).exists()


def find_packaged(package: str, pattern: str) -> Program:
    """The file of a package: installed, unpacked before, or unpacked now."""
    for root in (Path("/"), _unpacked(package)):
        found = sorted(root.glob(pattern))
        if found:
            return Program(found[-1], root)
    raise Unavailable(f"the Debian package {package} has no {pattern}: put the program on the PATH")


def _unpacked(package: str) -> Path:
    root = cache_directory() / package
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
            made = _unpack(package, Path(scratch))
            try:
                made.rename(root)  # in one step: an interrupted download leaves nothing
            except OSError:
                if not root.exists():  # else another run was faster
                    raise
    return root


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "busbar-peers"


def _unpack(package: str, scratch: Path) -> Path:
    plan = _run(package, scratch, "apt-get", "install", "--simulate", "--no-install-recommends", package)
    needed = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    _run(package, scratch, "apt-get", "download", *needed)
    root = scratch / "root"
    root.mkdir()
    for archive in sorted(scratch.glob("*.deb")):
        _run(package, scratch, "dpkg", "-x", str(archive), str(root))
    return root


def _run(package: str, scratch: Path, program: str, *arguments: str) -> str:
    command = [program, *(_WITHOUT_LOCK if program == "apt-get" else ()), *arguments]
    advice = f"install {package}, or put its program on the PATH"
    try:
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except FileNotFoundError:
        raise Unavailable(f"this machine has no {program}: {advice}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{program} {arguments[0]} took more than {DOWNLOAD_SECONDS} s: {advice}") from None
    if done.returncode:
        raise Unavailable(f"{program} {arguments[0]} failed with exit code {done.returncode}: {advice}")
    return done.stdout
