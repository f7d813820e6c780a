"""A transaction over a topic and its subscriptions: one command for each fragment, checked before any is applied. Pure.

Rules:
- The fragments of a topic and of its subscriptions with the same index are in one store, so all parts are in one commit.
- First every machine checks its own parts. Then the quota, which the fragments share, and the rules of the topic are
  checked. Bytes that one fragment frees are room for the others.
- Nothing changes between the check and the application, so what was checked is not refused.
"""

from __future__ import annotations

from busbar.broker.slot import Slot
from busbar.broker.topic_selection import select
from busbar.model.commands import Transact
from busbar.model.errors import EntityNotFound, ServerBusy

NEEDS_READ = "A message or state that the transaction works on is not in memory; nothing was changed. Retry."


def is_divided(command: Transact) -> bool:
    """Whether parts are of other fragments than the one that the command came to."""
    return any(part.fragment != command.fragment for part in command.parts)


def divide(topic: Slot, command: Transact) -> dict[Slot, Transact]:
    """The command for each fragment, the topic's first: it has the answer. The others have the broker's own origin.

    Raises EntityNotFound if a part is of a fragment that is none of the topic's."""
    by_id = {slot.id: slot for slot in topic.subscriptions}
    commands = {topic: Transact(topic.id, command.origin, command.request, [])}
    for part in command.parts:
        slot = topic if part.fragment == topic.id else by_id.get(part.fragment)
        if slot is None or slot.broken:
            raise EntityNotFound(f"fragment {part.fragment}")
        if slot not in commands:
            commands[slot] = Transact(slot.id, 0, 0, [])
        commands[slot].parts.append(part)
    return commands


def check(topic: Slot, commands: dict[Slot, Transact], now: int) -> tuple[str, str] | None:
    """Why the transaction is refused: condition and text; None if it can be applied."""
    freed: dict[Slot, int] = {}
    for slot, command in commands.items():
        if slot is not topic and slot.machine.needs(command, now):  # what the topic needs was read before
            return ServerBusy.condition, NEEDS_READ
        refusal, freed[slot] = slot.machine.check_parts(command, now)
        if refusal is not None:
            return refusal
    total = sum(freed.values())
    for slot, command in commands.items():
        command.freed = total - freed[slot]
    if topic.selector is not None:
        topic.spent += select(topic.machine, topic.selector, commands[topic], now)
    for slot, command in commands.items():
        refusal = slot.machine.refusal_of(command, now)
        if refusal is not None:
            return refusal
    return None
