"""Message sessions of a queue or subscription: which there are, who holds them, what waits in them, their states.

Looking changes nothing and needs no lock. To set a state the session is accepted, and released afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from busbar.client.blocking import BlockingFactory
from busbar.operations.browsing import MessageKind, browse
from busbar.operations.paths import MAIN, MessagePath

COUNTED: Final = 1_000
"""Messages of a session are counted up to here."""
WAIT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A message session. Times are ms since 1970."""

    session_id: str
    messages: int
    """Those in it, deferred and scheduled ones included; COUNTED if there are at least so many."""
    deferred: int
    oldest: int
    """When the first of them was enqueued; 0 without one."""
    locked_until: int
    """0: no client holds it."""
    holder: str
    """Empty also if the holder is connected to another broker process."""
    locked_messages: int
    has_state: bool
    state: bytes | None
    """Only if it was asked for."""

    @property
    def is_counted(self) -> bool:
        """Whether `messages` are all of them."""
        return self.messages < COUNTED


def session_ids(factory: BlockingFactory, path: str) -> list[str]:
    """The ids of all sessions that have messages or a state."""
    return factory.list_sessions(MessagePath.parse(path).of(MAIN).entity)


def sessions(factory: BlockingFactory, path: str, ids: Sequence[str]) -> list[SessionSummary]:
    """Holder, backlog and state of these sessions."""
    return [session(factory, path, each) for each in ids]


def session(
    factory: BlockingFactory, path: str, session_id: str, *, with_state: bool = False
) -> SessionSummary:
    """One session, which may be empty. `with_state` reads its state, also while another client holds it."""
    entity = MessagePath.parse(path).of(MAIN).entity
    view = factory.inspect_session(entity, session_id, with_state=with_state)
    found = browse(factory, entity, kind=MessageKind.ALL, session_id=session_id, body=False)
    count = deferred = oldest = 0
    for message in islice(found, COUNTED):
        count += 1
        deferred += message.state == "deferred"
        oldest = oldest or message.enqueued_time
    return SessionSummary(
        session_id,
        count,
        deferred,
        oldest,
        view.locked_until,
        view.holder,
        view.locked_messages,
        view.state_size >= 0,
        view.state,
    )


def set_state(factory: BlockingFactory, path: str, session_id: str, state: bytes | None) -> None:
    """Set the state of a session, or clear it with None. Raises SessionCannotBeLocked if another client holds it."""
    entity = MessagePath.parse(path).of(MAIN).entity
    with factory.accept_session(entity, session_id, max_wait_time=WAIT_SECONDS) as receiver:
        receiver.set_state(state)
