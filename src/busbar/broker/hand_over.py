"""What a store's fragments give to the next owner of the store, and what they give back to clients.

Rules:
1. Before the store is released, all that was applied is durable, with the locks of every session that is held
   (commit_loop.py, rule 8). Message locks are kept as at a clean stop.
2. Clients get back, as commands, what the machines had of them: the sessions that they hold, the credit of their consumers,
   the sessions that they await. Behind that are the commands that were not applied, in the order of each fragment. A gateway
   submits all of them to the next owner, in this order. Then its clients go on as if there had been one owner.
3. Messages in outboxes are moved by the process that has the store. So the commands of this process's mover to its own
   outboxes are dropped; the next owner's mover begins again.
"""

from __future__ import annotations

from busbar.broker.commit_loop import CommitLoop
from busbar.fragment.changes import Lock
from busbar.model.commands import AvoidTargets, Command, PullOutbox, RemoveMoved, Tick
from busbar.model.hold_commands import KeepHolds, ReleaseHolds

LEFT_BEHIND = (Tick, PullOutbox, RemoveMoved, AvoidTargets, ReleaseHolds)
"""Commands that only make sense at this owner. The next one loads no session locks of gateways that have ended."""


def locks_to_keep(loop: CommitLoop) -> dict[int, list[Lock]]:
    """The message locks to store for the next owner, by fragment. Fragments with changes are left out.

    Their locks rest on what may never be durable."""
    slots = loop.slots.values()
    unchanged = [slot for slot in slots if not (slot.broken or slot.dirty or slot.is_committing)]
    return {slot.id: slot.machine.locks() for slot in unchanged if not slot.machine.unwritten_bytes()}


def keep_sessions(loop: CommitLoop, gateway: str, now: int) -> None:
    """Write the locks of all sessions. Holders that have no name yet are clients of this gateway."""
    for slot in [*loop.slots.values()]:
        if not slot.broken and slot.machine.settings.requires_session:
            loop.apply_first(slot, KeepHolds(slot.id, gateway), now)


def take_back(loop: CommitLoop) -> list[Command]:
    """Take what clients go on with at the next owner (rule 2)."""
    machines = [slot.machine for slot in loop.slots.values() if not slot.broken]
    commands: list[Command] = [command for machine in machines for command in machine.resumptions()]
    commands += [command for machine in machines for command in machine.demands()]
    commands += [command for machine in machines for command in machine.awaits()]
    commands += [one for one in loop.take_unapplied() if not isinstance(one, LEFT_BEHIND)]
    return commands
