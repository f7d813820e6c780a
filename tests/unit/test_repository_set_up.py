"""What the repository says of its own installation, kept true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

from tools.dependencies import LAYERS, MODULES, distribution, module_of, requirements
from tools.work_tree import files

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_OURS = re.compile(r"""\bbusbar\s*\[|\bpip3?\s+install\b[^\n`]*?[\s'"]busbar(?![-_\w./])""")
"""An install line that would bring somebody else's `busbar`."""


def texts() -> dict[str, str]:
    """Everything that people read or programs print."""
    kinds = {".md", ".py", ".toml", ".sh", ".yml", ".txt", ".js", ".json", ""}
    read = (path for path in files() if path.suffix in kinds and path != Path(__file__).resolve())
    return {str(path.relative_to(ROOT)): path.read_text() for path in read}


def test_no_install_line_names_somebody_elses_package() -> None:
    found = [f"{name}: {match[0]}" for name, text in texts().items() for match in NOT_OURS.finditer(text)]
    assert found == []


def test_such_a_line_would_be_found() -> None:
    for bad in (
        "pip install busbar",
        "pip install 'busbar[spark]'",
        '"busbar[spark]"',
        "pip install -U busbar duckdb",
    ):
        assert NOT_OURS.search(bad), bad
    for good in (
        "pip install 'busbar-mq[spark]'",
        "pip install dist/busbar_mq-0.1.0-py3-none-any.whl",
        "pip install x",
    ):
        assert not NOT_OURS.search(good), good


def test_only_busbar_is_built_without_isolation() -> None:
    """A dependency that is built without the tools it asks for makes a broken wheel, which pip keeps for everybody."""
    for name, text in texts().items():
        if name.startswith("tests/") or name == "CHANGELOG.md":
            continue
        for line in text.splitlines():
            if "--no-build-isolation" in line:
                assert name in {"tools/dependencies.py", "tools/build_wheels.py"}, f"{name}: {line}"
                assert "--no-deps" in text, name


def test_every_dependency_of_a_layer_has_a_module() -> None:
    wanted = [line for layer in LAYERS for line in requirements(layer)]
    assert {distribution(line) for line in wanted} >= set(MODULES)
    for line in wanted:
        assert re.fullmatch(r"[\w.]*", module_of(line)), line


def test_a_broken_wheel_is_named_with_its_cure(tmp_path: Path) -> None:
    """As python-qpid-proton once was: installed, and without its extension."""
    (tmp_path / "proton.py").write_text("import cproton_ffi_that_was_not_built\n")
    done = subprocess.run(
        [sys.executable, "tools/dependencies.py", "check", "dev"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "python-qpid-proton: import proton failed with ModuleNotFoundError" in done.stdout
    assert "pip cache remove python_qpid_proton" in done.stdout


def test_the_hosted_workflow_does_what_the_local_one_does() -> None:
    """It has no steps of its own beside `.ci/run`, and tries each Python that the metadata names."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    commands = re.findall(r"^\s*(?:- )?run: (.+)$", workflow, re.MULTILINE)
    assert commands == ["bash .ci/run"]
    matrix = re.search(r"^\s*python: \[(.+)\]$", workflow, re.MULTILINE)
    assert matrix is not None
    tried = re.findall(r'"([\d.]+)"', matrix[1])
    named = [match[1] for line in PROJECT["classifiers"] if (match := re.fullmatch(r".*:: (3\.\d+)", line))]
    assert tried == named
    assert PROJECT["requires-python"] == f">={tried[0]}"
    script = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"\bmake\b.*\btest\b", script)


def test_the_tools_of_ci_are_documented() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    lists = re.findall(r'^(?:needed|optional)="([^"]+)"', script, re.MULTILINE)
    tools = list(chain.from_iterable(text.split() for text in lists))
    assert len(lists) == 2
    document = (ROOT / "CONTRIBUTING.md").read_text()
    assert [tool for tool in tools if not re.search(rf"`[^`\n]*\b{tool}\b[^`\n]*`", document)] == []


def test_what_strangers_look_for_is_there() -> None:
    for name in ("LICENSE", "SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        assert (ROOT / name).stat().st_size > 500, name
    templates = ROOT / ".github" / "ISSUE_TEMPLATE"
    assert {path.name for path in templates.iterdir()} >= {"bug.yml", "wish.yml", "config.yml"}
