"""What every HTTP request can reach: the port for messages, the catalogue for entities, the authority for tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from busbar.gateway.authority import Authority
from busbar.model.entities import EntityDescription
from busbar.model.limits import Limits
from busbar.model.port import EntityView, FragmentPort


class EntityCatalogue(Protocol):
    """The entities of the namespace, as management sees and changes them. A change is in force when it is durable."""

    def find(self, path: str) -> EntityView:
        """The entity of that path (any case). Raises EntityNotFound."""

    def entities(self) -> list[EntityView]:
        """All of them, by path."""

    async def create(self, path: str, description: EntityDescription) -> EntityView: ...

    async def update(self, path: str, description: EntityDescription) -> EntityView: ...

    async def delete(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True)
class HttpContext:
    port: FragmentPort
    catalogue: EntityCatalogue
    authority: Authority
    limits: Limits
    clock: Callable[[], int]
    """Milliseconds since 1970 UTC."""
    tracking: str = ""
    """Names this instance in error texts, so that a user's report finds its place in the operator's log."""
