"""What `make docs` adds to MkDocs: pages for linked files outside of docs/, and a check that nothing is loaded from afar."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.site_links import DOCS, OUTSIDE, for_site, made_page, outside_paths, site_path  # noqa: E402

_LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")


def on_files(files: Files, config: Any) -> Files:
    for path in outside_paths(ROOT):
        files.append(File.generated(config, site_path(ROOT, path), content=made_page(ROOT, path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_others: Any) -> str:
    """The text of a page of docs/; what was generated has its links already."""
    source = page.file.src_uri
    generated = source.startswith(f"{OUTSIDE}/") or not (ROOT / DOCS / source).exists()
    return markdown if generated else for_site(ROOT, f"{DOCS}/{source}", markdown)


def on_post_page(output: str, page: Any, **_others: Any) -> str:
    if found := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads {found[1]}: the site has to work without other hosts.")
    return output
