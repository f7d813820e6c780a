"""Builds the compiled rooms with mypyc: `python setup.py build_ext --inplace`, which `make setup` does when needed.

With BUSBAR_INTERPRETED=1 nothing is compiled; the same source then runs interpreted.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent

# What runs once per message or per frame. The rest gains nothing: it waits for the network or the disk.
COMPILED = (
    "src/busbar/amqp/*.py",
    "src/busbar/fragment/*.py",
    "src/busbar/model/message.py",
    "src/busbar/model/packed.py",
    "src/busbar/model/settings.py",
    "src/busbar/model/commands.py",
    "src/busbar/model/effects.py",
)
INTERPRETED = (
    "src/busbar/amqp/types.py",  # subclasses of int and str, which a native class cannot be
    "*/__init__.py",  # a package that is an extension module hides the sources beside it from tools
)


def compiled_sources(root: Path = ROOT) -> list[str]:
    """The sources that are compiled, relative to the root, in a stable order."""
    found = {path.relative_to(root) for pattern in COMPILED for path in root.glob(pattern)}
    return sorted(str(path) for path in found if not any(path.match(pattern) for pattern in INTERPRETED))


if __name__ == "__main__":
    from setuptools import setup

    if os.environ.get("BUSBAR_INTERPRETED") == "1":
        setup()
    else:
        from mypyc.build import mypycify

        setup(ext_modules=mypycify(compiled_sources(), group_name="busbar_compiled", opt_level="3"))
