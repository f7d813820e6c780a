"""What a store still holds, by entity, for an operator who empties it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from busbar.cli.failure import CommandFailure
from busbar.cli.output import print_table, size_text
from busbar.cli.stores import ask

if TYPE_CHECKING:
    from busbar.cli.management_client import ManagementClient

LOOK_SECONDS = 1.0
COUNTS = ("active", "deferred", "scheduled", "deadLetter", "transfer", "transferDeadLetter")


class HeldEntity(NamedTuple):
    entity: str
    fragments: int
    messages: int
    size: int


class StoreContents:
    """Looks again and again at what a store holds."""

    def __init__(self, client: ManagementClient, store: str) -> None:
        self._client = client
        self._store = store
        self._elsewhere: set[str] = set()
        """Entities without a fragment there. A fragment stays in its store as long as its entity is there."""

    def look(self) -> list[HeldEntity]:
        """The entities with fragments in the store."""
        paths = [*_paths(ask(self._client, "GET", "definitions", "the namespace"))]
        self._elsewhere.intersection_update(paths)
        return [held for path in paths if path not in self._elsewhere if (held := self._held(path))]

    def until_empty(self) -> None:
        """Wait until the store holds no fragments, and print to standard error how far it is."""
        last = ""
        while True:
            held: list[HeldEntity] | None = None
            try:
                held = self.look()
                text = _summary(self._store, held)
            except CommandFailure as failure:  # a controller may be starting
                text = f"waiting: {failure}"
            if text != last:
                print(text, file=sys.stderr)
                last = text
            if held is not None and not held:
                return
            time.sleep(LOOK_SECONDS)

    def _held(self, path: str) -> HeldEntity | None:
        try:
            views = ask(self._client, "GET", f"fragments/{path}", f"'{path}'")
        except CommandFailure:
            if path in {*_paths(ask(self._client, "GET", "definitions", "the namespace"))}:
                raise
            return None  # it was deleted meanwhile
        here = [view for view in views if view["store"] == self._store]
        if not here:
            self._elsewhere.add(path)
            return None
        messages = sum(int(view[count]) for view in here for count in COUNTS)
        return HeldEntity(path, len(here), messages, sum(int(view["size"]) for view in here))


def print_held(store: str, held: list[HeldEntity]) -> None:
    if held:
        print(f"{store} still holds:")
        rows = [(one.entity, str(one.fragments), str(one.messages), size_text(one.size)) for one in held]
        print_table(("Entity", "Fragments", "Messages", "Size"), rows, "")
    else:
        print(_summary(store, held))


def _summary(store: str, held: list[HeldEntity]) -> str:
    if not held:
        return f"{store} holds nothing; `busbar stores remove {store}` removes it from a cluster"
    fragments, messages = sum(one.fragments for one in held), sum(one.messages for one in held)
    return f"{store} holds {messages} messages in {fragments} fragments of {', '.join(one.entity for one in held)}"


def _paths(document: dict[str, Any]) -> Iterator[str]:
    """The entities of a document of the namespace. Rules have no fragments."""
    (namespace,) = document["UserConfig"]["Namespaces"]
    for queue in namespace["Queues"]:
        yield queue["Name"]
    for topic in namespace["Topics"]:
        yield topic["Name"]
        for subscription in topic.get("Subscriptions", ()):
            yield f"{topic['Name']}/Subscriptions/{subscription['Name']}"
