"""What rules can read of a message. Names of user properties have no case in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from busbar.rules.values import Value
from busbar.rules.work import Work


class RuleMessage(Protocol):
    """A message as rules read it. Reading must not fail. A null property has the value None; a missing one has no entry."""

    @property
    def work(self) -> Work:
        """The steps that rules have spent on it."""

    @property
    def user(self) -> Mapping[str, Value]:
        """User properties by their names in lower case."""

    @property
    def named(self) -> Mapping[str, Value]:
        """User properties by their names as they were sent."""

    def system(self, name: str) -> Value:
        """One of syntax.SYSTEM_PROPERTIES, by its name in lower case; None if the message does not have it."""
