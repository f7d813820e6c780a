"""Parses the addresses of clients into nodes.

Each SDK spells an address in its own way (`amqps://host:port/q`, `/q`, `q`). Names are compared without case. A reply echoes
the client's own spelling, so nothing here is ever sent back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from busbar.model.errors import ArgumentError
from busbar.model.message import ACTIVE, DEAD, TRANSFER_DEAD


class NodeKind(Enum):
    ENTITY = "entity"
    MANAGEMENT = "management"
    CBS = "cbs"


@dataclass(frozen=True, slots=True)
class Node:
    """What an address names: `path` is the entity's, without sub-queue.

    If it names a `dead_letter` queue, `transfer` is true for the transfer dead-letter queue.
    """

    kind: NodeKind
    path: str
    dead_letter: bool = False
    transfer: bool = False

    @property
    def sub(self) -> int:
        """The sub-queue, as commands name it."""
        return sub_queue(self.dead_letter, self.transfer)

    @property
    def resource(self) -> str:
        """The path that a token has to cover. SDKs sign for exactly this: a sub-queue's own path, JavaScript even the
        management node's."""
        suffix = "/$Transfer" if self.transfer else ""
        suffix += "/$DeadLetterQueue" if self.dead_letter else ""
        suffix += "/$management" if self.kind is NodeKind.MANAGEMENT else ""
        return self.path + suffix

    @property
    def key(self) -> str:
        """A key that is the same for every spelling of the node."""
        return f"{self.kind.value}:{self.resource.lower()}"


def sub_queue(dead_letter: bool, transfer: bool) -> int:
    if not dead_letter:
        return ACTIVE
    return TRANSFER_DEAD if transfer else DEAD


def plain_path(address: str) -> str:
    """The path inside the namespace: no scheme, no authority, no outer slashes, percent-decoded."""
    rest = address
    scheme = rest.find("://")
    if scheme >= 0:
        slash = rest.find("/", scheme + 3)
        rest = "" if slash < 0 else rest[slash:]
    return unquote(rest).strip("/")


def node_of(address: str | None) -> Node:
    """The node that an address names; ArgumentError if it names none."""
    if not address:
        raise ArgumentError(
            "The link names no address; give the path of a queue, '$cbs' or '<path>/$management'."
        )
    path = plain_path(address)
    lowered = path.lower()
    if lowered == "$cbs":
        return Node(NodeKind.CBS, "")
    kind = NodeKind.ENTITY
    if lowered.endswith("/$management"):
        kind = NodeKind.MANAGEMENT
        path = path[: -len("/$management")]
        lowered = path.lower()
    dead_letter = transfer = False
    if lowered.endswith("/$deadletterqueue"):
        dead_letter = True
        path = path[: -len("/$deadletterqueue")]
        lowered = path.lower()
        if lowered.endswith("/$transfer"):
            transfer = True
            path = path[: -len("/$transfer")]
    if not path or path.startswith("$"):
        raise ArgumentError(f"The address '{address}' names no entity.")
    return Node(kind, path, dead_letter, transfer)
