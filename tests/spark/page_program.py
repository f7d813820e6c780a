"""Runs the blocks of pages one after the other, as their reader would in one terminal.

    python -m tests.spark.page_program PAGE...

All share the directory, and what they export. A block of Python with a file name is saved, and another one is executed with
what earlier blocks of its page have defined. A line of a shell block is a command.

Commands of Busbar and of Python run in this process, so that all of them share one Java. What else a line has, bash runs.
The commands of the first page start Spark as they need it, as for a reader. From the second page on a session is kept, which
the jobs find.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import time
from pathlib import Path

from busbar.cli import main
from busbar.spark.session import open_session
from harness.page_blocks import blocks_of

ROOT = Path(__file__).resolve().parents[2]
PLAIN = re.compile(r"(busbar|python) [^|&;<>`]*")
"""A command that needs no shell."""

SHORT = 60
"""How much of a command is on the terminal behind it, with the time that it took."""


class Reader:
    """Does what pages show, in the directory of this process."""

    def __init__(self) -> None:
        self.keeps_session = False

    def read(self, page: Path) -> None:
        names: dict[str, object] = {}
        for block in blocks_of(page, ("sh", "python")):
            if block.language == "sh":
                for line in filter(None, block.text.splitlines()):
                    self.run_line(line)
            elif block.name:
                Path(block.name).write_text(block.text)
            else:
                self.keep_session()
                exec(compile(block.text, page.name, "exec"), names)

    def run_line(self, line: str) -> None:
        self.keep_session()
        print(f"$ {line}", flush=True)
        began = time.monotonic()
        if not PLAIN.fullmatch(line):
            run_in_shell(line)
        else:
            program, *arguments = shlex.split(line)
            if program == "busbar":
                code = main.run(arguments)
                assert code == 0, f"{line} ended with {code}"
            else:
                run_python(arguments)
        sys.stdout.flush()
        print(f"{time.monotonic() - began:6.1f} s: {line[:SHORT]}", file=sys.stderr, flush=True)

    def keep_session(self) -> None:
        """Open a session, unless there is one: a program may have stopped it."""
        if self.keeps_session:
            open_session("pages", master="local[2]")


def run_python(arguments: list[str]) -> None:
    """Run a program that an earlier block has saved, or one of the repository."""
    file, *others = arguments
    path = Path(file) if Path(file).exists() else ROOT / file
    before, sys.argv = sys.argv, [file, *others]
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before


def run_in_shell(line: str) -> None:
    """Run a line with bash, and take over what it exports."""
    exported = Path(".exported").resolve()
    subprocess.run(["bash", "-ec", f"{line}\nenv -0 > {shlex.quote(str(exported))}"], check=True)
    pairs = [pair.partition("=") for pair in exported.read_text().rstrip("\0").split("\0")]
    os.environ.update({name: value for name, _, value in pairs})
    exported.unlink()


if __name__ == "__main__":
    reader = Reader()
    for name in sys.argv[1:]:
        reader.read(ROOT / "docs" / name)
        reader.keeps_session = True
