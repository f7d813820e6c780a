"""`busbar backup DIR` and `busbar restore DIR`: a namespace with its stores in files, copied while it serves."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.options import command
from busbar.cli.output import size_text

if TYPE_CHECKING:
    from busbar.cli.management_client import ManagementClient

Backup = Annotated[
    Path, typer.Argument(metavar="BACKUP", show_default=False, help="The directory of the backup.")
]


def add_backup_commands(app: typer.Typer) -> None:
    command(
        app,
        examples=("busbar backup /backups/monday", "busbar backup /backups/monday --data /var/lib/busbar"),
    )(backup)
    command(app, examples=("busbar restore /backups/monday --data /var/lib/busbar",))(restore)


def backup(*, directory: Backup, where: ConnectionOptions) -> None:
    """Copy the data directory of a running Busbar into a new directory, and verify the copy. Clients notice a short pause.

    All that was acknowledged before the command began is in the backup, and all stores are as they were at one moment. The
    backup has keys and messages: protect it. For stores in PostgreSQL, use its own means (docs/cluster-operations.md).
    """
    from busbar.app.backup import CONTENT, PARTIAL, copy_files, files_to_copy, verify, write_manifest
    from busbar.cli.management_client import ManagementClient
    from busbar.store.durable_names import move

    if where.connection_string is not None:
        raise CommandFailure("a backup copies files; name their directory with --data.", ExitCode.USAGE)
    if directory.exists():
        raise CommandFailure(f"{directory} exists; a backup is a new directory.", ExitCode.USAGE)
    partial = directory.with_name(directory.name + PARTIAL)
    if partial.exists():
        raise CommandFailure(
            f"{partial} is left of a backup that did not end; remove it first.", ExitCode.USAGE
        )
    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with _failures(), ManagementClient(find_target(where)) as client:
        stores: list[str] = _call(client, "POST")
        try:
            names = files_to_copy(where.data, stores)
            partial.mkdir(mode=0o700, parents=True)
            files = copy_files(where.data, partial / CONTENT, names, _say_copied)
            if not _call(client, "DELETE")["complete"]:
                raise CommandFailure(
                    "the files were changed before all were copied; there is no backup. Try again."
                )
            write_manifest(partial, files, stores, made)
            count = verify(partial)
            move(partial, directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            _end_quietly(client)
            raise
    print(f"{directory}: {count} files, verified")


def restore(*, directory: Backup, where: ConnectionOptions) -> None:
    """Make a data directory from a backup. It must be new or empty, and every file of the backup is verified first.

    Start busbar serve with the same options as before. Messages that were sent after the backup are not there, and those
    that were completed after it are there again.
    """
    from busbar.app.backup import restore as restore_files

    with _failures():
        count = restore_files(directory, where.data, _say_copied)
    print(f"{where.data}: {count} files restored; start it with `busbar serve --data {where.data}`")


def _call(client: ManagementClient, method: str) -> Any:
    from busbar.cli.stores import ask

    return ask(client, method, "backup", "the backup")


def _end_quietly(client: ManagementClient) -> None:
    """Let the files change again after a failure. If that fails too, the broker does so after some time."""
    try:
        _call(client, "DELETE")
    except CommandFailure as failure:
        print(f"busbar: {failure.text}", file=sys.stderr)


def _say_copied(name: str, size: int) -> None:
    print(f"{name}: {size_text(size)}", file=sys.stderr, flush=True)


@contextmanager
def _failures() -> Iterator[None]:
    from busbar.app.backup import BackupError

    try:
        yield
    except BackupError as error:
        raise CommandFailure(str(error), ExitCode.REFUSED) from None
    except OSError as error:
        raise CommandFailure(f"the files cannot be copied: {error}") from None
