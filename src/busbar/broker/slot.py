"""A fragment in its commit loop: the machine, the commands it has not applied yet, and what waits for the store."""

from __future__ import annotations

from collections import deque
from typing import final

from busbar.broker.fragment_machine import FragmentMachine
from busbar.fragment.changes import Changes
from busbar.fragment.reads import Read
from busbar.model.commands import Command, Tick
from busbar.model.effects import Effect
from busbar.rules.selection import TopicSelector


@final
class Slot:
    """The state of a fragment in the commit loop.

    A change is first *gathered* (in the machine), then *committing* (given to the store), then durable. Effects are held
    with the newest change they may rest on: `gathered_effects` with the gathered ones, `committing_effects` with those
    that are being committed. Of an express entity, changes can be gathered for seconds while effects do not wait for them.
    """

    def __init__(self, id: int, machine: FragmentMachine) -> None:
        self.id = id
        self.machine = machine
        self.inbox: deque[Command] = deque()
        self.queued = False
        """In the loop's list of slots that have commands to apply."""
        self.tick_queued = False
        """A Tick stands in the inbox; a second one would add nothing."""
        self.reads: list[Read] | None = None
        """What the first command of the inbox waits for; no later command overtakes it."""
        self.dirty = False
        """It has gathered changes and takes part in the next group."""
        self.change_count = 0
        """Messages touched by gathered changes."""
        self.gathered_effects: list[Effect] = []
        self.is_committing = False
        self.committing: Changes | None = None
        self.committing_effects: list[Effect] = []
        self.holds = False
        """Effects wait until the gathered changes are durable. Changes of an express entity can be gathered without that."""
        self.committing_holds = False
        """The same of what is being committed."""
        self.unwritten_bytes = 0
        """Of an express entity: of the messages that only memory has, and that are in no group yet."""
        self.express_at = 0
        """Of an express entity: when its messages in memory are looked at (0: there are none)."""
        self.timer_at = 0
        """When the fragment's clock is looked at again (0: never)."""
        self.last_used = 0
        """When a command of a gateway was last applied (0: never)."""
        self.broken = False
        """The machine raised: it is not to be trusted until it has been loaded again."""
        self.topic: Slot | None = None
        """Of a subscription: that of its topic."""
        self.subscriptions: list[Slot] = []
        """Of a topic: those of its subscriptions."""
        self.selector: TopicSelector | None = None
        """Of a topic: evaluates the rules of its subscriptions."""
        self.spent = 0
        """Of a topic: steps of its rules that have not been counted in a turn yet."""
        self.reads_awaited = 0
        """Of a topic: so many subscriptions have to get their reads before it goes on."""
        self.yields_to_topic = False
        """Of a subscription: it would have to read, and lets its topic go first."""

    def tick(self) -> None:
        if not self.tick_queued:
            self.tick_queued = True
            self.inbox.append(Tick(self.id))

    def tick_first(self) -> None:
        """Put a tick before the commands that wait."""
        self.tick_queued = True
        self.inbox.appendleft(Tick(self.id))

    def drop_tick(self) -> None:
        """Remove the tick that a timer has queued while nothing was applied."""
        if self.tick_queued:
            self.inbox = deque([command for command in self.inbox if type(command) is not Tick])
            self.tick_queued = False

    def take_spent(self) -> int:
        """Steps that a topic's rules have spent since this was last asked."""
        spent, self.spent = self.spent, 0
        return spent

    def commit_finished(self) -> None:
        """Drop what was being committed: it is durable, or was rolled back."""
        self.is_committing = self.committing_holds = False
        self.committing = None
        self.committing_effects = []
