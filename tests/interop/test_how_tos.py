"""The quick start and the how-tos, run from the pages: a program that a page shows does, and prints, what the page shows."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.serving import Busbar
from tests.interop.page_reader import HAS_CURL, PageReader

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SESSIONS = {DOCS / "how-to" / "sessions.md", DOCS / "how-to" / "request-reply.md"}
OTHERS = [DOCS / "quick-start.md", *sorted({*(DOCS / "how-to").glob("*.md")} - SESSIONS)]
AT_ONCE = 6
"""Pages that are read at the same time: their programs wait most of it."""
SAMPLE_NAMESPACE = ROOT / "src" / "busbar" / "app" / "sample" / "Config.json"

# As `make run` starts it, but on a free port.
pytestmark = pytest.mark.server(config=SAMPLE_NAMESPACE.read_text(), arguments=("--dev",), checked=True)


def problems(
    pages: Iterable[Path], server: Busbar, place: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """What these pages show that does not happen."""
    monkeypatch.setenv("BUSBAR_CONNECTION_STRING", server.connection_string)
    with PageReader(server, place) as reader, ThreadPoolExecutor(AT_ONCE) as pool:
        return [line for found in pool.map(reader.problems, pages) for line in found]


@pytest.mark.req("S18")
def test_what_the_pages_of_sessions_show(
    server: Busbar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(SESSIONS, server, tmp_path, monkeypatch) == []


def test_what_the_other_pages_show(server: Busbar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(OTHERS, server, tmp_path, monkeypatch) == []
    if not HAS_CURL:
        pytest.skip("there is no curl: all but its blocks ran")
