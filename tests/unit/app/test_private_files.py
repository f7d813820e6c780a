"""Files with secrets: made exclusively and for their owner alone; who else may get at them is found."""

from __future__ import annotations

import os
import pwd
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from busbar.app.certificates import own_files
from busbar.app.data_directory import DataDirectory, DataDirectoryError
from busbar.app.endpoint_file import RunningEndpoint, write_endpoint
from busbar.app.private_files import UnsafeFiles, check_private, secret_files, write_file
from busbar.store.contract import StoreError
from busbar.store.sqlite.store import SqliteStore

ME = os.geteuid()


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def write_all(path: Path) -> None:
    """Everything that an instance writes with a secret in it, beside its stores."""
    directory = DataDirectory(path)
    try:
        directory.key()
        own_files(path, [])
        write_endpoint(path, RunningEndpoint("localhost", 1, 2, 3, 4, "Root", "secret"))
    finally:
        directory.release()


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277])
def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path, mask: int) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "tls").mkdir(mode=0o700)
    with umask(mask):
        write_all(tmp_path / "data")
    secrets = secret_files(tmp_path / "data")
    assert len(secrets) == 4
    assert {mode(file) for file in secrets} == {0o600}
    assert mode(tmp_path / "data" / "tls" / "ca.pem") == 0o644


def test_it_is_never_wider_for_a_moment(tmp_path: Path) -> None:
    """A thread looks at the file as often as it can while it is written again and again, with the laxest umask."""
    seen: set[int] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for name in ("secret", "secret.new"):
                try:
                    seen.add(mode(tmp_path / name))
                except FileNotFoundError:
                    pass

    thread = threading.Thread(target=look)
    thread.start()
    with umask(0):
        for _ in range(200):
            write_file(tmp_path / "secret", b"x" * 1000)
    done.set()
    thread.join()
    assert seen == {0o600}


NAMES = ("sas.key", "endpoint.json", "tls/ca-key.pem", "tls/server-key.pem")


@pytest.mark.parametrize("suffix", ["", ".new"])
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_link_is_replaced_and_not_followed(tmp_path: Path, name: str, suffix: str) -> None:
    data, victim = tmp_path / "data", tmp_path / "victim"
    (data / "tls").mkdir(parents=True, mode=0o700)
    victim.write_bytes(b"")  # which is no key: one that a link leads to is used
    victim.chmod(0o600)
    (data / (name + suffix)).symlink_to(victim)
    write_all(data)
    assert victim.read_bytes() == b""
    assert not (data / name).is_symlink() and mode(data / name) == 0o600
    assert not (data / f"{name}.new").exists()


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_in_the_way_with_a_lax_mode_does_not_lend_it(tmp_path: Path, name: str) -> None:
    data = tmp_path / "data"
    (data / "tls").mkdir(parents=True, mode=0o700)
    planted = data / f"{name}.new"
    planted.write_text("planted")
    planted.chmod(0o666)
    held = planted.open()  # who opened it before reads what it was
    write_all(data)
    assert mode(data / name) == 0o600
    assert held.read() == "planted"
    held.close()


@pytest.mark.parametrize("name", ["busbar.lock", "store-0.db.lock"])
def test_a_lock_is_not_written_through_a_link(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("of somebody else")
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / name).symlink_to(victim)
    with pytest.raises((DataDirectoryError, StoreError), match=name):
        if name == "busbar.lock":
            DataDirectory(data)
        else:
            SqliteStore(data / "store-0.db").claim()
    assert victim.read_text() == "of somebody else"


def test_a_directory_that_others_may_read_is_fine(tmp_path: Path) -> None:
    write_all(tmp_path / "data")
    (tmp_path / "data").chmod(0o755)
    assert check_private(tmp_path / "data", ME) == []


@pytest.mark.parametrize("bits", [0o777, 0o757, 0o1777])
@pytest.mark.parametrize("part", [".", "tls"])
def test_a_directory_that_all_may_write_is_refused(tmp_path: Path, bits: int, part: str) -> None:
    write_all(tmp_path)
    place = tmp_path / part
    place.chmod(bits)
    with pytest.raises(UnsafeFiles) as raised:
        check_private(tmp_path, ME)
    for told in (str(place), f"{bits:04o}", f"chmod go-w {place}", "every user"):
        assert told in str(raised.value)
    place.chmod(0o755)
    assert check_private(tmp_path, ME) == []


def test_a_group_of_nobody_else_may_write(tmp_path: Path) -> None:
    """Many systems give every user a group of the same name, and a umask that lets it write."""
    group = pwd.getpwuid(ME).pw_gid
    alone = [entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == group] == [ME]
    os.chown(tmp_path, -1, group)
    tmp_path.chmod(0o775)
    if alone:
        assert check_private(tmp_path, ME) == []
    else:
        with pytest.raises(UnsafeFiles, match="the group"):
            check_private(tmp_path, ME)


@pytest.mark.skipif(ME != 0, reason="only root can give a file away")
def test_another_group_may_not(tmp_path: Path) -> None:
    os.chown(tmp_path, -1, 54321)
    tmp_path.chmod(0o775)
    with pytest.raises(UnsafeFiles, match="the group 54321 may write"):
        check_private(tmp_path, ME)
    tmp_path.chmod(0o755)
    assert check_private(tmp_path, ME) == []


@pytest.mark.parametrize("name", [*NAMES, "store-0.db", "store-1.db-wal", "store-0.db.aside-17"])
@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620])
def test_a_secret_that_others_can_read_or_write_is_refused(tmp_path: Path, name: str, bits: int) -> None:
    write_all(tmp_path)
    file = tmp_path / name
    file.touch()
    file.chmod(bits)
    with pytest.raises(UnsafeFiles) as raised:
        check_private(tmp_path, ME)
    for told in (f"{file} (mode {bits:04o})", f"chmod -R go= {tmp_path}"):
        assert told in str(raised.value)
    file.chmod(0o600)
    assert check_private(tmp_path, ME) == []


def test_a_linked_secret_counts_as_what_it_leads_to(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "key"
    data.mkdir(mode=0o700)
    elsewhere.write_text("key")
    elsewhere.chmod(0o644)
    (data / "sas.key").symlink_to(elsewhere)
    with pytest.raises(UnsafeFiles, match=r"sas\.key \(mode 0644\)"):
        check_private(data, ME)


def test_many_are_not_all_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for number in range(9):
        (tmp_path / f"store-{number}.db").touch(mode=0o644)
    with pytest.raises(UnsafeFiles, match="and 6 more"):
        check_private(tmp_path, ME)


@pytest.mark.skipif(ME != 0, reason="only root can give a directory away")
def test_the_directory_of_another_user(tmp_path: Path) -> None:
    write_all(tmp_path)
    os.chown(tmp_path, 54321, -1)
    with pytest.raises(UnsafeFiles) as raised:
        check_private(tmp_path, 54320)
    assert "54321" in str(raised.value) and f"sudo chown -R 54320 {tmp_path}" in str(raised.value)
    (warning,) = check_private(tmp_path, 0)
    assert "belongs to the user 54321" in warning


@pytest.mark.skipif(ME != 0, reason="only root can give a file away")
def test_a_secret_of_another_user(tmp_path: Path) -> None:
    write_all(tmp_path)
    os.chown(tmp_path, 54320, -1)
    os.chown(tmp_path / "sas.key", 54321, -1)
    with pytest.raises(UnsafeFiles, match=r"sas\.key \(of 54321\)"):
        check_private(tmp_path, 54320)
    os.chown(tmp_path / "sas.key", 0, 54320)
    (tmp_path / "sas.key").chmod(0o640)  # as root hands a secret to a service
    assert check_private(tmp_path, 54320) == []
