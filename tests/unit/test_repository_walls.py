"""Every import contract of pyproject.toml can fail: each wall is broken in a copy of the tree and must be noticed.

Outside of `src` the rule is: tests and benchmarks import the harness, never each other, and what is shipped imports none of
them.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINTER = Path(sys.executable).parent / "lint-imports"

BREACHES = {
    "a lower room imports a higher one": ("layers", "fragment/breach.py", "import busbar.broker"),
    "siblings import each other": ("layers", "amqp/breach.py", "import busbar.model.errors"),
    "a room that no layer names": ("layers", "utilities/__init__.py", ""),
    "the gateway reaches past the API": ("api", "gateway/breach.py", "import busbar.fragment.changes"),
    "the gateway reaches a store through the wire": (
        "api",
        "pages/breach.py",
        "import busbar.fragment.reads",
    ),
    "the client reaches into a broker": ("outside", "client/breach.py", "import busbar.broker.commit_loop"),
    "a job opens a store": ("outside", "jobs/breach.py", "import busbar.store.contract"),
    "the gateway is a client": ("inside", "gateway/breach.py", "import busbar.client"),
    "the console reaches for a broker itself": ("console", "console/breach.py", "import busbar.client"),
    "the client needs the server's event loop": ("light", "client/breach.py", "import uvloop"),
    "the machine reads a clock": ("pure", "fragment/breach.py", "import time"),
    "the machine asks for the time": ("pure", "fragment/breach.py", "import busbar.clock"),
    "the wire engine opens a socket": ("pure", "amqp/breach.py", "from socket import socket"),
    "the model starts a task": ("pure", "model/breach.py", "import asyncio"),
    "a receiver sets a timer": ("pure", "partitions/breach.py", "import asyncio"),
    "a send answers an AMQP link": ("fan-out", "partitions/breach.py", "from busbar.amqp.link import Link"),
    "the broker names its store": ("stores", "broker/breach.py", "from busbar.store import sqlite"),
}

NOT_IMPORTED = {
    "src": {"harness", "tests", "bench", "tools"},
    "harness": {"tests", "bench"},
    "tests": {"bench"},
    "bench": {"tests"},
}
"""By directory: the top-level packages that its files do not import, anywhere in their text."""

DEFINED_ONCE = {
    "eventually": ["harness/waiting.py"],
    "until": ["harness/waiting.py"],
    "build_shim": ["harness/faults/shims.py"],
    "shim": ["tests/plugins/servers.py"],
    "own_server": ["tests/plugins/servers.py"],
    # The second one stands for it where modules share the servers of the suite.
    "server": ["tests/plugins/servers.py", "tests/robustness/attacks.py"],
}
"""Functions that tests share, and the files that define one of that name: more of them would be copies."""


def imported_packages(text: str) -> set[str]:
    """The top-level names that a module imports, also inside of functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found


def lint(tree: Path, contract: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(LINTER), "--no-cache", "--contract", contract],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "busbar", tmp_path / "src" / "busbar", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("breach", BREACHES)
def test_a_broken_wall_is_noticed(tree: Path, breach: str) -> None:
    contract, file, code = BREACHES[breach]
    before = lint(tree, contract)
    assert before.returncode == 0, before.stdout + before.stderr

    target = tree / "src" / "busbar" / file
    target.parent.mkdir(exist_ok=True)
    target.write_text(f'"""A breach."""\n{code}\n')
    if breach == "the gateway reaches a store through the wire":
        (tree / "src" / "busbar" / "gateway" / "breach.py").write_text("import busbar.pages.breach\n")

    after = lint(tree, contract)
    assert after.returncode != 0, after.stdout
    assert "BROKEN" in after.stdout, after.stdout + after.stderr


@pytest.mark.parametrize("directory", NOT_IMPORTED)
def test_tests_and_benchmarks_share_only_the_harness(directory: str) -> None:
    sources = [path for path in (ROOT / directory).rglob("*.py") if "node_modules" not in path.parts]
    assert sources
    assert {
        str(path.relative_to(ROOT)): found
        for path in sources
        if (found := imported_packages(path.read_text()) & NOT_IMPORTED[directory])
    } == {}


def test_shared_functions_are_defined_once() -> None:
    found: dict[str, list[str]] = {name: [] for name in DEFINED_ONCE}
    for path in sorted(
        path for place in ("harness", "tests", "bench") for path in (ROOT / place).rglob("*.py")
    ):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in found:
                found[node.name].append(str(path.relative_to(ROOT)))
    assert found == DEFINED_ONCE


def test_an_import_inside_of_a_function_is_noticed() -> None:
    text = (
        "import os.path\ndef load():\n    from bench import cycle\n    import tests.plugins.results as it\n"
    )
    assert imported_packages(text) == {"os", "bench", "tests"}
