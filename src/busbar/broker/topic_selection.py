"""Evaluates the rules of a topic's subscriptions for what a command publishes, before the machine applies it.

Rules
- The machine lists the messages that a Send, TakeMoved, Transact or Tick publishes, with the number that each gets. Rules
  are evaluated for them in order, once for each message, and the result becomes part of the command. The machine evaluates
  nothing.
- Evaluation ends where a turn has enough copies, bytes or steps of rules (fragment/publishing.py). The rest of a send stays
  in the topic and is evaluated by the ticks that follow, by the rules of that time.
- If the topic refuses messages that no subscription selects, all messages of a send are evaluated at once, since the answer
  depends on it. Those of them that are beyond a turn's copies are evaluated again when a tick passes them on. A batch, a
  transaction and a move end at the first message that is not selected.
"""

from __future__ import annotations

from busbar.broker.fragment_machine import FragmentMachine
from busbar.fragment.publishing import FanOut
from busbar.model.commands import Command, Send, TakeMoved, Tick, Transact
from busbar.rules.selection import TopicSelector


def select(machine: FragmentMachine, selector: TopicSelector, command: Command, now: int) -> int:
    """Set what subscriptions select of the messages that the command publishes. Returns the steps that rules have spent."""
    if not isinstance(command, (Send, Tick, TakeMoved, Transact)):
        return 0
    publications = machine.to_publish(command, now)
    if not publications:
        return 0
    if isinstance(command, Tick):
        fan_out = FanOut(machine.bounds)
    else:
        all_or_none = not isinstance(command, Send) or command.atomic
        fan_out = FanOut(machine.bounds, machine.settings.only_selected, all_or_none)
    before = spent = selector.spent()
    for publication in publications:
        n = publication.n
        copies = selector.select_copies(publication.content, n, now, publication.ttl)
        last, spent = spent, selector.spent()
        if not fan_out.add(n, copies, spent - last):
            break
    command.selected = fan_out.selection
    return spent - before
