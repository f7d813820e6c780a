"""The names of a journal's files: STORE.00000001.segment and so on, beside the store's file STORE."""

from __future__ import annotations

import re
from pathlib import Path

_SUFFIX = ".segment"
SEGMENT_NAME = re.compile(r"(.+)\.(\d{8,})\.segment")
"""The name of the store's file, and the number of the segment."""


def segment_name(path: Path, number: str) -> str:
    return f"{path.name}.{number}{_SUFFIX}"


def number_of(segment: Path) -> int:
    return int(segment.name.removesuffix(_SUFFIX).rpartition(".")[2])


def segments_of(path: Path) -> list[Path]:
    """The segments beside the store's file `path`, in the order in which they were created."""
    found = []
    for file in path.parent.glob(segment_name(path, "*")):
        named = SEGMENT_NAME.fullmatch(file.name)
        if (
            named is not None and named[1] == path.name
        ):  # and not those of a replaced file, whose name is longer
            found.append(file)
    return sorted(found, key=number_of)
