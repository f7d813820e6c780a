"""Writes hashes.txt: for each version that constraints.txt pins, the SHA-256 of every file that the package index offers.

    python tools/hashes.py           after a change of constraints.txt
    python tools/hashes.py check     whether the index still offers what hashes.txt has; nothing is written

It has the files for all platforms and Pythons, not only for this machine, because what one developer pins must
install on the machine of another. The index is found by pip itself, as it is configured here. Its pages are read; files
are not downloaded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
HASHES = ROOT / "hashes.txt"
HEAD = """\
# Written by tools/hashes.py; do not edit. The SHA-256 of every file of every version that constraints.txt pins.
"""


class PinError(Exception):
    """The files constraints.txt and hashes.txt do not match, or the index has nothing; the text states what to do."""


def pinned(text: str) -> dict[str, str]:
    """Version by name, in the order of the file."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return {name: version for name, _, version in (line.partition("==") for line in lines if line)}


def known_hashes(text: str) -> dict[str, list[str]]:
    """Digests by `name==version`."""
    found: dict[str, list[str]] = {}
    latest = ""
    for word in text.replace("\\\n", " ").split():
        if word.startswith("--hash=sha256:"):
            found[latest].append(word.removeprefix("--hash=sha256:"))
        elif "==" in word:
            latest = word
            found[latest] = []
    return found


def written(found: dict[str, Iterable[str]]) -> str:
    """The file, one digest in a line, so that a change of one file is a change of one line."""
    blocks = []
    for requirement, digests in sorted(found.items()):
        blocks.append(" \\\n".join([requirement, *(f"    --hash=sha256:{one}" for one in sorted(digests))]))
    return HEAD + "\n".join(blocks) + "\n"


def requirement_lines(names: Iterable[str], constraints: str, hashes: str) -> list[str]:
    """A line for `pip install --require-hashes -r` for each of these; raises PinError if one has no hash."""
    versions, known = pinned(constraints), known_hashes(hashes)
    lines = []
    for name in names:
        requirement = f"{name}=={versions[name]}"
        if not known.get(requirement):
            raise PinError(
                f"hashes.txt has no hash of {requirement}, which constraints.txt pins. "
                "Write it anew with `python tools/hashes.py` and look at what changed."
            )
        lines.append(" ".join([requirement, *(f"--hash=sha256:{one}" for one in known[requirement])]))
    return lines


def offered(versions: dict[str, str]) -> dict[str, set[str]]:
    """The hashes that the index offers. It is read with pip's own parts, which have its settings, certificates
    and formats."""
    from pip._internal.commands.download import DownloadCommand
    from pip._internal.index.collector import _get_index_content, parse_links
    from pip._internal.models.link import Link

    command = DownloadCommand("download", "")
    options, _ = command.parser.parse_args([])
    found = {}
    with command.main_context():
        session = command._build_session(options)
        for name, version in versions.items():
            page = _get_index_content(Link(f"{options.index_url.rstrip('/')}/{name}/"), session=session)
            links = () if page is None else parse_links(page)
            digests = {
                link.hash for link in links if version_of(link.filename, name) == version and link.hash
            }
            if not digests:
                raise PinError(f"The package index offers no file of {name}=={version}.")
            found[f"{name}=={version}"] = digests
    return found


def version_of(filename: str, name: str) -> str:
    """The version in the name of a wheel or of a source archive of this distribution; empty for anything else."""
    begin = re.sub(r"[-_.]+", "[-_.]+", name)
    wheel = re.fullmatch(rf"{begin}-([^-]+)(-[^-]+){{3,4}}\.whl", filename, re.IGNORECASE)
    source = re.fullmatch(rf"{begin}-([^-]+)\.(tar\.gz|zip)", filename, re.IGNORECASE)
    match = wheel or source
    return match[1] if match else ""


def main() -> int:
    try:
        found = offered(pinned(CONSTRAINTS.read_text()))
    except PinError as error:
        print(error)
        return 1
    text = written(dict(found))
    match sys.argv[1:]:
        case []:
            HASHES.write_text(text)
            print(f"{HASHES.name}: {sum(map(len, found.values()))} files of {len(found)} packages")
            return 0
        case ["check"]:
            before = known_hashes(HASHES.read_text())
            gone = [key for key in found if set(before.get(key, ())) - found[key]]
            new = [key for key in found if found[key] - set(before.get(key, ()))]
            print(
                f"no longer offered: {', '.join(gone) or 'none'}; not in {HASHES.name}: {', '.join(new) or 'none'}"
            )
            return 1 if gone else 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
