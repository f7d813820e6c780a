"""The compiled rooms are what runs, where they can be; and the same source runs interpreted on request."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import busbar
from setup import _with_headers, compiled_sources
from tools.build_rooms import can_compile, stale

INTERPRETED = os.environ.get("BUSBAR_INTERPRETED") == "1"
MODULES = [name.removeprefix("src/").removesuffix(".py").replace("/", ".") for name in compiled_sources()]


@pytest.mark.skipif(INTERPRETED, reason="this run is interpreted on purpose")
@pytest.mark.skipif(not can_compile(), reason="this machine has no C compiler")
@pytest.mark.parametrize("name", MODULES)
def test_a_compiled_room_is_loaded_from_an_extension_module(name: str) -> None:
    file = importlib.import_module(name).__file__
    assert file is not None
    assert file.endswith(tuple(EXTENSION_SUFFIXES)), f"{name} is loaded from {file}: run `make setup`"
    assert busbar.compiled()


def test_the_extension_modules_are_those_of_the_sources() -> None:
    assert not stale()


def test_the_rooms_that_are_compiled() -> None:
    """The list is made by patterns; these must be in it, or out of it, whatever the patterns become."""
    rooms = {name.split(".")[1] for name in MODULES}
    assert rooms == {
        "amqp",
        "broker",
        "fragment",
        "gateway",
        "message",
        "model",
        "pages",
        "partitions",
        "store",
    }
    assert "busbar.amqp.types" not in MODULES
    assert not [name for name in MODULES if name.endswith("__init__")]


def test_interpreted_on_request() -> None:
    code = (
        "import importlib, sys, busbar\n"
        "assert not busbar.compiled()\n"
        "files = [importlib.import_module(name).__file__ for name in sys.argv[1:]]\n"
        "assert all(file.endswith('.py') for file in files), files\n"
    )
    source = Path(busbar.__file__).parents[1]
    environment = os.environ | {"BUSBAR_INTERPRETED": "1", "PYTHONPATH": str(source)}
    result = subprocess.run(
        [sys.executable, "-c", code, *MODULES], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("include", ['"room.h"', "<room.h>"])
def test_a_file_is_compiled_again_when_a_header_of_another_room_changes(tmp_path: Path, include: str) -> None:
    """mypyc includes the headers of other groups in angle brackets. Those were overlooked once: rooms that had been compiled
    before did not recognize the classes of a `model` that got one more."""
    source, header = tmp_path / "module.c", tmp_path / "room.h"
    source.write_text(f"#include <Python.h>\n#include {include}\n")
    digests = set()
    for declared in ("int a;", "int a, b;"):
        header.write_text(declared)
        digests.add(_with_headers(source, [], {}))
    assert len(digests) == 2
