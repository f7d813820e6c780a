"""Where the links of documents lead: in the repository, and in the site that is built from it.

Pages link files of the repository relatively, so that they work in a clone and on a code host. Pages of the site are in one
tree. A linked file outside of docs/ gets a page below `repository/`, and a linked directory an index of what is in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

DOCS = "docs"
OUTSIDE = "repository"
"""The part of the site with files from outside of docs/."""
README = "README.md"

_CODE = re.compile(r"^(```+).*?^\1[^\n]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_LANGUAGES = {".py": "python", ".sh": "sh", ".js": "js", ".json": "json", ".toml": "toml", ".yaml": "yaml"}


def without_code(text: str) -> str:
    """The text with blanks in the place of code, so that positions stay."""
    return _CODE.sub(lambda match: " " * len(match[0]), text)


def links(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and target of each link and image of a page, without those to other hosts."""
    for match in _LINK.finditer(without_code(text)):
        if "://" not in match[1] and not match[1].startswith("mailto:"):
            yield match.start(), match.end(), match[1]


def headings(text: str) -> Iterator[str]:
    """The anchors of a page: its headings as Markdown and code hosts write them."""
    for title in re.findall(
        r"^#{1,6} (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.MULTILINE
    ):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        yield re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def target_of(source: str, target: str) -> str:
    """The path in the repository to which a link of the file `source` leads; empty for a link within the page."""
    path = target.partition("#")[0]
    return os.path.normpath(PurePosixPath(source).parent / path) if path else ""


def site_path(root: Path, path: str) -> str:
    """The source of the page, or the file, that the site has for a path of the repository."""
    folder, _, last = path.rpartition("/")
    if folder and last == README:
        path = folder  # the page of a directory has its text
    inside = path.startswith(f"{DOCS}/")
    name = path.removeprefix(f"{DOCS}/") if inside else f"{OUTSIDE}/{path}"
    if (root / path).is_dir():
        return f"{name}/index.md"
    return name if inside or name.endswith(".md") else f"{name}.md"


def for_site(root: Path, source: str, text: str) -> str:
    """The page of the site for a page of the repository: its links lead to pages of the site. A link that is called like the
    file is called like the page there."""
    here = PurePosixPath(site_path(root, source)).parent
    parts, end = [], 0
    for start, stop, target in links(text):
        path, mark, anchor = target.partition("#")
        file = target_of(source, target)
        found = site_path(root, file) if path else ""
        before, label = text[end:start], f"[{PurePosixPath(path).name}]("
        if path.endswith(".md") and before.endswith(label) and (root / file).is_file():
            before = f"{before.removesuffix(label)}[{title_of(root / file)}]("
        parts += [before, os.path.relpath(found, here) if path else "", mark, anchor]
        end = stop
    return "".join([*parts, text[end:]])


def made_page(root: Path, path: str) -> str:
    """The page for a file or directory of the repository that is no page by itself."""
    place = root / path
    if place.is_dir():
        readme = place / README
        text = readme.read_text() if readme.exists() else f"# {path}\n"
        names = [child.name for child in children(place) if child.name != README]
        text += "\n" + "\n".join(f"- [{title_of(place / name)}]({name})" for name in names) + "\n"
        return for_site(root, f"{path}/{README}", text)
    if place.suffix == ".md":
        return for_site(root, path, place.read_text())
    return f"# {path}\n\n````{_LANGUAGES.get(place.suffix, 'text')}\n{place.read_text().rstrip()}\n````\n"


def children(directory: Path) -> list[Path]:
    """What is in a directory, without caches and hidden files."""
    return sorted(child for child in directory.iterdir() if child.name[0] not in "._")


def title_of(file: Path) -> str:
    """The heading of a page, or the name of another file."""
    if file.suffix == ".md":
        return file.read_text().partition("\n")[0].lstrip("# ")
    return file.name


def outside_paths(root: Path) -> list[str]:
    """The files and directories that pages link and that are no pages of docs/, with those that these link in turn."""
    waiting = [str(page.relative_to(root)) for page in sorted((root / DOCS).rglob("*.md"))]
    seen, found = {*waiting}, []
    while waiting:
        source = waiting.pop()
        place = root / source
        if place.is_dir():
            targets = [f"{source}/{child.name}" for child in children(place)]
        elif place.suffix == ".md":
            targets = [target_of(source, target) for _, _, target in links(place.read_text())]
        else:
            targets = []
        for path in targets:
            if path and path not in seen and (root / path).exists():
                seen.add(path)
                waiting.append(path)
                if not path.startswith(f"{DOCS}/") or (root / path).is_dir():
                    found.append(path)
    return sorted({site_path(root, path): path for path in sorted(found, reverse=True)}.values())
