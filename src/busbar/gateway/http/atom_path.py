"""Parses a management path. The fixed words are recognized in any case; everything else is a name.

(empty)                                     the namespace's root
$namespaceinfo                              the namespace
$Resources/Queues, $Resources/Topics        a list
{topic}/Subscriptions                       a list
{topic}/Subscriptions/{name}                a subscription
{topic}/Subscriptions/{name}/Rules          a list
{topic}/Subscriptions/{name}/Rules/{name}   a rule
anything else                               a queue or a topic
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from busbar.model.entities import EntityKind
from busbar.model.errors import EntityNotFound
from busbar.model.names import RULES, SUBSCRIPTIONS, above, rule_path, subscription_path

_LISTS = {"queues": EntityKind.QUEUE, "topics": EntityKind.TOPIC}


class ManagementPathKind(Enum):
    ROOT = "root"
    NAMESPACE = "namespace"
    LIST = "list"
    ENTITY = "entity"


@dataclass(frozen=True, slots=True)
class ManagementPath:
    place: ManagementPathKind
    path: str
    """With the fixed words in their own spelling."""
    kind: EntityKind | None = None
    """Of an entity: subscription or rule, None for a queue or a topic. Of a list: the kind of its entries."""
    parent: str = ""
    """The topic of subscriptions, the subscription of rules."""

    @property
    def topic(self) -> str:
        """The topic of a subscription or a rule or their lists, '' for others."""
        return above(self.parent)[-1]


def read_target(path: str) -> ManagementPath:
    """Parse a path. Raises EntityNotFound if it begins with a '$' and is none of the above."""
    if not path:
        return ManagementPath(ManagementPathKind.ROOT, "")
    words = path.split("/")
    lowered = [word.lower() for word in words]
    if lowered[0].startswith("$"):
        if lowered == ["$namespaceinfo"]:
            return ManagementPath(ManagementPathKind.NAMESPACE, "$namespaceinfo")
        if lowered[0] == "$resources" and len(words) == 2 and lowered[1] in _LISTS:
            kind = _LISTS[lowered[1]]
            return ManagementPath(ManagementPathKind.LIST, f"$Resources/{kind.value}s", kind)
        raise EntityNotFound(path)
    # From the end: a topic's name may have several segments.
    if len(words) >= 5 and lowered[-4] == "subscriptions" and lowered[-2] == "rules":
        subscription = subscription_path("/".join(words[:-4]), words[-3])
        return ManagementPath(
            ManagementPathKind.ENTITY, rule_path(subscription, words[-1]), EntityKind.RULE, subscription
        )
    if len(words) >= 4 and lowered[-3] == "subscriptions" and lowered[-1] == "rules":
        subscription = subscription_path("/".join(words[:-3]), words[-2])
        return ManagementPath(
            ManagementPathKind.LIST, f"{subscription}/{RULES}", EntityKind.RULE, subscription
        )
    if len(words) >= 3 and lowered[-2] == "subscriptions":
        topic = "/".join(words[:-2])
        return ManagementPath(
            ManagementPathKind.ENTITY, subscription_path(topic, words[-1]), EntityKind.SUBSCRIPTION, topic
        )
    if len(words) >= 2 and lowered[-1] == "subscriptions":
        topic = "/".join(words[:-1])
        return ManagementPath(
            ManagementPathKind.LIST, f"{topic}/{SUBSCRIPTIONS}", EntityKind.SUBSCRIPTION, topic
        )
    return ManagementPath(ManagementPathKind.ENTITY, path)
