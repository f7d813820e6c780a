"""Runs the blocks of pages one after the other: commands of Busbar, and Python with what earlier blocks have defined.

    python -m tests.spark.page_program PAGE...

All share the directory, as the pages of a reader do, and one Spark session, which the jobs find: a page would otherwise
start Java a dozen times.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from busbar.cli import main
from busbar.spark.session import open_session

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_page(page: Path) -> None:
    names: dict[str, object] = {}
    for language, text in BLOCK.findall(page.read_text()):
        if language == "sh":
            for line in filter(None, text.splitlines()):
                run_command(line)
        elif language == "python":
            exec(compile(text, page.name, "exec"), names)
        else:
            raise AssertionError(f"{page.name} has a block of {language}, which is not run")


def run_command(line: str) -> None:
    program, *arguments = shlex.split(line)
    assert program == "busbar", f"{line!r}: only commands of Busbar run here"
    print(f"$ {line}", flush=True)
    code = main.run(arguments)
    assert code == 0, f"{line} ended with {code}"


if __name__ == "__main__":
    open_session("pages", master="local[2]")
    for name in sys.argv[1:]:
        run_page(Path(name))
