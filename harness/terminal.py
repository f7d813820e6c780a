"""A pseudo-terminal of a given size: a program that runs on it, and what a user sees on the screen.

    with TerminalProgram([sys.executable, "-m", "busbar", ...], columns=80) as program:
        program.wait_for("captured")
        program.press_ctrl_c()
        code = program.end()
    print(program.screen.text)

`Screen` has the few control sequences that live tables use. It fails on others, so that nothing is passed over.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

SEQUENCE: Final = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])")
READ_SECONDS: Final = 0.05


class Screen:
    """The lines of a terminal, with those that have left it at the top."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[str] = [""]
        self.wrapped = 0
        """How often a line was longer than the terminal is wide."""
        self.has_cursor = True
        self._row = 0
        self._column = 0
        self._rest = ""

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip()

    def feed(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
                continue
            found = SEQUENCE.match(text, at)
            if found is None:
                assert len(text) - at < 20, f"not a control sequence: {text[at : at + 20]!r}"
                self._rest = text[at:]  # the rest of it comes with the next read
                return
            self._control(found[1], found[2])
            at = found.end()

    def _put(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")
        else:
            assert char.isprintable() or char == "\t", repr(char)
            if self._column == self.columns:
                self.wrapped += 1
                self._put("\r")
                self._put("\n")
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + char + line[self._column + 1 :]
            self._column += 1

    def _control(self, parameter: str, kind: str) -> None:
        if kind == "m":
            return
        if kind in "hl" and parameter == "?25":
            self.has_cursor = kind == "h"
        elif kind == "A":
            self._row = max(0, self._row - int(parameter or 1))
        elif kind == "K" and parameter == "2":
            self.lines[self._row] = ""
        elif kind == "H" and not parameter:
            self._row = self._column = 0
        elif kind == "J" and parameter == "2":
            self.lines = [""] * len(self.lines)
        else:
            raise AssertionError(f"the control sequence {parameter}{kind} is not part of this screen")


class TerminalProgram:
    """A program whose controlling terminal is a pseudo-terminal."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> None:
        """Start the program. Its standard output goes to the file `output` instead of the terminal, if there is one."""
        self.screen = Screen(columns)
        self.raw = ""
        self._code: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        variables = dict(os.environ if environment is None else environment) | {"TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES"):
            variables.pop(name, None)
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            try:
                if directory is not None:
                    os.chdir(directory)
                if output is not None:
                    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
                os.execvpe(command[0], list(command), variables)
            finally:
                os._exit(127)
        self.resize(columns)

    def resize(self, columns: int) -> None:
        self.screen.columns = columns
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def press_ctrl_c(self) -> None:
        self.type("\x03")

    def wait_for(self, words: str, seconds: float = 120.0) -> None:
        """Wait until words are on the screen."""
        until = time.monotonic() + seconds
        while words not in self.screen.text:
            assert time.monotonic() < until and self._read(), f"no {words!r} in:\n{self.screen.text}"

    def end(self, seconds: float = 120.0) -> int:
        """Wait for the end of the program; returns its exit code, negative for a signal."""
        until = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < until, self.screen.text
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def _read(self) -> bool:
        """Read what is there; whether more may come."""
        if not select.select([self._terminal], [], [], READ_SECONDS)[0]:
            if self._code is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                if ended:
                    self._code = os.waitstatus_to_exitcode(status)
            return self._code is None
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # no process has the terminal any more
            return False
        text = self._decoder.decode(data)
        self.raw += text
        self.screen.feed(text)
        return bool(data)

    def __enter__(self) -> TerminalProgram:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._code is None:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._terminal)
