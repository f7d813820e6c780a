"""How the web console reaches a running Busbar: a client for each question, found as all commands do.

Threads share nothing, and a Busbar that was restarted on another port is found. Failures become those of the console.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.management_client import ManagementClient
from busbar.console.namespace import FailureKind, NamespaceFailure

if TYPE_CHECKING:
    from busbar.client.blocking import BlockingFactory

PROBLEMS = {
    ExitCode.NOT_FOUND: FailureKind.NOT_FOUND,
    ExitCode.REFUSED: FailureKind.REFUSED,
    ExitCode.USAGE: FailureKind.REFUSED,
    ExitCode.OTHER: FailureKind.AWAY,
}
_ISO_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?Z", re.ASCII)


@contextmanager
def management(where: ConnectionOptions) -> Iterator[ManagementClient]:
    """A client of the management API. Raises NamespaceFailure, inside the block too."""
    with failures(), ManagementClient(find_target(where), says_target=False) as client:
        yield client


@contextmanager
def messages(where: ConnectionOptions) -> Iterator[BlockingFactory]:
    """A client of messaging. Raises NamespaceFailure, inside the block too."""
    from busbar.cli.messaging import messaging

    with failures(), messaging(where) as factory:
        yield factory


@contextmanager
def failures() -> Iterator[None]:
    """Turn the failures of commands into those of the console."""
    try:
        yield
    except CommandFailure as failure:
        text = failure.text[:1].upper() + failure.text[1:]
        raise NamespaceFailure(text, PROBLEMS[failure.code]) from None


def listed(question: Callable[[], Any]) -> list[Any]:
    """The answer to a question. It is empty if the key does not allow it, or if the other side is no Busbar.

    The rest of the page is still true."""
    try:
        found = question()
    except CommandFailure as failure:
        if failure.code in (ExitCode.NOT_FOUND, ExitCode.REFUSED):
            return []
        raise
    return found if isinstance(found, list) else []


def readable_time(text: str, *, exact: bool = False) -> str:
    """A time of the management API as people read it, without fractions of a second unless it is `exact`. Another text
    stays."""
    found = _ISO_TIME.fullmatch(text)
    if found is None:
        return text
    return f"{found[1]} {found[2]}{found[3] or '' if exact else ''}Z"


def moment(ms: int) -> str:
    """A time in UTC for people, without fractions of a second; empty for 0."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if ms > 0 else ""
