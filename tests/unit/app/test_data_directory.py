"""The data directory: who has it, who may read it, and the key in it."""

from __future__ import annotations

import base64
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from busbar.app.data_directory import DataDirectory, DataDirectoryError, instance_serving


def test_it_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "a" / "b")
    try:
        assert directory.is_new
        assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    finally:
        directory.release()


def test_a_second_instance_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryError) as raised:
        DataDirectory(tmp_path)
    assert f"process {os.getpid()}" in str(raised.value)
    assert str(tmp_path) in str(raised.value)
    first.release()
    first.release()
    DataDirectory(tmp_path).release()


def test_what_a_dead_owner_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "busbar.lock").write_text("999999\n")
    DataDirectory(tmp_path).release()


def test_brokers_that_outlive_their_owner_are_waited_for(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock = os.open(tmp_path / "busbar.lock", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(lock, f"{gone.pid}\n".encode())
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(0.1, os.close, [lock]).start()
    DataDirectory(tmp_path).release()


def test_the_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    key = directory.key()
    assert len(base64.b64decode(key, validate=True)) == 32
    assert (tmp_path / "sas.key").stat().st_mode & 0o777 == 0o600
    assert directory.key() == key
    directory.release()
    again = DataDirectory(tmp_path)
    assert again.key() == key
    again.release()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        DataDirectory(tmp_path / "file")


def test_a_command_that_looks_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    """It holds the lock for a moment."""
    DataDirectory(tmp_path).release()
    looking = os.open(tmp_path / "busbar.lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.05, os.close, [looking]).start()
    DataDirectory(tmp_path).release()


def test_who_serves_is_known_while_the_lock_is_held(tmp_path: Path) -> None:
    assert instance_serving(tmp_path) is None
    directory = DataDirectory(tmp_path)
    assert instance_serving(tmp_path) == directory.instance
    text = (tmp_path / "busbar.lock").read_text()
    directory.release()
    assert instance_serving(tmp_path) is None
    (tmp_path / "busbar.lock").write_text(text)
    assert instance_serving(tmp_path) is None, "a text without a lock is that of a crash, or a copy"
