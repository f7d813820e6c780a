"""Finds the entities of a read: the one that is named, several that are named, or those that match a pattern.

A pattern needs the Manage right on the namespace, because the management API lists the entities. Named entities need Listen
only.
"""

from __future__ import annotations

import time

from busbar.model.names import key_of, subscription_path
from busbar.spark.connection import administration_of_process, client_errors
from busbar.spark.entity_names import (
    can_match_subscriptions,
    entity_of,
    is_selected,
    label_of,
)
from busbar.spark.errors import SourceError
from busbar.spark.options import SourceOptions

REFRESH_SECONDS = 5.0
"""How long a stream uses a list of entities before it asks for another."""


def entities_of(options: SourceOptions) -> list[SourceOptions]:
    """The options for each entity of a batch. Raises SourceError if no entity matches the pattern."""
    if not options.several:
        return [options]
    labels = [*options.entities, *list_matching(options)]
    if not labels:
        raise SourceError(
            "BUSBAR_NOT_FOUND",
            f"No queue or subscription matches {', '.join(options.patterns)!r} (option 'entityPattern').",
        )
    return [options.of(label) for label in labels]


def list_matching(options: SourceOptions) -> list[str]:
    """The labels of the queues and subscriptions that match a pattern, by name."""
    if not options.patterns:
        return []
    with client_errors(options):
        paths = _paths(options)
    sub_queues = sorted({entity_of(pattern)[1] for pattern in options.patterns})
    labels = [label_of(path, sub_queue) for path in paths for sub_queue in sub_queues]
    return [label for label in labels if is_selected(label, (), options.patterns)]


def _paths(options: SourceOptions) -> list[str]:
    """The queues, and the subscriptions of the topics that a pattern can match."""
    administration = administration_of_process(options.secret, options.wait)
    paths = [queue.name for queue in administration.list_queues()]
    topics = [topic.name for topic in administration.list_topics()]
    for topic in topics:
        if any(can_match_subscriptions(pattern, topic) for pattern in options.patterns):
            paths += [
                subscription_path(topic, each.name) for each in administration.list_subscriptions(topic)
            ]
    return sorted(paths, key=key_of)


class EntityWatch:
    """The entities of a stream: those that are named, and those that match a pattern by now."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._matching: list[str] = []
        self._listed = float("-inf")
        self._frozen = False

    def labels(self) -> list[str]:
        """The labels of a stream of several entities."""
        if not self._frozen and time.monotonic() - self._listed >= REFRESH_SECONDS:
            self._matching = list_matching(self._options)
            self._listed = time.monotonic()
        return [*self._options.entities, *self._matching]

    def freeze(self) -> None:
        """Use the entities of this moment from now on, as a run with Trigger.AvailableNow does."""
        self.labels()
        self._frozen = True
