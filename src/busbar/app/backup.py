"""Backups of a data directory with its stores in files, and their restoration. A backup is a directory:

    backup.json     when it was made, by which version, and the size and SHA-256 of every other file
    data/...        the files of the data directory, as after a clean stop

1. A backup has the databases of stores and catalogue, the key, the certificates and the addresses. It has no locks, no logs
   and no journals: the databases are complete without them.
2. A backup is written under a temporary name, synced, verified, and renamed. So a directory with backup.json is complete.
3. A restored directory has exactly what the backup has. It is never mixed with what is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from busbar import __version__
from busbar.app.private_files import STORES_FILE
from busbar.store.durable_names import make_directory, move, sync_directory

MANIFEST = "backup.json"
CONTENT = "data"
CATALOGUE = "catalogue.db"
PARTIAL = ".partial"
COPIED_AT_ONCE = 1 << 20
FORMAT = 1
_OTHERS = ("sas.key", STORES_FILE, "tls/*.pem")

Report = Callable[[str, int], None]
"""Gets the name and the size of each file that was copied."""


class BackupError(Exception):
    """A backup cannot be made or used; the text is for the operator."""


def files_to_copy(data: Path, stores: Sequence[str]) -> list[str]:
    """The files of a backup, by their names in the data directory. Databases come first. Raises BackupError."""
    databases = [CATALOGUE, *[f"{name}.db" for name in stores]]
    missing = [name for name in databases if not (data / name).is_file()]
    if missing:
        raise BackupError(
            f"{data} has no {', '.join(missing)}; --data has to name the directory that is served."
        )
    others = [path for pattern in _OTHERS for path in sorted(data.glob(pattern)) if path.is_file()]
    return [*databases, *[str(path.relative_to(data)) for path in others]]


def copy_files(
    data: Path, target: Path, names: Sequence[str], report: Report
) -> dict[str, dict[str, object]]:
    """Copy files into a new directory, synced. Returns size and hash of each. Raises BackupError, OSError."""
    make_directory(target)
    found: dict[str, dict[str, object]] = {}
    for name in names:
        copy = target / name
        make_directory(copy.parent)
        size, digest = _copy(data / name, copy)
        found[name] = {"size": size, "sha256": digest}
        report(name, size)
    for directory in {target / Path(name).parent for name in names} | {target}:
        sync_directory(directory)
    return found


def _copy(source: Path, target: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with source.open("rb") as read, os.fdopen(descriptor, "wb") as written:
        while part := read.read(COPIED_AT_ONCE):
            digest.update(part)
            size += len(part)
            written.write(part)
        written.flush()
        os.fsync(written.fileno())
    return size, digest.hexdigest()


def write_manifest(
    backup: Path, files: dict[str, dict[str, object]], stores: Sequence[str], made: str
) -> None:
    """Write what the backup has. With this file it is complete."""
    manifest = {"format": FORMAT, "version": __version__, "made": made, "stores": [*stores], "files": files}
    file = backup / MANIFEST
    with file.open("x", encoding="utf-8") as out:
        out.write(json.dumps(manifest, indent=2) + "\n")
        out.flush()
        os.fsync(out.fileno())
    sync_directory(backup)


def read_manifest(backup: Path) -> dict[str, Any]:
    """What a backup has. Raises BackupError."""
    try:
        manifest = json.loads((backup / MANIFEST).read_text("utf-8"))
        files = manifest["files"]
        names = [*files] if isinstance(files, dict) else []
    except FileNotFoundError:
        raise BackupError(f"{backup} is not a backup: it has no {MANIFEST}.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackupError(f"{backup / MANIFEST} cannot be read: {error}.") from None
    if manifest.get("format") != FORMAT:
        raise BackupError(f"{backup} has the format {manifest.get('format')!r}; this version reads {FORMAT}.")
    outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside or not names:
        raise BackupError(f"{backup / MANIFEST} names files outside of the backup, or none.")
    return dict(manifest)


def verify(backup: Path) -> int:
    """Check every file of a backup, and every page of its databases. Returns the number of files. Raises BackupError."""
    manifest = read_manifest(backup)
    for name, expected in manifest["files"].items():
        file = backup / CONTENT / name
        try:
            with file.open("rb") as read:
                digest = hashlib.file_digest(read, "sha256").hexdigest()
        except OSError as error:
            raise BackupError(f"the backup is not complete: {file}: {error.strerror}.") from None
        if digest != expected["sha256"] or file.stat().st_size != expected["size"]:
            raise BackupError(f"the backup is damaged: {file} is not what was copied.")
        if name.endswith(".db"):
            check_database(file)
    return len(manifest["files"])


def check_database(file: Path) -> None:
    """Check a database without changing its directory. A store must need no journal. Raises BackupError."""
    try:
        with closing(
            sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as connection:
            problems = [row[0] for row in connection.execute("PRAGMA integrity_check(3)") if row[0] != "ok"]
            closed = connection.execute("SELECT value FROM meta WHERE key = 'closed'").fetchall()
    except sqlite3.Error as error:
        raise BackupError(f"the backup is damaged: {file}: {error}.") from None
    if problems:
        raise BackupError(f"the backup is damaged: {file}: {problems[0]}.")
    if file.name != CATALOGUE and closed != [(1,)]:
        raise BackupError(f"{file} cannot be used without a journal, which the backup does not have.")


def restore(backup: Path, data: Path, report: Report) -> int:
    """Make a data directory from a backup. Returns the number of files. Raises BackupError, OSError."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise BackupError(f"{data} is not empty; a backup is restored into a new or an empty directory.")
    count = verify(backup)
    manifest = read_manifest(backup)
    partial = data.with_name(data.name + PARTIAL)
    if partial.exists():
        raise BackupError(f"{partial} is left of a restore that did not end; remove it first.")
    try:
        partial.mkdir(mode=0o700, parents=True)
        copied = copy_files(backup / CONTENT, partial, [*manifest["files"]], report)
        if copied != manifest["files"]:
            raise BackupError(f"{partial} is not what the backup has; the disk has changed what was written.")
        if data.exists():
            data.rmdir()
        move(partial, data)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return count
