"""Accepts a message session for a link: a named one, or the next that is available.

A named session lies in the fragment of its key; that one is asked for the lock, and its answer is final. For the next
available one, partitions/session_accept.py asks the fragments. If the link goes before it has its session, no lock remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from busbar.clock import wall_clock
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.model.commands import AcceptSession, Leave
from busbar.model.effects import SessionAccepted
from busbar.model.errors import BusbarError
from busbar.partitions.session_accept import SessionAcceptor
from busbar.partitions.session_rotation import FragmentRotation


async def accept_named(peer: LinkConnection, fragment: int, consumer: int, session: str) -> SessionAccepted:
    """Accept the session of that name. Raises SessionCannotBeLocked."""
    try:
        effect = await peer.ask(
            lambda request: AcceptSession(fragment, peer.origin, request, consumer, session)
        )
    except BusbarError as error:
        if not error.certain:
            peer.command(Leave(fragment, peer.origin, consumer))
        raise
    except asyncio.CancelledError:
        peer.command(Leave(fragment, peer.origin, consumer))
        raise
    assert isinstance(effect, SessionAccepted)
    return effect


async def accept_next(
    peer: LinkConnection, fragments: Sequence[int], consumer: int, rotation: FragmentRotation, wait: float
) -> tuple[int, SessionAccepted]:
    """Accept the next available session. Returns it with the index of its fragment. Raises OperationTimeout after `wait`
    seconds."""
    result = _AwaitedSession()
    acceptor = SessionAcceptor(peer, fragments, consumer, rotation, result)
    is_taken = False
    try:
        acceptor.begin(wall_clock(), round(wait * 1000))
        peer.flush()
        accepted = await result.future
        is_taken = True
        return accepted
    finally:
        acceptor.end(taken=is_taken)
        peer.flush()
        del acceptor, result  # an error would refer to this frame, and this frame to the error


class _AwaitedSession:
    """Passes the result of an accept to the task that waits for it."""

    def __init__(self) -> None:
        self.future: asyncio.Future[tuple[int, SessionAccepted]] = asyncio.get_running_loop().create_future()

    def accepted(self, index: int, session: SessionAccepted) -> None:
        if not self.future.done():
            self.future.set_result((index, session))

    def failed(self, error: BusbarError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
