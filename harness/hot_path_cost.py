"""What a message costs the hot path (hot_path.py) in instructions, as a ratio to plain Python work in the same run.

Rules:
1. Valgrind counts the instructions. Its counts do not depend on the processor and on what else the machine does: between
   two runs they vary by less than a hundredth. CPU times on a busy machine vary by more than a tenth, also the lowest of
   many. Counters of the processor are not there in most virtual machines.
2. Only turns of the server and the reference work are counted. The ratio makes up for most of what differs between two
   builds of Python. What is left is why a figure is kept for each (`environment`).
3. A load is too dear if it costs more than its figure and TOLERANCE.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Described, Symbol, ULong
from harness.amqp_driver import payload_of
from harness.hot_path import BODY, Counter, HotPath
from harness.measured import reference_unit, rooms_are_compiled

FIGURES = Path(__file__).with_name("hot_path_figures.toml")
TOLERANCE = 0.07
"""A count is the same in every run, but the layout of the heap moves with any change of the code, by up to 4 %."""
MESSAGES = 500
UNITS = 200
REFERENCE = "reference"
_ROOT = Path(__file__).resolve().parents[1]
_WITHOUT_KEY = payload_of(BODY)
_TRIGGER = re.compile(r"^desc: Trigger: Client Request: (.+)$", re.MULTILINE)
_TOTAL = re.compile(r"^totals: (\d+)$", re.MULTILINE)
Ratios = Mapping[str, float]


class CannotCount(Exception):
    """A tool is missing on this machine."""


def keyed(number: int) -> bytes:
    """A message like the others, with a partition key, one of 400."""
    annotations = {Symbol("x-opt-partition-key"): f"key-{number % 400}"}
    return encode_value(Described(ULong(0x72), annotations)) + _WITHOUT_KEY(number)


def make_loads(counter: Counter) -> dict[str, HotPath]:
    return {
        "one by one": HotPath(counter),
        "batches of 100": HotPath(counter, batch=100),
        "partitioned": HotPath(counter, is_partitioned=True),
        "partitioned, with keys": HotPath(counter, is_partitioned=True, payload=keyed),
    }


def environment() -> str:
    """What a figure depends on."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}, {platform.python_compiler()}"
    rooms = f"compiled by cc {_compiler()}" if rooms_are_compiled() else "interpreted"
    return f"{python}, {platform.machine()}, {rooms}"


def _compiler() -> str:
    command = ["cc", "-dumpfullversion"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


# ---- in Valgrind ----


class Toggle:
    """Has Valgrind count, or not."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.start = self.stop = library.toggle


def count(library: ctypes.CDLL) -> None:
    """Run all loads and the reference. Valgrind writes a file for each."""
    loads = make_loads(Toggle(library))
    for path in loads.values():
        path.cycle(2 * MESSAGES)
    gc.collect()
    gc.disable()  # when it runs is chance
    library.begin()
    for name, path in loads.items():
        library.zero()
        path.cycle(MESSAGES)
        library.dump(name.encode())
    library.zero()
    library.toggle()
    for number in range(UNITS):
        reference_unit(number)
    library.toggle()
    library.dump(REFERENCE.encode())


# ---- around it ----


def measure() -> Ratios:
    """The cost of a message in units of the reference, for each load. Raises CannotCount."""
    for tool, use in (("valgrind", "counts instructions"), ("cc", "builds what asks it to")):
        if shutil.which(tool) is None:
            raise CannotCount(f"this machine has no {tool}, which {use}")
    with tempfile.TemporaryDirectory(prefix="busbar-cost-") as name:
        directory = Path(name)
        library, source = directory / "count.so", Path(__file__).with_name("count_instructions.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
        options = ["--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"]
        command = ["valgrind", "-q", *options, f"--callgrind-out-file={directory / 'out'}"]
        paths = os.pathsep.join((str(_ROOT / "src"), str(_ROOT)))
        subprocess.run(
            [*command, sys.executable, "-m", "harness.hot_path_cost", str(library)],
            env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": paths},
            check=True,
        )
        counts = counts_in(path.read_text() for path in directory.glob("out.*"))
    unit = counts.pop(REFERENCE) / UNITS
    return {name: counts[name] / MESSAGES / unit for name in counts}


def counts_in(dumps: Iterable[str]) -> dict[str, int]:
    """The instructions of each dump, by its name."""
    found = {}
    for text in dumps:
        name, total = _TRIGGER.search(text), _TOTAL.search(text)
        if name is not None and total is not None:
            found[name[1]] = int(total[1])
    return found


def too_dear(found: Ratios, figures: Ratios) -> list[str]:
    """The loads that cost more than their figures allow, each with its cost."""
    return [
        f"{name}: {ratio:.3f}, {ratio / figures[name] - 1:+.1%} of {figures[name]:.3f}"
        for name, ratio in found.items()
        if ratio > figures[name] * (1 + TOLERANCE)
    ]


def kept_figures(environment: str) -> Ratios | None:
    return all_figures().get(environment)


def all_figures() -> dict[str, dict[str, float]]:
    return tomllib.loads(FIGURES.read_text()) if FIGURES.exists() else {}


def keep(environment: str, ratios: Ratios) -> None:
    """Write the figures of an environment; those of others stay."""
    figures = all_figures() | {environment: dict(ratios)}
    lines = [
        "# What a message costs on the hot path, in units of reference work (hot_path_cost.py).",
        "# `python -m bench.hot_path --renew` writes the figures. A change of a figure is reviewed as code is.",
    ]
    for name in sorted(figures):
        loads = sorted(figures[name].items())
        lines += ["", f'["{name}"]', *[f'"{load}" = {ratio:.3f}' for load, ratio in loads]]
    FIGURES.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    count(ctypes.CDLL(sys.argv[1]))
