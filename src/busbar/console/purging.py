"""Purges that run in the background, so that a page can show how far they are.

The last few are remembered. A purge goes on when its page is closed, and ends with the console.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from busbar.console.background import in_background
from busbar.console.messages import Lane, Messages
from busbar.console.namespace import Address, NamespaceFailure

REMEMBERED = 50

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PurgeRun:
    """A purge: how many messages of each lane are deleted."""

    address: Address
    deleted: dict[Lane, int] = field(default_factory=dict)
    left: int = 0
    is_over: bool = False
    failure: str = ""


class PurgeRuns:
    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._runs: dict[str, PurgeRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, address: Address, lanes: Sequence[Lane], session: str | None) -> str:
        """Start a purge. Returns its id."""
        while len(self._runs) >= REMEMBERED:
            del self._runs[next(iter(self._runs))]
        id = secrets.token_urlsafe(8)
        run = self._runs[id] = PurgeRun(address, dict.fromkeys(lanes, 0))
        task = asyncio.create_task(self._purge(run, lanes, session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return id

    def get(self, id: str) -> PurgeRun | None:
        return self._runs.get(id)

    async def _purge(self, run: PurgeRun, lanes: Sequence[Lane], session: str | None) -> None:
        try:
            run.left = await in_background(
                lambda: self._messages.purge(run.address, lanes, session, run.deleted.__setitem__)
            )
        except NamespaceFailure as failure:
            run.failure = failure.text
        except Exception as error:
            # A fault of the console. The text of an exception may contain anything, so only its type is logged.
            logger.error("a purge failed: %s", type(error).__name__)
            run.failure = "The console made a mistake; see its log."
        finally:
            run.is_over = True
