"""Installs a layer of Busbar's dependencies into the environment of this interpreter, and imports all of it once.

    python tools/dependencies.py serving     what `busbar serve` needs, and what compiles the rooms
    python tools/dependencies.py spark       what the pipeline needs: Spark, a Java runtime, Arrow
    python tools/dependencies.py dev         what the tests and checks need
    python tools/dependencies.py docs        what builds the documentation site
    python tools/dependencies.py busbar      Busbar itself, from this clone, in place

pyproject.toml defines the layers, constraints.txt the versions, hashes.txt the files. Without a hash there, pip
installs no file (its mode --require-hashes: every package is named with its version and its hashes, transitive ones too).

If a dependency comes as source, it is built as its authors intend: isolated, with the build tools that it requires. pip
checks no hashes of those. So the ones in BUILD_TOOLS are fetched and checked first, and isolated builds get these files.
Only Busbar itself is built without isolation. If an installed dependency cannot be imported, this program fails with the
cure, instead of a test an hour later.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # called as a script, before anything is installed

from tools.hashes import PinError, requirement_lines

ROOT = Path(__file__).resolve().parent.parent
BELOW = {"serving": (), "spark": ("serving",), "dev": ("serving", "spark"), "docs": ("serving",)}
"""For each layer, those on which it is installed."""
LAYERS = tuple(BELOW)
BUILD_TOOLS = ("setuptools", "cffi", "pycparser")
"""What isolated builds of the dependencies require."""
BUSBAR = "busbar-mq"

MODULES = {
    "azure-servicebus": "azure.servicebus",
    "import-linter": "importlinter",
    "mkdocs-material": "material",
    "protobuf": "google.protobuf",
    "pytest-xdist": "xdist",
    "python-qpid-proton": "proton",
    "pyyaml": "yaml",
    "types-defusedxml": "",  # types for mypy, nothing to import
    "websocket-client": "websocket",
}
"""The module of a distribution whose name differs."""


def requirements(layer: str, root: Path = ROOT) -> list[str]:
    """The requirements for pip; without Busbar itself, which an extra may name to include another."""
    document = tomllib.loads((root / "pyproject.toml").read_text())
    project = document["project"]
    if layer == "serving":
        lines = [*document["build-system"]["requires"], *project["dependencies"]]
    else:
        lines = project["optional-dependencies"][layer]
    return [line for line in lines if distribution(line) != BUSBAR]


def distribution(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return match[0]


def module_of(requirement: str) -> str:
    """The module to import to check a requirement; empty if it cannot be imported."""
    name = distribution(requirement)
    return MODULES.get(name, name.replace("-", "_"))


def pinned_names(layer: str, root: Path = ROOT) -> list[str]:
    """The packages that constraints.txt lists for this layer and those below it."""
    wanted = {*BELOW[layer], layer}
    names: list[str] = []
    section: set[str] = set()
    for line in (root / "constraints.txt").read_text().splitlines():
        if match := re.match(r"# layers? ([\w ]+)", line):
            section = {*match[1].split()}
        elif "==" in line and not line.startswith("#") and section & wanted:
            names.append(line.partition("==")[0])
    return names


def hashed(file: Path, names: list[str] | tuple[str, ...], root: Path = ROOT) -> Path:
    """Write a requirements file for these names, with their hashes. Raises PinError."""
    texts = ((root / name).read_text() for name in ("constraints.txt", "hashes.txt"))
    file.write_text("\n".join(requirement_lines(names, *texts)) + "\n")
    return file


def pip(command: str, *arguments: str, constraint: Path | None = None) -> int:
    """Run pip; on a terminal one line shows its progress, elsewhere only failures are printed."""
    environment = dict(os.environ)
    if constraint is not None:
        # Holds inside isolated builds too; which of them counts depends on the version of pip.
        environment |= {"PIP_CONSTRAINT": str(constraint), "PIP_BUILD_CONSTRAINT": str(constraint)}
    called = [sys.executable, "-m", "pip", command, "--disable-pip-version-check", "--progress-bar", "off"]
    process = subprocess.Popen(
        [*called, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    printed: list[str] = []
    for line in process.stdout:
        printed.append(line)
        step = line.strip()
        if sys.stdout.isatty() and step.startswith(("Downloading", "Building", "Installing")):
            print(f"\r\033[K  {step:.90}", end="", flush=True)
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)
    if process.wait() != 0:
        print("".join(printed))
        print(failure("".join(printed)))
    return process.returncode


def failure(printed: str) -> str:
    """The advice for this output of pip."""
    if "DO NOT MATCH THE HASHES" in printed:
        return (
            "A file that pip was given is not one that hashes.txt lists for that version; it was not installed. If you did "
            "not change constraints.txt, do not trust the file: `pip config list` shows which index or mirror it came from. "
            "If you did, write hashes.txt anew with `python tools/hashes.py`."
        )
    if "--require-hashes mode" in printed:
        return (
            "constraints.txt does not pin something that is needed on this platform. Add the version that pip names above "
            "to the section of its layer, and write hashes.txt anew with `python tools/hashes.py`."
        )
    return "pip could not do it; the reason stands above"


def install_pinned(layer: str, root: Path = ROOT, *options: str) -> int:
    """Install everything that constraints.txt lists for a layer and those below it, each file only if its hash is known."""
    with tempfile.TemporaryDirectory(prefix="busbar-set-up-") as scratch:
        place = Path(scratch)
        try:
            tools = hashed(place / "tools.txt", BUILD_TOOLS, root)
            wanted = hashed(place / "wanted.txt", pinned_names(layer, root), root)
        except PinError as error:
            print(error)
            return 1
        fetched = place / "tools"
        only = ("--require-hashes", "--no-deps", "--only-binary", ":all:", "--quiet")
        if code := pip("download", *only, "--dest", str(fetched), "--requirement", str(tools)):
            return code
        constraint = place / "build-tools.txt"
        lines = [f"{file.name.partition('-')[0]} @ {file.as_uri()}" for file in sorted(fetched.iterdir())]
        constraint.write_text("\n".join(lines) + "\n")
        return pip(
            "install", *options, "--require-hashes", "--requirement", str(wanted), constraint=constraint
        )


def broken_imports(layer: str) -> list[str]:
    """Import the packages of the layer; returns a line for each that fails."""
    broken = []
    for requirement in requirements(layer):
        module = module_of(requirement)
        try:
            if module:
                importlib.import_module(module)
        except Exception as error:
            broken.append(
                f"{distribution(requirement)}: import {module} failed with {type(error).__name__}: {error}"
            )
    return broken


def check(layer: str) -> int:
    broken = broken_imports(layer)
    for line in broken:
        name = line.partition(":")[0]
        cached = re.sub(r"[-_.]+", "_", name)
        print(
            f"{line}\n  It is installed and cannot be imported. If pip once built it wrongly, it has kept that wheel:"
        )
        print(f"  {sys.executable} -m pip cache remove {cached}")
        print(f"  {sys.executable} -m pip uninstall -y {name}")
        print("  and call make again.")
    return 1 if broken else 0


def install(layer: str) -> int:
    wanted = requirements(layer)
    print(f"installing what {layer} needs: {len(wanted)} packages and what they bring along", flush=True)
    began = time.monotonic()
    if code := install_pinned(layer):
        return code
    # In a process of its own: this one searched for modules before they were installed.
    if code := subprocess.run([sys.executable, __file__, "check", layer], check=False).returncode:
        return code
    print(f"installed in {time.monotonic() - began:.0f} s")
    return 0


def main() -> int:
    match sys.argv[1:]:
        case ["busbar"]:
            os.environ["BUSBAR_INTERPRETED"] = "1"  # tools/build_rooms.py compiles
            return pip("install", "--no-build-isolation", "--no-deps", "--editable", ".")
        case ["check", layer] if layer in LAYERS:
            return check(layer)
        case [layer] if layer in LAYERS:
            return install(layer)
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
