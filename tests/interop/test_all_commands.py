"""Every command of `busbar` as scripts, pipes and narrow terminals have it. A command without a row here fails a test.

The rows are a story: they create, show, change and delete entities of their own. It is told three times, in this process,
each time to another output: a pipe with JSON, a pipe with tables, a terminal of 80 columns. Nobody can answer questions.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from busbar.cli.completion import command_words
from busbar.cli.main import run
from harness.serving import PATIENCE, Busbar
from harness.terminal import Screen

JSON, TABLE, TERMINAL = "json", "table", "terminal"
COLUMNS = 80
LONG = "a-very-long-name-of-an-entity/which-has-a-path/of-several-parts"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.server({"shared": {}, LONG: {}, "grouped": {"RequiresSession": True}}, PATIENCE),
]


@dataclass(frozen=True, slots=True)
class Row:
    """Arguments of a command ({n} is different each time, {at} a directory), and what it does with them."""

    text: str
    code: int = 0
    lines: bool = False
    """It prints a document a line."""
    is_plain: bool = False
    """It has no JSON, or its --output is something else."""


def refused(text: str, code: int, **more: bool) -> Row:
    """A command that cannot do it here, and says so."""
    return Row(text, code, **more)


AT = "--topic t{n} --subscription eu"
ROWS = [
    Row("queue create q{n}"),
    Row("queue create x{n}"),
    Row("queue list"),
    Row("queue show q{n}"),
    Row("queue update q{n} --max-delivery-count 3"),
    Row("topic create t{n}"),
    Row("topic list"),
    Row("topic show t{n}"),
    Row("topic update t{n} --status Active"),
    Row("subscription create eu --topic t{n}"),
    Row("subscription list --topic t{n}"),
    Row("subscription show eu --topic t{n}"),
    Row("subscription update eu --topic t{n} --max-delivery-count 2"),
    Row(f"rule create large {AT} --filter-sql-expression n>1"),
    Row(f"rule list {AT}"),
    Row(f"rule show large {AT}"),
    Row(f"rule update large {AT} --filter-sql-expression n>2"),
    Row("rule test t{n} --property n=1"),
    *(
        Row(f"{owner} auth-rule {rest}")
        for owner, name in (("queue", "q{n} "), ("topic", "t{n} "), ("namespace", ""))
        for rest in (
            f"create {name}r{{n}} --rights Send",
            f"list {name}".strip(),
            f"show {name}r{{n}}",
            f"update {name}r{{n}} --rights Send,Listen",
            f"keys {name}r{{n}}",
            f"renew {name}r{{n}} --key primary",
            f"delete {name}r{{n}} --yes",
        )
    ),
    Row("namespace show"),
    Row("namespace keys"),
    Row("namespace log-level"),
    Row("sas create-token --resource q{n} --rule RootManageSharedAccessKey --expiry 1h"),
    Row("tap create q{n} watch --from-earliest"),
    Row("send q{n} hello --message-id {n} --subject first --property n=1", is_plain=True),
    Row("tap list q{n}"),
    Row("tap show q{n} watch"),
    Row("tap advance q{n} watch --to-end --yes"),
    Row("tap resume q{n} watch"),
    Row("tap delete q{n} watch --yes"),
    Row("peek q{n}"),
    Row("peek q{n} -o jsonl", lines=True, is_plain=True),
    Row("history --on"),
    Row("send q{n} hello --message-id {n} --subject first --property n=1", is_plain=True),
    Row("history {n}"),
    Row("history --off"),
    Row("rule test t{n} --file {at}/export.json", 2),
    Row("top -n 1 --interval 0.2"),
    Row("purge q{n} --yes"),
    Row("send q{n} again", is_plain=True),
    Row("receive q{n}"),
    Row("dead-letters list q{n}"),
    Row("dead-letters show q{n} 1", 3),
    Row("dead-letters resubmit q{n} --all", 3),
    Row("dead-letters delete q{n} --all --yes", 3),
    Row("send grouped x --session-id {n}", is_plain=True),
    Row("sessions list grouped"),
    Row("sessions set-state grouped {n} done", is_plain=True),
    Row("sessions show grouped {n}"),
    Row("sessions hold grouped {n} --for 1s", is_plain=True),
    refused("tail nothing", 3),
    Row("transfers"),
    Row("nodes"),
    Row("connections list"),
    refused("connections close nobody-1 --yes", 3, is_plain=True),
    Row("stores list"),
    Row("stores offline store-3"),
    Row("stores online store-3"),
    Row("stores drain store-3"),
    Row("stores drain store-3 --undo"),
    refused("stores reset store-3 --yes", 4),
    refused("stores add postgresql://nowhere/x", 1),
    refused("stores remove store-3", 4),
    refused("stores move store-3 any", 4),
    refused("stores restore store-3", 1, is_plain=True),
    refused("brokers restart", 4, is_plain=True),
    refused("catalogue rebuild", 1, is_plain=True),
    Row("doctor"),
    Row("export {at}/export.json", is_plain=True),
    Row("queue delete x{n} --yes"),
    Row("apply {at}/export.json --yes"),
    Row("backup {at}/backup", is_plain=True),
    Row("restore {at}/backup --data {at}/restored", is_plain=True),
    Row("trust"),
    Row("completion bash", is_plain=True),
    refused("serve --brokers none", 2, is_plain=True),
    refused("console --port none", 2, is_plain=True),
    refused("capture q{n}", 2, is_plain=True),
    refused("replay {at}/nothing q{n} --rate -1", 2),
    Row("redrive q{n}"),
    refused("insight q{n} --window soon", 2),
    refused("bench --scenario none", 2),
    Row("rule delete large --yes " + AT),
    Row("subscription delete eu --topic t{n} --yes"),
    Row("topic delete t{n} --yes"),
    Row("queue delete q{n} --yes"),
]


class Ended:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Pipe(io.TextIOWrapper):
    """Standard output that is no terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", write_through=True)

    @property
    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


class Terminal:
    """Standard output that is a terminal of 80 columns."""

    def __init__(self) -> None:
        self._main, here = pty.openpty()
        self.stream = os.fdopen(here, "w")
        self._read = b""
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(self._main, 65536):
                self._read += piece

    def end(self) -> str:
        self.stream.close()
        self._thread.join()
        os.close(self._main)
        return self._read.decode()


def told(arguments: list[str], server: Busbar, output: str) -> Ended:
    where = [] if {"--data", "--help", "completion"} & {*arguments} else ["--data", str(server.data)]
    err = io.StringIO()
    out: Pipe | Terminal = Terminal() if output == TERMINAL else Pipe()
    stream = out.stream if isinstance(out, Terminal) else out
    variables = {name: value for name, value in os.environ.items() if not name.startswith("BUSBAR_")}
    with (
        mock.patch.dict(
            os.environ, variables | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}, clear=True
        ),
        mock.patch.object(sys, "stdin", None),  # as Python has it where it is closed
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = run([*arguments, *where])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return Ended(code, out.end() if isinstance(out, Terminal) else out.text, err.getvalue())


@functools.cache
def commands() -> dict[str, list[str]]:
    """All commands that do something, with their options."""
    words = command_words()
    return {
        path: options
        for path, options in words.items()
        if path and not any(other.startswith(f"{path} ") for other in words)
    }


@functools.cache
def of_row(row: Row) -> str:
    """The command of a row."""
    parts = row.text.split()
    return max(
        (" ".join(parts[:count]) for count in (1, 2, 3)), key=lambda path: (path in commands(), len(path))
    )


def has_json(row: Row) -> bool:
    return not row.is_plain and "--output" in commands()[of_row(row)]


def problems(row: Row, ended: Ended, output: str) -> Iterator[str]:
    """What is wrong with how a command ended."""
    said = ended.out + ended.err
    if ended.code != row.code:
        yield f"exit code {ended.code}: {ended.err}"
    if "Traceback" in said or "unexpected failure" in said:
        yield said
    if ended.code and not ended.err.strip():
        yield "it fails without a word"
    if "\x1b" in ended.err or (output != TERMINAL and "\x1b" in ended.out):
        yield f"control sequences: {said!r}"
    if output == TERMINAL:
        screen = Screen(COLUMNS)
        screen.feed(ended.out)
        if screen.wrapped and not row.lines and of_row(row) not in MAY_WRAP:
            yield f"{screen.wrapped} lines are longer than the terminal is wide:\n{screen.text}"
    if row.lines or (has_json(row) and output == JSON and not row.code):
        try:
            for document in ended.out.splitlines() if row.lines else [ended.out]:
                if document or not of_row(row).endswith(
                    " delete"
                ):  # which prints nothing, as that of az does
                    json.loads(document)
        except ValueError as error:
            yield f"not JSON ({error}): {ended.out}"


MAY_WRAP = {
    "completion": "a script",
    "namespace keys": "secrets are for copying",
    "sas create-token": "the same",
    "queue auth-rule keys": "the same",
    "queue auth-rule renew": "the same",
    "topic auth-rule keys": "the same",
    "topic auth-rule renew": "the same",
    "namespace auth-rule keys": "the same",
    "namespace auth-rule renew": "the same",
    "trust": "lines for a shell",
    "backup": "paths",
    "restore": "paths",
}


def test_every_command_has_a_row() -> None:
    assert {of_row(row) for row in ROWS} == set(commands())


@pytest.mark.req("U24")
@pytest.mark.parametrize("output", [JSON, TABLE, TERMINAL])
def test_every_command_in_a_pipe_and_on_a_narrow_terminal(
    server: Busbar, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found: list[str] = []
    options = commands()
    for row in ROWS:
        arguments = row.text.format(n=output, at=tmp_path).split()
        if output == JSON and has_json(row):
            arguments += ["-o", "json"]
        if "--yes" in arguments and "--yes" in options[of_row(row)] and not row.code:
            asked = told([one for one in arguments if one != "--yes"], server, output)
            if asked.code != 2 or "--yes" not in asked.err:
                found.append(f"{row.text}: without --yes: {asked.code} {asked.err}")
        ended = told(arguments, server, output)
        found += [f"{row.text}: {problem}" for problem in problems(row, ended, output)]
    assert not found, "\n".join(found)


def test_every_command_that_asks_has_a_row_with_yes() -> None:
    asking = {path for path, options in commands().items() if "--yes" in options}
    assert asking == {of_row(row) for row in ROWS if "--yes" in row.text}


def test_every_help_reads_well_at_80_columns(server: Busbar) -> None:
    found = []
    for path in ["", *command_words()]:
        ended = told([*path.split(), "--help"], server, TERMINAL)
        assert ended.code == 0 and not ended.err, (path, ended.err)
        found += [
            f"{path}: {line}"
            for line in ended.out.splitlines()
            if not line.startswith(
                "  --enable-dead-lettering-on-message-expiration"
            )  # one name has 85 characters
            and (len(line) > COLUMNS or (line.endswith("...") and line.startswith("  ") and line[2] != " "))
        ]
    assert not found, "\n".join(found)


def busbar(server: Busbar, script: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell; $busbar is the command."""
    command = (
        f"set -o pipefail; busbar() {{ {sys.executable} -m busbar \"$@\" --data '{server.data}'; }}; {script}"
    )
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)


def test_a_reader_that_has_enough_is_no_failure_of_the_command(server: Busbar) -> None:
    run(["send", "shared", "x" * 60_000, "--data", str(server.data)])
    for command in ("peek shared -o jsonl", "peek shared --body text"):
        ended = busbar(server, f"busbar {command} | true")
        assert (ended.returncode, ended.stderr) == (141, ""), command


def test_output_that_cannot_be_written_fails_in_a_line(server: Busbar) -> None:
    full = busbar(server, "busbar queue list > /dev/full")
    assert full.returncode == 1 and "No space left" in full.stderr and full.stderr.count("\n") == 1
    closed = busbar(server, "busbar queue list >&- 2>&- <&-")
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--data x queue list", "No such option: --data here: it comes behind the command;"),
        ("queue crate x", "Did you mean 'create'? `busbar queue --help`"),
        ("peek shared --body jsn", "'--body': 'jsn' is not one of"),
        ("apply nothing.json", "nothing.json cannot be read: No such file or directory."),
        ("export /nothing/x", "/nothing/x cannot be written: No such file or directory."),
    ],
)
def test_what_is_wrong_is_said_in_plain_words(server: Busbar, arguments: str, said: str) -> None:
    ended = told(arguments.split(), server, TABLE)
    assert ended.code in (1, 2) and said in ended.err and ended.err.count("\n") == 1, ended.err


def test_nobody_at_an_address_is_said_in_plain_words(server: Busbar) -> None:
    nowhere = "Endpoint=sb://127.0.0.1:9/;SharedAccessKeyName=x;SharedAccessKey=y;UseDevelopmentEmulator=true"
    ended = told(["peek", "shared", "--connection-string", nowhere], server, TABLE)
    assert ended.code == 1
    assert "127.0.0.1:9 cannot be reached: Connection refused; start one with `busbar serve`" in ended.err
