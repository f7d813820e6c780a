"""What a broker process owes to gateways: answers to requests, messages to consumers, the ends of drains.

The machines that have it are in that process. When it is killed, this is what is left. Requests are refused, since their
outcome is unknown. Drains are answered. When the store is back, the sessions of consumers are resumed (held_sessions.py),
and their credit is asked for again. All of it is derived from commands to the fragments and from their effects, so it is
what the gateways rely on. Nothing is kept of a client that has left, since no part would take the answers.
"""

from __future__ import annotations

from collections import Counter

from busbar.cluster.held_sessions import HeldSessions
from busbar.model.commands import (
    AcceptSession,
    AwaitSession,
    CancelAwait,
    Command,
    Demand,
    Leave,
    ReceiveDeferred,
    Settle,
    Transact,
)
from busbar.model.effects import Delivered, Drained, Effect, SessionLost
from busbar.model.hold_commands import ResumeSession

Asked = tuple[int, int]
"""Origin and request."""


class OutstandingRequests:
    def __init__(self) -> None:
        self._unanswered: dict[int, set[int]] = {}
        """Requests, by origin."""
        self._awaits: dict[Asked, int] = {}
        """By request, the fragment: these may be taken back without an answer."""
        self._demands: dict[int, dict[tuple[int, int], Demand]] = {}
        """By fragment; by origin and consumer."""
        self._drains: Counter[tuple[int, int]] = Counter()
        self._sessions = HeldSessions()

    def sent(self, command: Command) -> None:
        kind = type(command)
        if kind is AwaitSession:
            self._awaits[command.origin, command.request] = command.fragment
        elif command.request > 0:
            requests = self._unanswered.get(command.origin)
            if requests is None:
                self._unanswered[command.origin] = {command.request}
            else:
                requests.add(command.request)
            if kind is AcceptSession or kind is ReceiveDeferred:
                self._sessions.said(command)
            elif len(self._sessions):
                self._settles(command)
        elif isinstance(command, Demand):
            self._demand(command)
        elif isinstance(command, Leave):
            self._leave(command)
        elif isinstance(command, Settle):
            self._settles(command)
        elif isinstance(command, CancelAwait):
            self._awaits.pop((command.origin, command.awaited), None)

    def answered(self, effect: Effect) -> None:
        if effect.request > 0:
            requests = self._unanswered.get(effect.origin)
            if requests is not None:
                requests.discard(effect.request)
            if self._awaits:
                self._awaits.pop((effect.origin, effect.request), None)
            self._sessions.heard(effect)
        elif isinstance(effect, SessionLost):
            self._sessions.heard(effect)
        elif isinstance(effect, Delivered):
            if len(self._sessions):
                self._sessions.heard(effect)
            demand = self._demands.get(effect.fragment, {}).get((effect.origin, effect.consumer))
            if demand is not None:
                demand.credit = max(0, demand.credit - len(effect.records))
        elif isinstance(effect, Drained):
            key = (effect.origin, effect.consumer)
            if self._drains[key] > 1:
                self._drains[key] -= 1
            else:
                del self._drains[key]

    def gone(self, origin: int) -> None:
        """Drop a client that has left, after it left every fragment that it waited for."""
        self._unanswered.pop(origin, None)
        self._sessions.gone(origin)

    def drop_fragment(self, fragment: int) -> None:
        """Drop a fragment that is gone. Its requests were answered."""
        self._demands.pop(fragment, None)
        self._sessions.forget(fragment)

    def left(self, command: Leave) -> None:
        """Note that a consumer has left while the store is out of reach."""
        self._sessions.said(command)

    def resumptions(self) -> list[ResumeSession]:
        """Commands that resume the sessions which consumers hold."""
        return self._sessions.resumptions()

    def resume_later(self, command: ResumeSession) -> None:
        """Note a session that a consumer holds, as its last owner has given it back."""
        self._sessions.resume_later(command)

    def _settles(self, command: Command) -> None:
        if isinstance(command, Settle):
            self._sessions.settled(command.fragment, command.numbers)
        elif isinstance(command, Transact):
            for part in command.parts:
                if isinstance(part, Settle):
                    self._sessions.settled(part.fragment, part.numbers)

    def fail_all(self) -> tuple[list[Asked], list[Drained], dict[int, list[Demand]]]:
        """Requests without an answer, drains to be answered, and by fragment what consumers still wait for."""
        unanswered = [
            (origin, request) for origin, requests in self._unanswered.items() for request in requests
        ]
        asked = sorted([*unanswered, *self._awaits])
        drained = [Drained(origin, consumer) for origin, consumer in self._drains.elements()]
        demands = {fragment: list(waiting.values()) for fragment, waiting in self._demands.items()}
        self._unanswered, self._awaits, self._demands, self._drains = {}, {}, {}, Counter()
        self._sessions.forget_requests()
        return asked, drained, demands

    def _demand(self, command: Demand) -> None:
        key = (command.origin, command.consumer)
        waiting = self._demands.setdefault(command.fragment, {})
        if command.drain:
            # What is left of the credit will be forgotten, by the machine or with it.
            waiting.pop(key, None)
            self._drains[key] += 1
            return
        known = waiting.get(key)
        credit = max(0, command.credit + (known.credit if known is not None else 0))
        waiting[key] = Demand(
            command.fragment, command.origin, command.consumer, command.sub, credit, False, command.delete
        )

    def _leave(self, command: Leave) -> None:
        self._sessions.said(command)
        waiting = self._demands.get(command.fragment, {})
        for key in [key for key in waiting if key[0] == command.origin and command.consumer in (0, key[1])]:
            del waiting[key]
        for key in [
            key for key in self._drains if key[0] == command.origin and command.consumer in (0, key[1])
        ]:
            del self._drains[key]
        if command.consumer == 0:
            for asked, fragment in list(self._awaits.items()):
                if asked[0] == command.origin and fragment == command.fragment:
                    del self._awaits[asked]
