"""Every import contract of pyproject.toml can fail: each wall is broken in a copy of the tree and must be noticed."""

from __future__ import annotations

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
    "the wire engine opens a socket": ("pure", "amqp/breach.py", "from socket import socket"),
    "the model starts a task": ("pure", "model/breach.py", "import asyncio"),
    "a receiver sets a timer": ("pure", "partitions/breach.py", "import asyncio"),
    "a send answers an AMQP link": ("fan-out", "partitions/breach.py", "from busbar.amqp.link import Link"),
    "the broker names its store": ("stores", "broker/breach.py", "from busbar.store import sqlite"),
}


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
