"""Checks the picture of the rooms in ARCHITECTURE.md: boxes against the layers contract, arrows against imports."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from tests.unit.prose import nodes

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "busbar"
ROOMS = {path.parent.name for path in SOURCE.glob("*/__init__.py")}


class Box(NamedTuple):
    room: str
    left: int
    right: int
    top: int
    bottom: int


def picture() -> list[str]:
    """The lines of the first picture, all of the same length."""
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if "┌" in line)
    drawn = list(takewhile(str.strip, lines[first:]))
    return [line.ljust(max(map(len, drawn))) for line in drawn]


def boxes(lines: list[str]) -> list[Box]:
    found = []
    for top, line in enumerate(lines):
        for match in re.finditer("┌[─▼]*┐", line):
            left, right = match.start(), match.end() - 1
            room = lines[top + 1][left + 1 : right].split()[0]
            bottom = next(number for number in range(top, len(lines)) if lines[number][left] == "└")
            found.append(Box(room, left, right, top, bottom))
    return found


def arrows(lines: list[str]) -> set[tuple[str, str]]:
    """The rooms at the beginning and at the end of each arrow."""
    found = set()
    for end in boxes(lines):
        for column in range(end.left, end.right):
            if lines[end.top][column] == "▼":
                row = end.top - 1
                while lines[row][column] == "│":
                    row -= 1
                assert lines[row][column] == "┬", f"the arrow to {end.room} has no beginning"
                start = [box for box in boxes(lines) if box.bottom == row and box.left < column < box.right]
                found.add((start[0].room, end.room))
    return found


@cache
def imports() -> dict[str, set[str]]:
    """For each room the rooms that its files import."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for room in ROOMS:
        for path in (SOURCE / room).rglob("*.py"):
            for node in nodes(path):
                names = []
                if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "busbar":
                    names = [f"busbar.{alias.name}" for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                elif isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                parts = [name.split(".") for name in names]
                found[room] |= {part[1] for part in parts if part[0] == "busbar" and len(part) > 1} & ROOMS
    return {room: others - {room} for room, others in found.items()}


def reached(room: str, drawn: set[tuple[str, str]]) -> set[str]:
    """The rooms to which arrows lead from a room, one after the other."""
    found: set[str] = set()
    waiting = [room]
    while waiting:
        upper = waiting.pop()
        lower = {end for start, end in drawn if start == upper} - found
        found |= lower
        waiting += lower
    return found


def test_the_rows_of_the_picture_are_the_layers_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    rows: dict[int, set[str]] = {}
    for box in boxes(picture()):
        rows.setdefault(box.top, set()).add(box.room)
    assert [rows[top] for top in sorted(rows)] == [set(layer.split(" | ")) & ROOMS for layer in layers]


def test_an_arrow_is_an_import() -> None:
    used = imports()
    assert sorted(arrow for arrow in arrows(picture()) if arrow[1] not in used[arrow[0]]) == []


def test_an_import_follows_from_the_arrows() -> None:
    """`model` is left out: the text below the picture states that every room but `amqp` and `testing` imports it."""
    drawn = arrows(picture())
    used = imports()
    assert {room: others - reached(room, drawn) - {"model"} for room, others in used.items()} == {
        room: set() for room in ROOMS
    }
    assert {room for room, others in used.items() if "model" not in others} == {"amqp", "model", "testing"}
