"""Names of the entities that one read covers: a list (`entities`) and patterns (`entityPattern`).

A pattern is a path in which `*` stands for any characters but a slash, `**` for any characters, and `?` for one. Letter case
makes no difference. Topics keep no messages, so a pattern selects queues and subscriptions only:

    shop/*                          the queues directly below shop
    shop/**                         all queues and subscriptions below shop
    events/Subscriptions/*          the subscriptions of the topic events
    shop/*/$DeadLetterQueue         the dead-letter queues of the queues directly below shop

A label is the path of an entity or of its dead-letter queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from busbar.model.names import key_of, without_dead_letters

DEAD_LETTERS = "/$deadletterqueue"
DEAD_LETTER = "deadletter"

_SUBSCRIPTIONS = "/subscriptions/"


def label_of(entity: str, sub_queue: str) -> str:
    return f"{entity}{DEAD_LETTERS}" if sub_queue else entity


def entity_of(label: str) -> tuple[str, str]:
    """The entity and the sub-queue that a label names."""
    entity, dead_letters = without_dead_letters(label)
    return entity, DEAD_LETTER if dead_letters else ""


def is_selected(label: str, labels: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether a list of labels names this one, or a pattern matches it."""
    return any(key_of(each) == key_of(label) for each in labels) or any(
        matches(pattern, label) for pattern in patterns
    )


def matches(pattern: str, label: str) -> bool:
    wanted, sub_queue = entity_of(pattern)
    entity, found = entity_of(label)
    return sub_queue == found and _expression(key_of(wanted)).fullmatch(key_of(entity)) is not None


def can_match_subscriptions(pattern: str, topic: str) -> bool:
    """Whether a pattern can match a subscription of a topic; if not, they need not be listed."""
    wanted, _ = entity_of(pattern)
    wanted = key_of(wanted)
    if "**" in wanted:
        return True
    at = wanted.find(_SUBSCRIPTIONS)
    return at > 0 and _expression(wanted[:at]).fullmatch(key_of(topic)) is not None


@lru_cache(maxsize=256)
def _expression(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    meanings = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meanings.get(part) or re.escape(part) for part in parts), re.DOTALL)
