"""Builds the compiled rooms with mypyc: `python setup.py build_ext --inplace`, which `make` does when needed.

Each room is a group of its own with one C file for each module. All C files are compiled side by side on all
processors, and only those whose text, headers or flags changed since the last build. mypyc writes a module's strings
into tables of its group, so a changed room recompiles itself and, if its declarations changed, the rooms that import it.

With BUSBAR_INTERPRETED=1 nothing is compiled; the same source then runs interpreted.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setuptools import setup
from setuptools.command.build_ext import build_ext

if TYPE_CHECKING:
    from setuptools import Extension

ROOT = Path(__file__).resolve().parent

# What runs once per message or per frame. The rest gains nothing: it waits for the network or the disk.
COMPILED = (
    "src/busbar/amqp/*.py",
    "src/busbar/message/*.py",
    "src/busbar/pages/*.py",
    "src/busbar/fragment/*.py",
    "src/busbar/model/histogram.py",
    "src/busbar/model/message.py",
    "src/busbar/model/partitioning.py",
    "src/busbar/model/tap_page.py",
    "src/busbar/model/settings.py",
    "src/busbar/model/commands.py",
    "src/busbar/model/hold_commands.py",
    "src/busbar/model/effects.py",
    "src/busbar/broker/commit_loop.py",
    "src/busbar/broker/express.py",
    "src/busbar/broker/fragment_machine.py",
    "src/busbar/broker/group.py",
    "src/busbar/broker/job.py",
    "src/busbar/broker/slot.py",
    "src/busbar/broker/timers.py",
    "src/busbar/broker/topic_selection.py",
    "src/busbar/broker/topic_usage.py",
    "src/busbar/broker/transactions.py",
    "src/busbar/partitions/*.py",
    "src/busbar/store/journal/changes_*.py",
    "src/busbar/store/journal/pending.py",
    "src/busbar/store/number_runs.py",
    "src/busbar/gateway/amqp/connection_links.py",
    "src/busbar/gateway/amqp/connection_origin.py",
    "src/busbar/gateway/amqp/coordinator.py",
    "src/busbar/gateway/amqp/enlisting.py",
    "src/busbar/gateway/amqp/incoming.py",
    "src/busbar/gateway/amqp/outgoing.py",
    "src/busbar/gateway/amqp/session_link.py",
    "src/busbar/gateway/amqp/transactions.py",
    "src/busbar/gateway/amqp/via_link.py",
)
INTERPRETED = (
    "src/busbar/amqp/types.py",  # subclasses of int and str, which a native class cannot be
    "*/__init__.py",  # a package that is an extension module hides the sources beside it from tools
)

GENERATED = "build/c"
FLAGS = (
    "-fvisibility=hidden",  # nobody outside a group calls its functions but through a table: they may be inlined
    "-fcommon",  # mypyc declares the table of another group in each C file that uses it
)
HEADERS = ("Python.h", "CPy.h")
"""What every C file of mypyc includes: the half of the work on a small one."""
INCLUDED = re.compile(rb'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
"""In quotes: of the same group. In angle brackets: of another group, or of the system, which is not looked for."""


def compiled_sources(root: Path = ROOT) -> list[str]:
    """The sources that are compiled, relative to the root, in a stable order."""
    found = {path.relative_to(root) for pattern in COMPILED for path in root.glob(pattern)}
    return sorted(str(path) for path in found if not any(path.match(pattern) for pattern in INTERPRETED))


def compiled_groups(root: Path = ROOT) -> dict[str, list[str]]:
    """The same by room: the name of each group of compiled modules, and its sources."""
    groups: dict[str, list[str]] = {}
    for name in compiled_sources(root):
        room = "_".join(Path(name).parts[1:-1])
        groups.setdefault(room, []).append(name)
    return groups


def extensions() -> list[Extension]:
    """What mypyc makes of the compiled sources: C, and a description of each module to build from it."""
    from mypyc.build import mypycify

    # Without mypy's cache: from what it keeps of groups, mypyc makes other C than from the sources, or none.
    modules: list[Extension] = mypycify(
        ["--cache-dir=/dev/null", *compiled_sources()],
        separate=[(sources, group) for group, sources in compiled_groups().items()],
        multi_file=True,
        opt_level="1",  # half the time of 3; a message costs the broker one or two percent more
        debug_level="0",
        target_dir=GENERATED,
    )
    for module in modules:
        module.extra_compile_args = [*module.extra_compile_args, *FLAGS]
    return modules


class BuildRooms(build_ext):
    """Compiles the sources of all modules side by side, skips what did not change, then links."""

    def build_extensions(self) -> None:
        self.parallel = os.cpu_count() or 1
        compile_one = self.compiler.compile
        version = subprocess.run(
            [self.compiler.compiler_so[0], "--version"], capture_output=True, check=False
        ).stdout
        # The modules of mypyc's own runtime are in every group and compiled once.
        sources = {source: module for module in self.extensions for source in module.sources}
        texts: dict[Path, bytes] = {}
        stale: list[tuple[str, Extension, Path, str]] = []
        for source, module in sources.items():
            (name,) = self.compiler.object_filenames([source], output_dir=self.build_temp)
            flags = f"{self.compiler.compiler_so} {module.extra_compile_args} {module.define_macros}"
            digest = hashlib.sha256(version + flags.encode())
            digest.update(_with_headers(Path(source), module.include_dirs, texts))
            key, known = digest.hexdigest(), Path(f"{name}.key")
            if not Path(name).exists() or not known.exists() or known.read_text() != key:
                known.unlink(missing_ok=True)
                stale.append((source, module, known, key))
        # The largest first, so that no processor is left with a long one at the end.
        stale.sort(key=lambda entry: -Path(entry[0]).stat().st_size)

        headers = self._precompiled_headers(stale[0][1]) if stale else []

        def compile_stale(entry: tuple[str, Extension, Path, str]) -> None:
            source, module, known, key = entry
            compile_one(
                [source],
                output_dir=self.build_temp,
                macros=module.define_macros,
                include_dirs=module.include_dirs,
                extra_postargs=[*module.extra_compile_args, *headers],
            )
            known.write_text(key)

        progress = Progress(len(stale), len(sources))
        with ThreadPoolExecutor(self.parallel) as pool:
            for _ in pool.map(compile_stale, stale):
                progress.step()
        self.compiler.compile = self._compiled
        super().build_extensions()

    def _precompiled_headers(self, module: Extension) -> list[str]:
        """Compile the headers that every C file includes once for all of them. Returns the flags that use the result. A C
        compiler that cannot use it reads the headers themselves."""
        header = Path(self.build_temp, "rooms.h").resolve()
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text("".join(f"#include <{name}>\n" for name in HEADERS))
        directories = [*module.include_dirs, *self.compiler.include_dirs]
        command = [
            *self.compiler.compiler_so,
            *[f"-D{name}" if value is None else f"-D{name}={value}" for name, value in module.define_macros],
            *[f"-I{directory}" for directory in directories],
            *module.extra_compile_args,
            *("-x", "c-header", str(header), "-o", f"{header}.gch"),
        ]
        done = subprocess.run(command, capture_output=True, check=False)
        return ["-include", str(header)] if done.returncode == 0 else []

    def _compiled(self, sources: list[str], **_: Any) -> list[str]:
        """The objects of sources that were compiled before."""
        objects: list[str] = self.compiler.object_filenames(sources, output_dir=self.build_temp)
        return objects


class Progress:
    """Says how far the compiler is: one line that grows on a terminal, a line for each quarter elsewhere."""

    def __init__(self, count: int, of: int) -> None:
        self._count = count
        self._done = 0
        self._terminal = sys.stderr.isatty()
        if count < of:
            print(f"  {of - count} of {of} C files are as they were", file=sys.stderr, flush=True)

    def step(self) -> None:
        self._done += 1
        text = f"  compiled {self._done} of {self._count} C files"
        if self._terminal:
            end = "\n" if self._done == self._count else ""
            print(f"\r{text}", end=end, file=sys.stderr, flush=True)
        elif self._done * 4 // self._count > (self._done - 1) * 4 // self._count:
            print(text, file=sys.stderr, flush=True)


def _with_headers(source: Path, directories: list[str], texts: dict[Path, bytes]) -> bytes:
    """A digest of a C file and of all headers that are generated or come with mypyc and that it includes, at any depth."""
    seen: dict[Path, None] = {}
    ahead = [source]
    while ahead:
        path = ahead.pop()
        if path in seen:
            continue
        seen[path] = None
        if path not in texts:
            texts[path] = path.read_bytes()
        for match in INCLUDED.finditer(texts[path]):
            name = os.fsdecode(match[1])
            for directory in (path.parent, *map(Path, directories)):
                if (found := Path(os.path.normpath(directory / name))).is_file():
                    ahead.append(found)
                    break
    digest = hashlib.sha256()
    for path in seen:
        digest.update(hashlib.sha256(texts[path]).digest())
    return digest.digest()


if __name__ == "__main__":
    if os.environ.get("BUSBAR_INTERPRETED") == "1":
        setup()
    else:
        setup(ext_modules=extensions(), cmdclass={"build_ext": BuildRooms})
