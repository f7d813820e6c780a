"""Installs a layer of what Busbar depends on into the environment of this interpreter, and imports all of it once.

    python tools/dependencies.py serving     what `busbar serve` needs, and what compiles the rooms
    python tools/dependencies.py spark       what the pipeline needs: Spark, a Java runtime, Arrow
    python tools/dependencies.py dev         what the tests and checks need
    python tools/dependencies.py busbar      Busbar itself, from this clone, in place

pyproject.toml says what is in a layer, constraints.txt which version. A dependency that comes as source is built as its
authors mean it: isolated, with the build tools that it asks for. Only Busbar itself is built without isolation. A dependency
that is installed and cannot be imported fails here, with its cure, and not in a test an hour later.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
LAYERS = ("serving", "spark", "dev")
BUSBAR = "busbar-mq"

MODULES = {
    "azure-servicebus": "azure.servicebus",
    "import-linter": "importlinter",
    "protobuf": "google.protobuf",
    "pytest-xdist": "xdist",
    "python-qpid-proton": "proton",
    "types-defusedxml": "",  # types for mypy, nothing to import
    "websocket-client": "websocket",
}
"""The module of a distribution whose name does not say it."""


def requirements(layer: str, root: Path = ROOT) -> list[str]:
    """What pip is asked for; without Busbar itself, which an extra may name to include another."""
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
    """What is imported to see that a requirement is there; empty for what cannot be imported."""
    name = distribution(requirement)
    return MODULES.get(name, name.replace("-", "_"))


def pip(*arguments: str) -> int:
    """Run `pip install`; on a terminal one line shows how far it is, elsewhere only what fails is printed."""
    environment = os.environ | {
        # Hold inside isolated builds too; which of them counts depends on the version of pip.
        "PIP_CONSTRAINT": str(CONSTRAINTS),
        "PIP_BUILD_CONSTRAINT": str(CONSTRAINTS),
    }
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    process = subprocess.Popen(
        [*command, *arguments],
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
        print("pip could not install it; the reason stands above")
    return process.returncode


def broken_imports(layer: str) -> list[str]:
    """Import what the layer brought; a line for each that fails."""
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
    if code := pip(*wanted):
        return code
    # In a process of its own: this one looked for modules before they were there.
    if code := subprocess.run([sys.executable, __file__, "check", layer], check=False).returncode:
        return code
    print(f"installed in {time.monotonic() - began:.0f} s")
    return 0


def main() -> int:
    match sys.argv[1:]:
        case ["busbar"]:
            os.environ["BUSBAR_INTERPRETED"] = "1"  # tools/build_rooms.py compiles
            return pip("--no-build-isolation", "--no-deps", "--editable", ".")
        case ["check", layer] if layer in LAYERS:
            return check(layer)
        case [layer] if layer in LAYERS:
            return install(layer)
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
