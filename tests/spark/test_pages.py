"""The pages on the pipeline as they stand: their commands and programs run one after the other, in a directory of their own,
on a server as `busbar serve --dev` starts it.

Commands run in the process of the tests, with its Spark: a page would otherwise start Java a dozen times. The tutorial
(test_tutorial.py) starts real processes. Blocks that are indented are not run: they need a cluster.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from busbar.cli import main
from harness.serving import Busbar

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("capture.md", "replay.md", "spark.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def dev_server(tmp_path: Path) -> Iterator[Busbar]:
    running = Busbar(tmp_path / ".busbar", arguments=("--dev",)).start()
    yield running
    assert running.stop() == 0


@pytest.fixture
def place(dev_server: Busbar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a reader, in which the page runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BUSBAR_CONNECTION_STRING", dev_server.connection_string)
    return tmp_path


def run(command: str) -> str:
    """A command of a page; it must succeed. Returns what it printed."""
    program, *arguments = shlex.split(command)
    assert program == "busbar", f"{command!r}: only commands of Busbar run here"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.run(arguments)
    assert code == 0, f"{command}\n{err.getvalue()}"
    return out.getvalue()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_it_stands(name: str, place: Path, spark: SparkSession) -> None:
    assert spark is not None
    names: dict[str, object] = {}
    printed = ""
    blocks = BLOCK.findall((DOCUMENTS / name).read_text())
    for language, text in blocks:
        if language == "sh":
            for line in filter(None, text.splitlines()):
                printed += run(line)
        else:
            assert language == "python"
            exec(compile(text, name, "exec"), names)
    assert len(blocks) > 3
    if name == "capture.md":
        assert "orders: 1 captured" in printed
        assert sorted(path.name for path in place.iterdir() if path.is_dir() and path.name[0] != ".") == [
            "archive",
            "archive-events",
        ]
    if name == "replay.md":
        assert re.search(r"Found\s+1\n", printed)
