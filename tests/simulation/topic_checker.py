"""Holds a topic against what its senders were told: what they were acknowledged is in every subscription that selects it,
once and in order, or in none.

Each message that is sent has a tag in its body. A subscription's model has all copies that ever came, as they are durable
(queue_model.py), so that what became of a send is found by its tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from busbar.amqp.types import Int
from busbar.broker.fragment_loading import DurableState
from busbar.message.compose import compose
from busbar.message.parsing import parse_message
from busbar.model import commands as c
from busbar.model import effects as e
from busbar.model.message import SCHEDULED, Draft
from busbar.model.settings import FragmentSettings
from tests.simulation.queue_checker import QueueChecker
from tests.simulation.store_world import StoreWorld

NUMBER = b"x-opt-enqueue-sequence-number\x81"


@dataclass(frozen=True)
class Kind:
    """What rules read of a message."""

    color: str
    quantity: int


def content(tag: int, kind: Kind, padding: int) -> bytes:
    properties: dict[str, object] = {"color": kind.color, "quantity": Int(kind.quantity)}
    raw = compose(b"tag-%06d" % tag + b"x" * padding, application_properties=properties)
    return parse_message(raw, 0, len(raw), "fresh", 128).content


def tag_of(stored: bytes) -> int:
    found = re.search(rb"tag-(\d{6})", stored)
    assert found is not None
    return int(found[1])


def topic_number_of(stored: bytes) -> int:
    at = stored.index(NUMBER) + len(NUMBER)
    return int.from_bytes(stored[at : at + 8], "big")


@dataclass
class PendingTags:
    """A send: its tags, and what its sender was told."""

    tags: list[int]
    atomic: bool
    stored: set[int] = field(default_factory=set)  # acknowledged
    absent: set[int] = field(default_factory=set)  # refused or dropped, for certain
    is_decided: bool = False


class TopicChecker(QueueChecker):
    """Its model has ids and numbers: a topic keeps no message for receivers."""

    def __init__(
        self,
        world: StoreWorld,
        settings: FragmentSettings,
        fragment: int,
        selects: dict[int, Callable[[Kind], bool]],
    ) -> None:
        super().__init__(world, settings, fragment)
        self.selects = selects
        self.kinds: dict[int, Kind] = {}
        self.scheduled: set[int] = set()
        self.sends: dict[int, PendingTags] = {}
        self.rest_checks = 0
        self.acknowledged = 0

    # ---- senders ----

    def send(self, drafts: list[Draft], atomic: bool) -> None:
        self.ticks = 0
        command = c.Send(self.fragment, self.fragment, 1, drafts, atomic)
        self.world.request(command)
        self.sends[int(command.request)] = PendingTags([tag_of(draft.content) for draft in drafts], atomic)
        self.world.submit(command)

    def performed(self, effect: e.Effect) -> None:
        send = self.sends.get(int(effect.request))
        if send is None:
            return
        assert not send.is_decided
        if isinstance(effect, e.Sent):
            absent = {*effect.duplicates, *[index for index, _, _ in effect.refused]}
            send.absent = {tag for index, tag in enumerate(send.tags) if index in absent}
            send.stored = set(send.tags) - send.absent
            send.is_decided = True
            self.acknowledged += len(send.stored)
        elif isinstance(effect, e.Refused) and effect.certain:
            send.absent, send.is_decided = set(send.tags), True

    # ---- the model follows ----

    def _follow(self, command: c.Command, effects: list[e.Effect]) -> None:
        if isinstance(command, c.Send):
            (answer,) = effects
            assert answer.request == command.request
            if isinstance(answer, e.Sent):
                self._follow_send(command, answer)
            else:
                assert isinstance(answer, e.Refused) and not self.settings.can_send
        else:
            assert isinstance(command, c.Tick) and not effects
        assert self.model.last <= self.machine._state.ledger.head.last
        self.model.last = self.machine._state.ledger.head.last

    def _follow_send(self, command: c.Send, answer: e.Sent) -> None:
        model, window = self.model, self.settings.duplicate_window_ms
        repeated = []
        for index, draft in enumerate(command.drafts):
            if window and draft.message_id:
                session = draft.session_id
                identity = (draft.message_id, draft.partition_key or "" if session is None else session)
                at, first = model.ids.get(identity, (-window, 0))
                if at + window > model.now:
                    assert answer.numbers[index] == first
                    repeated.append(index)
                    continue
                model.ids[identity] = (model.now, answer.numbers[index])
            assert answer.numbers[index] == model.last + 1 + index, "a number does not depend on rules"
        assert answer.duplicates == repeated and not answer.refused
        model.dropped += len(repeated)

    def loaded(self, durable: DurableState, recreated: bool) -> None:
        super().loaded(durable, recreated)
        if recreated:
            self.sends = {}

    # ---- checks ----

    def check_quiet(self) -> None:
        self.model.now = self.world.now
        assert self.machine._state.duplicates.dropped == self.model.dropped
        assert not self.machine.owes_copies() or self.world.host.refuses_sends
        if not self.in_flight and not self.gathered and self.world.place.disk is not None:
            self._check_ids()

    def check_at_rest(self) -> None:
        """Nothing is under way: every send is in all subscriptions that select it, or in none."""
        self.rest_checks += 1
        waiting = {tag_of(record.content or b""): record.due for record in self.lane(SCHEDULED).values()}
        arrived: dict[int, list[int]] = {}
        for fragment in self.selects:
            checker = self.world.checkers[fragment]
            assert isinstance(checker, QueueChecker)
            copies = [copy for _, copy in sorted(checker.model.copies.items())]
            numbers = [topic_number_of(copy) for copy in copies]
            assert numbers == sorted(set(numbers)), "in order, and once"
            tags = [tag_of(copy) for copy in copies]
            at_once = [tag for tag in tags if tag not in self.scheduled]
            assert at_once == sorted(set(at_once)), "in the order of their sends"
            for tag in tags:
                assert self.selects[fragment](self.kinds[tag]), "only what the rules select"
                arrived.setdefault(tag, []).append(fragment)
        for send in self.sends.values():
            self._check_send(send, waiting, arrived)

    def _check_send(self, send: PendingTags, waiting: dict[int, int], arrived: dict[int, list[int]]) -> None:
        kept = set()
        for tag in send.tags:
            selecting = [fragment for fragment, selects in self.selects.items() if selects(self.kinds[tag])]
            there = arrived.get(tag, [])
            assert there in ([], selecting), "all copies are there, or none"
            assert not (there and tag in waiting), "what waits has not been passed on"
            if there or tag in waiting:
                kept.add(tag)
            if tag in send.stored:
                assert there == selecting or tag in waiting, "what was acknowledged is there"
            if tag in send.absent:
                assert not there and tag not in waiting, "what was refused or dropped is nowhere"
        if send.atomic and not send.is_decided and kept:
            judged = [
                tag for tag in send.tags if any(selects(self.kinds[tag]) for selects in self.selects.values())
            ]
            dropped = self._may_be_dropped
            assert dropped or set(judged) <= kept, "a batch is there as a whole"

    @property
    def _may_be_dropped(self) -> bool:
        """Duplicates of a batch whose sender was not answered."""
        return self.settings.duplicate_window_ms > 0
