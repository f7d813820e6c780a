"""The group of changes that gathers for the next commit: the fragments with changes, and its size. Pure.

Rules:
- A full group (GROUP_MESSAGES or GROUP_BYTES) takes no more. A command is never split over groups, so one that alone is
  larger than a group has a group of its own.
- What the mover does is counted apart (GROUP_MOVED or GROUP_BYTES). If moves had to share the room of sends, each would wait
  for a group without sends. Senders would then outrun the mover, and what they send would wait in the queue first.
- An entity without batched store access (FragmentSettings.shares_commits) shares no commit: a write of it waits until the
  group is empty, and closes the group. The copies of a message that its topic passes on follow the topic. Receives wait for
  nothing: what they change joins the group that is there.
- Of an express entity, changes that need not be durable stay in its machine, in no group. Their effects can be performed at
  once, unless effects of the fragment are held already. `write` puts them into the group: when they are due (express.py),
  before a read, and when more than EXPRESS_BYTES of a store are in memory alone. Such an entity shares commits in any case.
- The copies of a message are all in the group, with the change of their topic, or none of them is.
- Effects are held with the newest change they may rest on: with the changes that gather, or with those that are being
  committed. Effects that rest on nothing can be performed at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from mypy_extensions import i64

from busbar.broker.express import ExpressTimers
from busbar.broker.slot import Slot
from busbar.fragment.changes import Changes
from busbar.model.commands import Command, RemoveMoved, Send, Settle, StoreCopies, TakeMoved, Transact
from busbar.model.effects import Effect
from busbar.model.message import Draft

GROUP_MESSAGES = 2_000
"""A sender and a receiver with 1,000 messages in flight each share a commit. With less, their commits take turns."""
GROUP_MOVED = 6_000
GROUP_BYTES = 4 * 1024 * 1024
EXPRESS_BYTES = 64 * 1024 * 1024


def drafts_of(command: Command) -> list[Draft]:
    """The messages that a command brings."""
    if type(command) is Send:
        return command.drafts
    if type(command) is TakeMoved:
        return command.drafts
    if type(command) is Transact:
        sends = [part.drafts for part in command.parts if type(part) is Send]
        return sends[0] if len(sends) == 1 else [draft for drafts in sends for draft in drafts]
    return []


def _bytes_of(command: Command) -> int:
    size: i64 = 0
    if type(command) is StoreCopies:
        for copy in command.copies:
            size += len(copy.content)
    else:
        for draft in drafts_of(command):
            size += len(draft.content)
    return int(size)


def _is_apart(slot: Slot) -> bool:
    settings = slot.machine.settings
    return not settings.shares_commits and not settings.express_ms


@final
class CommitGroup:
    def __init__(self) -> None:
        self.slots: list[Slot] = []
        """Those that have gathered changes."""
        self.is_full = False
        self.express = ExpressTimers()
        self.writes_at_once = False
        """Express entities are written like others: the store is about to be closed."""
        self._messages = 0
        self._bytes = 0
        self._moved = 0
        self._moved_bytes = 0
        self._unwritten_bytes = 0

    def fits(self, slot: Slot, command: Command) -> bool:
        """Whether a command may be applied now. If not, the group counts as full."""
        if type(command) is TakeMoved:
            moved = len(command.drafts) * (1 + len(slot.subscriptions))
            if (self._moved and self._moved + moved > GROUP_MOVED) or (self.slots and _is_apart(slot)):
                self.is_full = True
                return False
            return True
        if type(command) is Settle:
            size = len(command.numbers)
        else:
            size = len(drafts_of(command)) * (1 + len(slot.subscriptions))
            if type(command) is Transact:
                size += sum([len(part.numbers) for part in command.parts if isinstance(part, Settle)])
        if size and (
            (self._messages and self._messages + size > GROUP_MESSAGES) or (self.slots and _is_apart(slot))
        ):
            self.is_full = True
            return False
        return True

    def collect(self, slot: Slot, command: Command) -> list[Effect]:
        """Take over what a command has changed in a fragment. Returns the effects that can be performed at once."""
        self.count(slot, command)
        effects: list[Effect] = slot.machine.take_effects()
        return self.hold(slot, effects) if effects else effects

    def hold(self, slot: Slot, effects: list[Effect]) -> list[Effect]:
        """Hold effects with the changes of a fragment. Returns those that can be performed at once."""
        if slot.holds:
            slot.gathered_effects += effects
        elif slot.committing_holds:
            slot.committing_effects += effects
        else:
            return effects
        return []

    def count(self, slot: Slot, command: Command) -> None:
        """Note that a command may have changed a fragment."""
        changed = slot.machine.change_count()
        if changed == slot.change_count:
            return
        if slot.machine.settings.express_ms > 0 and self._stays_unwritten(slot):
            return
        slot.holds = True
        more = self._gather(slot, changed)
        if type(command) is TakeMoved or type(command) is RemoveMoved:
            self._moved += more
            self._moved_bytes += _bytes_of(command)
        else:
            self._messages += more
            if type(command) is not Settle:
                self._bytes += _bytes_of(command)
        is_apart = type(command) is not StoreCopies and _is_apart(slot)
        if is_apart or self._has_no_room():
            self.is_full = True

    def _has_no_room(self) -> bool:
        return (
            self._messages >= GROUP_MESSAGES
            or self._bytes >= GROUP_BYTES
            or self._moved >= GROUP_MOVED
            or self._moved_bytes >= GROUP_BYTES
        )

    def _gather(self, slot: Slot, changed: int) -> int:
        """Have a fragment take part in the group. Returns how many messages more it has changed."""
        if not slot.dirty:
            slot.dirty = True
            self.slots.append(slot)
        more = changed - slot.change_count
        slot.change_count = changed
        return more

    def _stays_unwritten(self, slot: Slot) -> bool:
        """Whether what a fragment of an express entity has changed stays in memory for now."""
        if self._must_hold(slot):
            return False
        machine = slot.machine
        machine.acknowledge()
        if slot.dirty:
            self._messages += self._gather(slot, machine.change_count())
        elif slot.express_at == 0:
            self.express.want(slot, machine.write_at())
        return True

    def _must_hold(self, slot: Slot) -> bool:
        """Whether the effects of what a fragment of an express entity has changed wait for a commit."""
        self._note_unwritten(slot, slot.machine.unwritten_bytes())
        return (
            slot.holds
            or slot.committing_holds
            or self.writes_at_once
            or self._unwritten_bytes > EXPRESS_BYTES
            or slot.machine.must_write()
        )

    def count_together(self, topic: Slot, applied: list[tuple[Slot, StoreCopies]]) -> None:
        """Note the copies that an express topic has passed on. If one of the fragments must hold its effects, all do."""
        slots = [topic, *[slot for slot, _ in applied]]
        if any(self._must_hold(slot) for slot in slots):
            for slot in slots:
                slot.machine.require_write()
        for slot, command in applied:
            self.count(slot, command)

    def _note_unwritten(self, slot: Slot, size: int) -> None:
        self._unwritten_bytes += size - slot.unwritten_bytes
        slot.unwritten_bytes = size

    def write(self, slot: Slot) -> None:
        """Have the next commit write what a fragment of an express entity has in memory alone."""
        changed = slot.machine.change_count()
        if changed and not slot.broken:
            self._messages += self._gather(slot, changed)

    def write_due(self, now: int) -> None:
        """Write what express entities have had in memory for long enough."""
        for slot in self.express.take_due(now):
            self.write(slot)

    def write_all(self, slots: Iterable[Slot]) -> None:
        """Write what express entities have in memory, and let nothing stay there from now on."""
        self.writes_at_once = True
        for slot in slots:
            if slot.unwritten_bytes:
                self.write(slot)

    def take(self) -> tuple[list[Slot], list[Changes]]:
        """Take the group for its commit: its slots and their changes. The next group begins empty."""
        batches: list[Changes] = []
        for slot in self.slots:
            slot.committing = slot.machine.take_changes()
            slot.is_committing = True
            slot.committing_holds = slot.holds
            self._leave(slot)
            slot.committing_effects, slot.gathered_effects = slot.gathered_effects, []
            if slot.committing is not None:
                batches.append(slot.committing)
        return self.clear(), batches

    def _leave(self, slot: Slot) -> None:
        slot.dirty = slot.holds = False
        slot.change_count = 0
        self._note_unwritten(slot, 0)

    def clear(self) -> list[Slot]:
        """Begin empty. Returns the slots of the group that was."""
        slots, self.slots = self.slots, []
        for slot in slots:
            self._leave(slot)
        self.is_full = False
        self._messages = self._bytes = self._moved = self._moved_bytes = 0
        return slots

    def remove(self, slot: Slot) -> None:
        """Take out the changes of a fragment that is out of service. They are not committed."""
        if slot.dirty:
            self.slots.remove(slot)
            if not self.slots:  # no commit will start the count again
                self.clear()
        self._leave(slot)
