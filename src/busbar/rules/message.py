"""What rules see of a message. Whoever has messages shows them this way; names of user properties have no case in SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from busbar.rules.values import Value
from busbar.rules.work import Work


class RuleMessage(Protocol):
    """Reading must not fail. A property that is null has the value None, one that is missing has none."""

    @property
    def work(self) -> Work:
        """What rules have spent on it."""

    @property
    def user(self) -> Mapping[str, Value]:
        """User properties by their names in lower case."""

    @property
    def named(self) -> Mapping[str, Value]:
        """User properties by their names as they were sent."""

    def system(self, name: str) -> Value:
        """One of syntax.SYSTEM_PROPERTIES, by its name in lower case; None if the message does not have it."""
