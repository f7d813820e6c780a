"""What other fragments keep towards the quota that a command is held against: a topic and its subscriptions share one."""

from __future__ import annotations

from busbar.broker.group import drafts_of
from busbar.broker.slot import Slot
from busbar.model.commands import Command, SetSessionState, Transact


def set_usage(slot: Slot, command: Command) -> None:
    """Give a machine the bytes that the other fragments of its quota keep, if the command may be refused for them."""
    if slot.subscriptions:
        if drafts_of(command):
            slot.machine.set_topic_usage(sum([one.machine.size() for one in slot.subscriptions]))
    elif slot.topic is not None and isinstance(command, (SetSessionState, Transact)):
        topic = slot.topic
        together = topic.machine.size() + sum([one.machine.size() for one in topic.subscriptions])
        slot.machine.set_topic_usage(together - slot.machine.size(), topic.machine.settings.quota_bytes)
