"""Builds the compiled rooms in place if, and only if, they differ from what was built last.

The fingerprint covers the sources, this interpreter and the version of mypyc, so that a stale extension module is never
used. Before a build all old ones are removed, and a failed build leaves none. The output of the C compiler is kept in
build/, so the next build compiles only what changed. Without a C compiler it prints once that the same source runs
interpreted, and succeeds.

    python tools/build_rooms.py           build if needed
    python tools/build_rooms.py --check   check whether the built modules are those of the sources (exit 1: stale)
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from setup import compiled_groups, compiled_sources  # noqa: E402

STAMP = ROOT / "build" / "rooms.stamp"
WITHOUT_COMPILER = "without a compiler"


def can_compile() -> bool:
    """Whether this machine can build extension modules: a C compiler and Python's headers."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "probe.c")
        source.write_text("#include <Python.h>\nint probe(void) { return PY_VERSION_HEX != 0; }\n")
        command = [*compiler, "-I", sysconfig.get_path("include"), "-c", str(source), "-o", f"{source}.o"]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def fingerprint() -> str:
    """A hash of everything that the built modules depend on."""
    digest = hashlib.sha256()
    digest.update(f"{sys.version} {sysconfig.get_config_var('EXT_SUFFIX')}".encode())
    digest.update(importlib.metadata.version("mypy").encode())
    for name in ["setup.py", *compiled_sources()]:
        content = ROOT.joinpath(name).read_bytes()
        digest.update(f"\n{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def built_modules() -> list[Path]:
    """Every extension module among the sources."""
    return [path for suffix in (".so", ".pyd") for path in sorted((ROOT / "src").rglob(f"*{suffix}"))]


def complete() -> bool:
    """Whether each compiled source, and each group that holds their code, has its module."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    sources = [(ROOT / name).with_suffix(suffix) for name in compiled_sources()]
    groups = [ROOT / "src" / f"{group}__mypyc{suffix}" for group in compiled_groups()]
    return all(module.exists() for module in (*sources, *groups))


def stale() -> bool:
    """Whether there are extension modules that are not those of the sources."""
    stamp = STAMP.read_text() if STAMP.exists() else ""
    return bool(built_modules()) and stamp != fingerprint()


def up_to_date() -> bool:
    """Whether a build would change nothing: the modules are those of the sources, or there is no compiler to build them."""
    wanted = fingerprint()
    stamp = STAMP.read_text() if STAMP.exists() else ""
    if stamp == wanted:
        return complete()
    return stamp == f"{WITHOUT_COMPILER} {wanted}" and not built_modules() and not can_compile()


def build() -> int:
    if up_to_date():
        return 0
    wanted = fingerprint()
    for path in built_modules():
        path.unlink()
    STAMP.parent.mkdir(exist_ok=True)
    STAMP.unlink(missing_ok=True)
    if not can_compile():
        print(
            "no C compiler (or no Python headers) on this machine: Busbar runs interpreted from the same source,"
        )
        print(
            "correct but slower. Install a compiler and call `make setup` again to have the compiled rooms."
        )
        STAMP.write_text(f"{WITHOUT_COMPILER} {wanted}")
        return 0
    cores = os.cpu_count() or 1
    print(f"compiling {len(compiled_sources())} modules with mypyc and C on {cores} processors", flush=True)
    began = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != "BUSBAR_INTERPRETED"}
    # Its progress is on standard error, and so are the messages of the compiler.
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    result = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if result.returncode != 0 or not complete():
        print("the compiled rooms could not be built; the reason stands above")
        for path in built_modules():
            path.unlink()
        return 1
    STAMP.write_text(wanted)
    print(f"compiled in {time.monotonic() - began:.0f} s")
    return 0


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return 1 if stale() else 0
    return build()


if __name__ == "__main__":
    sys.exit(main())
