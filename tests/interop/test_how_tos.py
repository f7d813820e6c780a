"""The quick start and the how-tos, run from the pages: a program that a page shows does, and prints, what the page shows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.page_blocks import blocks_of
from harness.serving import Busbar
from tests.interop.page_reader import HAS_CURL, PageReader

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ("quick-start.md", *(f"how-to/{page.name}" for page in sorted((DOCS / "how-to").glob("*.md"))))
SESSIONS = ("how-to/sessions.md", "how-to/request-reply.md")
AT_ONCE = 6
SAMPLE_NAMESPACE = ROOT / "src" / "busbar" / "app" / "sample" / "Config.json"

# As `make run` starts it, but on a free port.
pytestmark = pytest.mark.server(config=SAMPLE_NAMESPACE.read_text(), arguments=("--dev",), checked=True)


@pytest.fixture(scope="module")
def problems(server: Busbar, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What went wrong on each page. Several are read at the same time, because their programs wait most of it. All are read
    before the first test, because pytest takes standard output over between tests."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(AT_ONCE) as pool:
        patch.setenv("BUSBAR_CONNECTION_STRING", server.connection_string)
        with PageReader(server, tmp_path_factory.mktemp("pages")) as reader:
            found = [*pool.map(reader.problems, [DOCS / page for page in PAGES])]
    return dict(zip(PAGES, found, strict=True))


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.req("S18")] * (page in SESSIONS)) for page in PAGES]
)
def test_what_a_page_shows_happens(page: str, problems: dict[str, list[str]]) -> None:
    assert problems[page] == []
    uses_curl = any("curl " in block.text for block in blocks_of(DOCS / page, ("sh", "python", "js")))
    if uses_curl and not HAS_CURL:
        pytest.skip("there is no curl: the rest of the page ran")
