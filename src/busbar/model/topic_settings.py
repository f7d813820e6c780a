"""The subscriptions of a topic and their rules, as the topic's fragments use them: plain data, without compiled rules.

Objects are compared by identity. An unchanged one is the same object in later settings, so that its rules need not be
compiled again.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.model.entities import RuleDescription


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RuleSet:
    """The rules of one subscription by name, and whether it dead-letters messages for which a rule fails."""

    rules: tuple[tuple[str, RuleDescription], ...]
    dead_letters_errors: bool


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TopicRules:
    """The rules of all subscriptions of a topic, in their order: one object for all fragments of the topic."""

    subscriptions: tuple[RuleSet, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TopicSettings:
    """What one fragment of a topic passes on, and to which fragments."""

    index: int
    """Of the fragment in its topic."""
    fragments: tuple[int, ...]
    """Fragments of the subscriptions, one of each, in the order of `rules`. All are in the store of the topic's fragment."""
    rules: TopicRules
