"""What a worker of a cluster has: a Python with the packages that docs/spark-cluster.md lists, and Busbar as one file.

Nothing here installs anything. The environment has links to packages of the Python of the tests, and no others: neither
the packages of the server nor Busbar itself, which comes with the job.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
PAGE = ROOT / "docs" / "spark-cluster.md"
OF_THE_PACKAGE = ("busbar", "pyspark_busbar")


def listed_packages(page: Path = PAGE) -> tuple[list[str], list[str]]:
    """The packages that every worker needs, and those that some programs need, by the tables of the page."""
    tables = re.findall(r"^\| Package \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    always, sometimes = (re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) for table in tables)
    assert always and sometimes
    return always, sometimes


def make_environment(directory: Path, packages: list[str]) -> Path:
    """Create an environment with these packages and what they depend on; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    (libraries,) = directory.glob("lib/python*/site-packages")
    installed = Path(sysconfig.get_path("purelib"))
    for name in with_dependencies(packages):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (libraries / top).exists():
                (libraries / top).symlink_to(installed / top)
    return directory / "bin" / "python"


def with_dependencies(packages: list[str]) -> list[str]:
    found: list[str] = []
    left = list(packages)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.append(name)
        needed = map(Requirement, distribution(name).requires or ())
        left += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def pack(target: Path) -> Path:
    """Busbar as a file for `--py-files`, with what its pure wheel has."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in OF_THE_PACKAGE:
            for path in sorted((SOURCES / package).rglob("*")):
                if path.is_file() and path.suffix not in (".so", ".pyc"):
                    packed.write(path, path.relative_to(SOURCES))
    return target
