"""Files with secrets: how they are written, and which users may reach them in a data directory.

1. A file is created exclusively, under a temporary name, with its final mode from the first moment, and renamed. A crash
   leaves a whole file or none. If another user has placed a file or link under either name, it is replaced and never
   followed.
2. Only its owner and root may write into a data directory. Any other writer could replace a key there.
3. A file with secrets is for its owner only, independently of the directory's mode, because modes of directories change with
   backups.
4. The owner is the user that serves, or root. Root may serve the directory of another user, as in containers, and gets a
   warning.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from contextlib import suppress
from pathlib import Path

from busbar.store.durable_names import move

PRIVATE, PUBLIC = 0o600, 0o644
STORES_FILE = "stores.json"
SECRET_NAMES = ("sas.key", "endpoint.json", STORES_FILE, "tls/*key.pem", "store-*.db*")
"""Patterns in a data directory. A store has messages, and the keys of entities' rules. The addresses of stores may have
passwords."""
NOT_SECRET = (".lock", ".reserve")
SHOWN = 3


class UnsafeFiles(Exception):
    """Other users can reach a secret; the text is for the operator and has the command that corrects it."""


def write_file(file: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Write a file, or replace it, durably. Raises OSError."""
    fresh = file.with_name(file.name + ".new")
    with suppress(FileNotFoundError):
        fresh.unlink()  # left by a crash, or placed by another user: neither its mode nor its target counts
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)  # a umask may have removed bits
        stream.write(content)
        stream.flush()
        os.fsync(descriptor)
    move(fresh, file)


def check_private(directory: Path, user: int) -> list[str]:
    """Check whether a data directory keeps its secrets when this user serves it. Returns warnings; raises UnsafeFiles or
    OSError."""
    warnings = _check_owner(directory, user)
    for place in (directory, directory / "tls"):
        if place.is_dir():
            _check_writers(place, directory)
    _check_modes(directory, user)
    if user != 0:
        _check_file_owners(directory, user)
    return warnings


def _check_owner(directory: Path, user: int) -> list[str]:
    owner = directory.stat().st_uid
    if owner in (user, 0):
        return []
    whose = f"the data directory {directory} belongs to the user {_user_name(owner)}"
    if user == 0:
        return [f"{whose}, who can replace the keys and messages in it"]
    raise UnsafeFiles(
        f"{whose[0].upper()}{whose[1:]}, who could replace the keys in it, and not to {_user_name(user)}, who serves it. "
        f"Start Busbar as {_user_name(owner)}, choose another directory with --data, or change its owner: "
        f"sudo chown -R {_user_name(user)} {_quoted(directory)}"
    )


def _check_writers(place: Path, directory: Path) -> None:
    found = place.stat()
    if others := _writers(found):
        raise UnsafeFiles(
            f"The directory {place} has mode {stat.S_IMODE(found.st_mode):04o}: {others} may write into it and replace the "
            f"keys in it. Change its mode: chmod go-w {_quoted(place)}, or let Busbar make a directory of its own: "
            f"--data {_quoted(directory / 'busbar')}"
        )


def _check_modes(directory: Path, user: int) -> None:
    too_open = []
    for file in secret_files(directory):
        found = file.stat()
        # A file that root provides for another user has to be readable for a group of that user.
        forbidden = 0o037 if found.st_uid == 0 and user != 0 else 0o077
        if found.st_mode & forbidden:
            too_open.append(f"{file} (mode {stat.S_IMODE(found.st_mode):04o})")
    if too_open:
        raise UnsafeFiles(
            f"Files with secrets are open to others than their owner: {_some(too_open)}. If somebody may have read them, "
            f"replace the keys. Change the modes: chmod -R go= {_quoted(directory)}"
        )


def _check_file_owners(directory: Path, user: int) -> None:
    strange = []
    for file in secret_files(directory):
        for owner in {file.lstat().st_uid, file.stat().st_uid} - {user, 0}:
            strange.append(f"{file} (of {_user_name(owner)})")
    if strange:
        raise UnsafeFiles(
            f"Files with secrets belong to others than {_user_name(user)}, who serves them: {_some(strange)}. Find out "
            "where they come from; delete them, or change their owner: "
            f"sudo chown -R {_user_name(user)} {_quoted(directory)}"
        )


def secret_files(directory: Path) -> list[Path]:
    """The files with secrets that exist."""
    found = [file for pattern in SECRET_NAMES for file in directory.glob(pattern)]
    return sorted(file for file in found if not file.name.endswith(NOT_SECRET) and file.is_file())


def _writers(found: os.stat_result) -> str:
    """Which users may write into a directory beside its owner; empty if none."""
    if found.st_mode & stat.S_IWOTH:
        return "every user"
    if found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid, found.st_uid):
        return f"the group {_group_name(found.st_gid)}"
    return ""


def _is_private_group(group: int, user: int) -> bool:
    """Whether only this user is in the group: many systems give each user such a group, and a umask that lets it write."""
    try:
        owner = pwd.getpwuid(user).pw_name
        members = {*grp.getgrgid(group).gr_mem}
    except KeyError:
        return False
    members |= {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == group}
    return members <= {owner}


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _some(items: list[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _group_name(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)
