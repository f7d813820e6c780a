"""Names of files that have to outlive a power cut are synced before anybody is told what is in the files.

A rename is durable when the directory was synced after it. The library of harness/faults/trace.c, preloaded into a process
that makes the files, writes down renames and syncs in one order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.durability.trace import Record, read_trace

pytestmark = pytest.mark.shim("trace")

FIRST_START = """
import sys
from pathlib import Path
from busbar.app.certificates import own_files
from busbar.app.data_directory import DataDirectory

directory = DataDirectory(Path(sys.argv[1]))
directory.key()
own_files(directory.path, ())
directory.release()
"""


@pytest.fixture
def trace(shim: Path, tmp_path: Path) -> list[Record]:
    """Of a first start, in a directory that was not there."""
    log = tmp_path / "log"
    environment = {"LD_PRELOAD": str(shim), "TRACE_LOG": str(log), "TRACE_DATA": str(tmp_path / "new")}
    subprocess.run(
        [sys.executable, "-c", FIRST_START, str(tmp_path / "new" / "data")],
        env={**os.environ, **environment},
        check=True,
    )
    return read_trace(log)


def synced_after(trace: list[Record], path: Path) -> bool:
    """Whether the directory of a renamed file was synced after the rename."""
    renamed = max(
        index for index, one in enumerate(trace) if one.kind == "M" and one.data == os.fsencode(path)
    )
    directory = os.fsencode(path.parent)
    return any(one.kind == "E" and one.data == directory for one in trace[renamed:])


def test_the_key_and_the_certificates_have_durable_names(trace: list[Record], tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    for path in (
        data / "sas.key",
        data / "tls" / "ca-key.pem",
        data / "tls" / "ca.pem",
        data / "tls" / "server-key.pem",
        data / "tls" / "server.pem",
    ):
        assert synced_after(trace, path), path


def test_the_directories_of_a_first_start_have_durable_names(trace: list[Record], tmp_path: Path) -> None:
    synced = {one.data for one in trace if one.kind == "E"}
    assert os.fsencode(tmp_path / "new") in synced, "it has the data directory"
    assert os.fsencode(tmp_path / "new" / "data") in synced, "it has the directory of the certificates"
