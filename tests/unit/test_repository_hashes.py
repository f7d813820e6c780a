"""constraints.txt and hashes.txt: what set-up installs is pinned by version and by hash, layer by layer."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.dependencies import BUILD_TOOLS, LAYERS, distribution, pinned_names, requirements
from tools.hashes import PinError, known_hashes, pinned, requirement_lines, version_of, written

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
HASHES = (ROOT / "hashes.txt").read_text()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_version_has_its_hashes_and_nothing_else_has() -> None:
    known = known_hashes(HASHES)
    assert set(known) == {f"{name}=={version}" for name, version in pinned(CONSTRAINTS).items()}
    for requirement, digests in known.items():
        assert digests and all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests), requirement
    assert written(dict(known)) == HASHES, "as tools/hashes.py writes it"


def test_every_pin_is_in_a_layer() -> None:
    assert {name for layer in LAYERS for name in pinned_names(layer)} == set(pinned(CONSTRAINTS))
    assert "pyspark" not in pinned_names("docs") and "mkdocs" not in pinned_names("dev")
    assert set(BUILD_TOOLS) <= set(pinned_names(LAYERS[0]))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_all_that_its_packages_bring_along(layer: str) -> None:
    """pip would find out when somebody installs it; on other Pythons and platforms nobody may have yet."""
    names = set(pinned_names(layer))
    wanted = {normal(distribution(line)) for line in requirements(layer)}
    for name in names:
        try:
            lines = requires(name) or ()
        except PackageNotFoundError:
            assert layer == "docs", f"{name} is not installed"
            pytest.skip(f"`make docs` installs {name}")
        for line in lines:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                wanted.add(normal(needed.name))
    assert wanted - names == set()


def test_a_pin_without_hashes_is_named_with_its_cure() -> None:
    with pytest.raises(PinError, match=r"no hash of b==2, .*tools/hashes\.py"):
        requirement_lines(["a", "b"], "a==1\nb==2\n", written({"a==1": ["0" * 64]}))


@pytest.mark.parametrize(
    ("filename", "name", "version"),
    [
        ("ruff-0.17.4-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "ruff", "0.17.4"),
        ("mypy_extensions-1.2.0-py3-none-any.whl", "mypy-extensions", "1.2.0"),
        ("thing-1.0-2build-py3-none-any.whl", "thing", "1.0"),
        ("pyspark-4.3.0.tar.gz", "pyspark", "4.3.0"),
        ("PyYAML-6.0.zip", "pyyaml", "6.0"),
        ("pytest_asyncio-1.4.1.post1-py3-none-any.whl", "pytest", ""),
        ("pyspark-client-4.3.0.tar.gz", "pyspark", ""),
        ("uvloop-0.23.0-cp311-cp311-win32.exe", "uvloop", ""),
    ],
)
def test_the_version_of_a_file(filename: str, name: str, version: str) -> None:
    assert version_of(filename, name) == version
