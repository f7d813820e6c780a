"""The wheels: each installs into an empty environment without a compiler, serves, and takes a first message."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from harness.installed import CONSTRAINTS, ROOT, Installed
from tools.build_rooms import can_compile
from tools.dependencies import requirements

CAPTURE = ("capture", "orders", "--output", "archive", "--available-now", "--data", "data")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What `make wheel` builds, by kind."""
    target = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "tools/build_wheels.py", str(target)], cwd=ROOT, check=True)
    return {"pure" if path.stem.endswith("-none-any") else "compiled": path for path in target.glob("*.whl")}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


@pytest.mark.req("U32")
@pytest.mark.parametrize(
    "kind",
    [
        "pure",
        pytest.param(
            "compiled", marks=pytest.mark.skipif(not can_compile(), reason="there is no C compiler")
        ),
    ],
)
def test_a_first_message_from_a_wheel(wheels: dict[str, Path], kind: str, tmp_path: Path) -> None:
    """An empty environment, the wheel, the Azure SDK; the sample goes through a namespace that is served from it."""
    place = Installed(tmp_path)
    place.install(str(wheels[kind]), "azure-servicebus")
    where, compiled = place.run(
        "python", "-c", "import busbar; print(busbar.__file__, busbar.compiled())"
    ).split()
    assert Path(where).is_relative_to(tmp_path)
    assert compiled == str(kind == "compiled")
    with place.serving() as connection:
        printed = place.run("python", str(ROOT / "samples" / "first_message.py"), connection)
        assert printed.endswith("two coffees, one croissant\n")
        assert "orders" in place.run("busbar", "queue", "list", "--data", "data")
        # The pipeline is not in it. The answer is one line that names the one command which brings it.
        refused = place.attempt("busbar", *CAPTURE)
        assert refused.returncode == 1
        (line,) = refused.stderr.splitlines()
        assert line.endswith(
            f"This installs it: {place.program('python')} -m pip install 'busbar-mq[spark]'"
        ), line


@pytest.mark.deep
@pytest.mark.req("D3")
def test_the_pipeline_from_a_wheel(wheels: dict[str, Path], tmp_path: Path) -> None:
    """The command that it names is enough: beside the wheel, the extra brings Spark, and capture writes an archive."""
    place = Installed(tmp_path)
    place.environment["PATH"] = "/usr/bin:/bin"  # Spark's scripts call the tools of a shell
    place.install(str(wheels.get("compiled", wheels["pure"])))
    place.run(
        "python",
        "-m",
        "pip",
        "install",
        "-q",
        "--constraint",
        str(CONSTRAINTS),
        "busbar-mq[spark]",
        timeout=900,
    )
    with place.serving():
        place.run("busbar", "send", "orders", "two coffees, one croissant", "--data", "data")
        assert "orders: 1 captured" in place.run("busbar", *CAPTURE)
    assert list((tmp_path / "archive").rglob("*.parquet"))


def test_what_an_index_would_show(wheels: dict[str, Path]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wheel in wheels.values():
        shown = metadata(wheel)
        assert shown["Name"] == "busbar-mq"
        assert shown["License-Expression"] == "Apache-2.0"
        assert shown["Description-Content-Type"] == "text/markdown"
        urls = dict(line.split(", ", 1) for line in shown.get_all("Project-URL", []))
        assert urls == project["urls"]
        assert shown.get_all("Classifier") == project["classifiers"]
        brought = {
            line.partition(";")[0].strip() for line in shown.get_all("Requires-Dist", []) if "spark" in line
        }
        assert {normal(line) for line in brought} >= {normal(line) for line in requirements("spark")}


def normal(requirement: str) -> str:
    """A requirement without what its order may differ in."""
    return "".join(sorted(requirement.replace(" ", "")))


def test_both_hold_the_same_source(wheels: dict[str, Path]) -> None:
    """And nothing that only tests or a clone need."""
    modules = {}
    for kind, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if ".dist-info/" not in name]
        modules[kind] = {name for name in names if not name.endswith(".so")}
        assert any(name.endswith(".so") for name in names) == (kind == "compiled")
        assert {name.partition("/")[0] for name in modules[kind]} == {"busbar", "pyspark_busbar"}
    expected = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.suffix in {".py", ".json", ".css", ".js", ".typed"} and "egg-info" not in str(path)
    }
    assert all(found == expected for found in modules.values())
