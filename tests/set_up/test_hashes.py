"""Set-up installs only files whose hashes are known: real pip, on a directory of small packages, into another directory."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from harness.installed import ROOT
from tools.dependencies import BUILD_TOOLS
from tools.hashes import written

BACKEND = """
import zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{directory}/brick-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brick.py", "BUILT_WITH = 'VERSION'")
        wheel.writestr("brick-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: brick\\nVersion: 1.0\\n")
        wheel.writestr("brick-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("brick-1.0.dist-info/RECORD", "")
    return "brick-1.0-py3-none-any.whl"
"""
"""Stands for setuptools in the build of a package that comes as source."""


class Index:
    """A place with packages, a root with what is pinned of them, and a target for what is installed."""

    def __init__(self, place: Path) -> None:
        self.links, self.root, self.target = place / "links", place / "root", place / "target"
        for directory in (self.links, self.root):
            directory.mkdir()
        self.pins: dict[str, str] = {}
        for tool in BUILD_TOOLS:
            self.wheel(tool, "1.0")
            self.pin(tool, "1.0")

    def wheel(self, name: str, version: str, needs: str = "", text: str = "") -> Path:
        file = self.links / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files = {
            f"{name}/__init__.py": text,
            f"{name}/build_meta.py": BACKEND.replace("VERSION", version),
            f"{info}/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        with zipfile.ZipFile(file, "w") as archive:
            record = ""
            for path, content in files.items():
                archive.writestr(path, content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=")
                record += f"{path},sha256={digest.decode()},{len(content)}\n"
            archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
        return file

    def source(self, name: str) -> Path:
        file = self.links / f"{name}-1.0.tar.gz"
        system = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        info = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        with tarfile.open(file, "w:gz") as archive:
            for path, content in (("pyproject.toml", system), ("PKG-INFO", info)):
                member = tarfile.TarInfo(f"{name}-1.0/{path}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content.encode()))
        return file

    def pin(self, name: str, version: str) -> None:
        """As the index is now."""
        (file,) = self.links.glob(f"{name}-{version}*")
        self.pins[f"{name}=={version}"] = hashlib.sha256(file.read_bytes()).hexdigest()

    def install(self) -> subprocess.CompletedProcess[str]:
        (self.root / "constraints.txt").write_text("# layer serving\n" + "\n".join(self.pins) + "\n")
        (self.root / "hashes.txt").write_text(
            written({key: [digest] for key, digest in self.pins.items() if digest})
        )
        program = (
            "import sys; from pathlib import Path; from tools.dependencies import install_pinned\n"
            "sys.exit(install_pinned('serving', Path(sys.argv[1]), '--target', sys.argv[2]))"
        )
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        pip = {
            "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_NO_CACHE_DIR": "1",
            "PIP_FIND_LINKS": str(self.links), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, "-c", program, str(self.root), str(self.target)],
            cwd=ROOT, env=inherited | pip, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


def test_what_is_pinned_is_installed(index: Index) -> None:
    """Also what comes as source: its build gets the tool that was checked, although a newer one is offered."""
    index.wheel("mortar", "1.0")
    index.wheel("wall", "1.0", needs="mortar>=1")
    index.source("brick")
    for name in ("mortar", "wall", "brick"):
        index.pin(name, "1.0")
    index.wheel("setuptools", "9.0")
    index.wheel("mortar", "2.0")
    done = index.install()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (index.target / "brick.py").read_text() == "BUILT_WITH = '1.0'"
    assert (index.target / "mortar-1.0.dist-info").is_dir() and (index.target / "wall").is_dir()


@pytest.mark.parametrize("changed", ["wall", "setuptools"])
def test_a_file_with_another_hash_stops_it(index: Index, changed: str) -> None:
    """The same name and version, other bytes: of a package, and of a tool that builds them."""
    index.wheel("wall", "1.0")
    index.pin("wall", "1.0")
    index.wheel(changed, "1.0", text="import antigravity")
    done = index.install()
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stdout and changed in done.stdout
    assert "do not trust the file" in done.stdout and "python tools/hashes.py" in done.stdout
    assert not (index.target / "wall").exists()


def test_a_package_without_a_hash_stops_it(index: Index) -> None:
    index.wheel("wall", "1.0")
    index.pins["wall==1.0"] = ""
    done = index.install()
    assert done.returncode != 0
    assert "hashes.txt has no hash of wall==1.0" in done.stdout and "python tools/hashes.py" in done.stdout
    assert not (index.target / "wall").exists()


def test_a_dependency_that_nobody_pinned_stops_it(index: Index) -> None:
    index.wheel("mortar", "1.0")
    index.wheel("wall", "1.0", needs="mortar>=1")
    index.pin("wall", "1.0")
    done = index.install()
    assert done.returncode != 0
    assert "mortar" in done.stdout and "constraints.txt does not pin" in done.stdout
    assert not (index.target / "wall").exists()
