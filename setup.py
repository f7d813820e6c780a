"""Builds the compiled rooms with mypyc. `make setup` calls it; without a compiler the same source runs interpreted."""

from mypyc.build import mypycify
from setuptools import setup

COMPILED = [
    "src/busbar/model/message.py",
    "src/busbar/model/settings.py",
    "src/busbar/model/commands.py",
    "src/busbar/model/effects.py",
    "src/busbar/fragment/changes.py",
    "src/busbar/fragment/reads.py",
]

setup(ext_modules=mypycify(COMPILED, group_name="busbar_compiled", opt_level="3"))
