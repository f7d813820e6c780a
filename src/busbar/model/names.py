"""Builds paths from names.

    queue or topic      orders, eu/orders
    subscription        <topic>/Subscriptions/<name>
    rule                <topic>/Subscriptions/<name>/Rules/<name>
    dead-letter queue   <queue or subscription>/$DeadLetterQueue

Two paths that differ only in letter case are the same; `key_of` returns the same value for both.
"""

from __future__ import annotations

import ipaddress
import re

NAMESPACE_ENTRY = "$namespace"
"""The path of the namespace in the catalogue. No entity can have it, and no address leads to it."""
SUBSCRIPTIONS = "Subscriptions"
RULES = "Rules"

_SUBSCRIPTIONS = "/subscriptions/"
_RULES = "/rules/"
_DEAD_LETTERS = "/$deadletterqueue"


_CLOUD = ".servicebus.windows.net"
_WITH_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")


def is_host(text: str) -> bool:
    """Whether this is a host in a token: it has a port, is an IP address, `localhost` or the cloud's.

    No entity's name begins with such a segment.
    """
    lowered = text.lower()
    if lowered == "localhost" or lowered.endswith(_CLOUD) or _WITH_PORT.fullmatch(text):
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def key_of(path: str) -> str:
    return path.lower()


def subscription_path(topic: str, name: str) -> str:
    return f"{topic}/{SUBSCRIPTIONS}/{name}"


def rule_path(subscription: str, name: str) -> str:
    return f"{subscription}/{RULES}/{name}"


def parent_and_name(path: str) -> tuple[str, str]:
    """The topic and name of a subscription's path, the subscription and name of a rule's; ('', path) for any other."""
    lowered = path.lower()
    at = lowered.find(_SUBSCRIPTIONS)
    if at < 1:
        return "", path
    below = at + len(_SUBSCRIPTIONS)
    rule = lowered.find(_RULES, below)
    if rule < 0:
        return path[:at], path[below:]
    return path[:rule], path[rule + len(_RULES) :]


def looks_like_subscription(path: str) -> bool:
    return parent_and_name(path)[0] != ""


def without_dead_letters(path: str) -> tuple[str, bool]:
    """The path of an entity, from its own or from that of its dead-letter queue, and whether it was the latter."""
    if path.lower().endswith(_DEAD_LETTERS):
        return path[: -len(_DEAD_LETTERS)], True
    return path, False


def above(path: str) -> list[str]:
    """The path, and the paths of the entities it belongs to: a rule, its subscription, its topic."""
    paths = [path]
    parent, _ = parent_and_name(path)
    while parent:
        paths.append(parent)
        parent, _ = parent_and_name(parent)
    return paths
