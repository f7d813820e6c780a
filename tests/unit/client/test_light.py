"""The client can be imported where none of the server's dependencies is installed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import busbar.client

CODE = """
import sys

class Blocked:
    names = {"uvloop", "aiohttp", "lark", "cryptography", "typer", "msgspec", "rich", "defusedxml", "pyspark", "pyarrow"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocked())
import busbar.client, busbar.client.blocking
loaded = {name.split(".")[1] for name in sys.modules if name.startswith("busbar.")}
assert loaded <= {"client", "amqp", "message", "model", "_interpreted"}, loaded
assert not Blocked.names & {name.partition(".")[0] for name in sys.modules}
"""


def test_the_client_needs_nothing_of_the_server() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(busbar.__file__).parents[1])}
    result = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def loaded_by(code: str) -> set[str]:
    """The modules of the client that a fresh process has after running this."""
    shown = f"import sys\n{code}\nprint(*(name for name in sys.modules if name.startswith('busbar.client.')))"
    environment = os.environ | {"PYTHONPATH": str(Path(busbar.__file__).parents[1])}
    result = subprocess.run(
        [sys.executable, "-c", shown], env=environment, capture_output=True, text=True, check=True
    )
    return {name.removeprefix("busbar.client.") for name in result.stdout.split()}


def test_a_module_of_the_client_is_loaded_when_it_is_used() -> None:
    assert loaded_by("import busbar.client") == set()
    assert "factory" not in loaded_by("from busbar.client import AdministrationClient")
    assert "administration" not in loaded_by("from busbar.client import MessagingFactory")


def test_types_and_modules_name_the_same_exports() -> None:
    tree = ast.parse(Path(busbar.client.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        (alias.name, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == set(busbar.client._MODULES.items())
    assert sorted(busbar.client.__all__) == sorted(busbar.client._MODULES)
    for name in busbar.client.__all__:
        assert getattr(busbar.client, name) is not None and name in dir(busbar.client)
