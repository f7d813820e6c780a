"""The client can be imported where none of the server's dependencies is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import busbar

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
