"""The documents: links and anchors lead somewhere, in a clone and on the site, and every page is in the navigation."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import yaml

from tools.site_links import for_site, headings, links, made_page, outside_paths, site_path, target_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES, *sorted((ROOT / "samples").rglob("*.md"))]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def broken_links(root: Path, documents: list[Path]) -> list[str]:
    """The links that lead to no file, or to no heading of it."""
    found = []
    for document in documents:
        source = str(document.relative_to(root))
        for _, _, target in links(document.read_text()):
            path, _, anchor = target.partition("#")
            place = root / (target_of(source, target) or source)
            if path.startswith("/") or not place.exists():
                found.append(f"{source}: {target}")
            elif anchor and anchor not in headings(place.read_text()):
                found.append(f"{source}: {target} names no heading")
    return found


def test_links_in_documents_lead_somewhere() -> None:
    assert broken_links(ROOT, DOCUMENTS) == []


def test_a_broken_link_would_be_found(tmp_path: Path) -> None:
    page = "# One thing, and `another`\n[a](#one-thing-and-another) [b](gone.md) [c](#two) ![d](gone.svg)\n`[e](e.md)`\n"
    (tmp_path / "page.md").write_text(
        page + "```\n[f](f.md)\n# g\n```\n[h](https://example.org/gone) [i](/page.md) [j](#g)\n"
    )
    found = broken_links(tmp_path, [tmp_path / "page.md"])
    assert [line.partition(": ")[2] for line in found] == [
        "gone.md", "#two names no heading", "gone.svg", "/page.md", "#g names no heading",
    ]  # fmt: skip


def test_pictures_are_described() -> None:
    pictures = [match for page in PAGES for match in re.findall(r"!\[([^\]]*)\]", page.read_text())]
    assert pictures and all(len(text) > 20 for text in pictures)
    for picture in (ROOT / "docs" / "images").glob("*.svg"):
        text = picture.read_text()
        assert "prefers-color-scheme: dark" in text and "<title" in text, picture.name
        assert not re.search(r"(href|src)=|url\((?!#)|@import", text), f"{picture.name} loads something"


def nav_pages(entries: list[object]) -> list[str]:
    """The pages that the navigation names, in order."""
    found = []
    for entry in entries:
        assert isinstance(entry, dict)
        for value in entry.values():
            found += [value] if isinstance(value, str) else nav_pages(value)
    return found


def test_every_page_is_in_the_navigation_once() -> None:
    """A page that `nav` of mkdocs.yml lacks could be found by a search only. Decisions have an index of their own."""
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES]
    assert sorted(nav_pages(SITE["nav"])) == [page for page in pages if not page.startswith("adr/")]


def test_the_site_loads_nothing_from_afar() -> None:
    assert SITE["theme"]["font"] is False and SITE["plugins"] == ["search"] and SITE["strict"] is True
    assert not {"extra_javascript", "extra_css"} & set(SITE)


def test_a_linked_file_of_the_repository_has_a_page() -> None:
    paths = outside_paths(ROOT)
    assert {"ARCHITECTURE.md", "samples/forwarding.py", "samples/testing", "docs/adr"} <= set(paths)
    assert site_path(ROOT, "samples/testing/README.md") == site_path(ROOT, "samples/testing")
    assert "def main" in made_page(ROOT, "samples/forwarding.py")
    sources = {site_path(ROOT, path) for path in paths} | {
        str(page.relative_to(ROOT / "docs")) for page in PAGES
    }
    texts = {
        str(page.relative_to(ROOT)): for_site(ROOT, str(page.relative_to(ROOT)), page.read_text())
        for page in PAGES
    }
    texts |= {path: made_page(ROOT, path) for path in paths}
    for path, text in texts.items():
        here = site_path(ROOT, path)
        for _, _, target in links(text):
            wanted = target_of(here, target) or here
            picture = PurePosixPath(wanted).suffix in {".svg", ".png"} and (ROOT / "docs" / wanted).exists()
            assert wanted in sources or picture, f"{here}: {target}"


def test_a_link_that_leaves_the_documents_is_changed_for_the_site() -> None:
    text = "[a](../samples/forwarding.py) [b](stores.md#x) [c](#d) `[e](../README.md)` [f](adr) [g](https://example.org)"
    assert for_site(ROOT, "docs/taps.md", text) == (
        "[a](repository/samples/forwarding.py.md) [b](stores.md#x) [c](#d) `[e](../README.md)` [f](adr/index.md) "
        "[g](https://example.org)"
    )


def test_a_link_that_is_called_like_its_file_is_called_like_the_page_on_the_site() -> None:
    text = "[stores.md](stores.md#x) [ours](stores.md) [stores](stores.md) [LICENSE](../LICENSE)"
    assert for_site(ROOT, "docs/taps.md", text) == (
        "[Messaging stores](stores.md#x) [ours](stores.md) [stores](stores.md) [LICENSE](repository/LICENSE.md)"
    )
