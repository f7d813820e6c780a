"""The limits of connections for a gateway that is the only one of its namespace."""

from __future__ import annotations

from collections import Counter

from busbar.model.limits import Limits


class GatewayQuota:
    """A model.api.ConnectionQuota that decides everything at once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._counts: Counter[str] = Counter()

    def take(self, subject: str) -> bool:
        most = self._limits.max_entity_connections if subject else self._limits.max_connections
        if self._counts[subject] >= most:
            return False
        self._counts[subject] += 1
        return True

    async def request(self, subject: str) -> bool:
        return self.take(subject)

    def release(self, subject: str) -> None:
        self._counts[subject] -= 1
        if not self._counts[subject]:
            del self._counts[subject]
