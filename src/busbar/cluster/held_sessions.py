"""The holders of message sessions, derived from commands to fragments and from their effects.

A gateway has them here to resume their sessions over another channel. So the locks of their messages are noted, too. A
message whose settlement was asked for counts as unlocked, whatever becomes of that.
"""

from __future__ import annotations

from busbar.model.commands import AcceptSession, Command, Leave, ReceiveDeferred
from busbar.model.effects import DeferredReceived, Delivered, Effect, SessionAccepted, SessionLost
from busbar.model.hold_commands import ResumeSession

Key = tuple[int, int]
"""A consumer: its origin, and its number there."""


class HeldSessions:
    def __init__(self) -> None:
        self._asked: dict[tuple[int, int], int] = {}
        """Requests to accept: by origin and request, the fragment."""
        self._receiving: dict[tuple[int, int], Key] = {}
        """Requests for deferred messages: by origin and request, the holder."""
        self._held: dict[Key, tuple[int, str]] = {}
        """By consumer: the fragment that its session lies in, and the session."""
        self._locked: dict[int, dict[int, tuple[Key, int]]] = {}
        """By fragment, by number of a message: its holder, and the nonce of the lock."""

    def __len__(self) -> int:
        return len(self._held)

    def said(self, command: Command) -> None:
        if isinstance(command, AcceptSession):
            self._asked[command.origin, command.request] = command.fragment
        elif isinstance(command, ResumeSession):
            self._hold((command.origin, command.consumer), command.fragment, command.session)
        elif isinstance(command, ReceiveDeferred):
            key = (command.origin, command.consumer)
            if key in self._held:
                self._receiving[command.origin, command.request] = key
        elif isinstance(command, Leave):
            for key in self._of(command.origin, command.consumer):
                if self._held[key][0] == command.fragment:
                    self._drop(key)

    def heard(self, effect: Effect) -> None:
        if isinstance(effect, SessionLost):
            self._drop((effect.origin, effect.consumer))
        elif isinstance(effect, Delivered):
            self._lock((effect.origin, effect.consumer), effect)
        elif effect.request > 0:
            asked = (effect.origin, effect.request)
            fragment = self._asked.pop(asked, None)
            if fragment is not None and isinstance(effect, SessionAccepted):
                self._hold((effect.origin, effect.consumer), fragment, effect.session)
            holder = self._receiving.pop(asked, None)
            if holder is not None and isinstance(effect, DeferredReceived):
                self._lock(holder, effect)

    def settled(self, fragment: int, numbers: list[int]) -> None:
        """Note that the settlement of messages was asked for."""
        locked = self._locked.get(fragment)
        if locked:
            for number in numbers:
                locked.pop(number, None)

    def gone(self, origin: int) -> None:
        """Drop a client that has left."""
        for asked in [asked for asked in self._asked if asked[0] == origin]:
            del self._asked[asked]
        for key in self._of(origin, 0):
            self._drop(key)

    def forget(self, fragment: int) -> None:
        """Drop a fragment that is gone, and its sessions with it."""
        for key in [key for key, (where, _) in self._held.items() if where == fragment]:
            self._drop(key)
        self._locked.pop(fragment, None)

    def resume_later(self, command: ResumeSession) -> None:
        """Note a session that is held, with its message locks, as its last owner has given it back."""
        key = (command.origin, command.consumer)
        self._hold(key, command.fragment, command.session)
        if command.numbers:
            locked = self._locked.setdefault(command.fragment, {})
            for number, nonce in zip(command.numbers, command.nonces, strict=True):
                locked[number] = (key, nonce)

    def forget_requests(self) -> None:
        """Note that requests without an answer will have none."""
        self._asked, self._receiving = {}, {}

    def of(self, origin: int) -> list[tuple[int, int]]:
        """The fragment and the consumer of each session that the client holds."""
        return [(self._held[key][0], key[1]) for key in self._of(origin, 0)]

    def resumptions(self) -> list[ResumeSession]:
        """Commands that resume all sessions which are held."""
        locks: dict[Key, dict[int, int]] = {}
        for locked in self._locked.values():
            for number, (key, nonce) in locked.items():
                locks.setdefault(key, {})[number] = nonce
        commands = []
        for key, (fragment, session) in self._held.items():
            mine = locks.get(key, {})
            commands.append(ResumeSession(fragment, *key, session, [*mine], [*mine.values()]))
        return commands

    def _hold(self, key: Key, fragment: int, session: str) -> None:
        self._held[key] = (fragment, session)

    def _lock(self, key: Key, effect: Delivered | DeferredReceived) -> None:
        if effect.until and key in self._held:
            locked = self._locked.setdefault(self._held[key][0], {})
            for record in effect.records:
                locked[record.n] = (key, effect.nonce)

    def _drop(self, key: Key) -> None:
        held = self._held.pop(key, None)
        if held is not None and held[0] in self._locked:
            locked = self._locked[held[0]]
            left = {number: lock for number, lock in locked.items() if lock[0] != key}
            if left:
                self._locked[held[0]] = left
            else:
                del self._locked[held[0]]

    def _of(self, origin: int, consumer: int) -> list[Key]:
        if consumer:
            return [(origin, consumer)] if (origin, consumer) in self._held else []
        return [key for key in self._held if key[0] == origin]
