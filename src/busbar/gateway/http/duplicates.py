"""Serves what duplicate detection dropped, for diagnosis. JSON, with the Manage right:

GET   /$busbar/duplicates/{entity}      messages dropped, ids remembered, and the latest drops, oldest first
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from busbar.gateway.http.connection import HttpConnection
from busbar.gateway.services import GatewayServices
from busbar.model.commands import InspectDuplicates
from busbar.model.effects import DuplicateReport
from busbar.model.errors import InvalidOperation
from busbar.model.partitioning import wire_number


async def duplicates_of(request: web.Request, path: str, services: GatewayServices) -> dict[str, object]:
    view = await services.broker.entity(path)
    if not getattr(view.description, "requires_duplicate_detection", False):
        raise InvalidOperation(f"'{view.path}' does not detect duplicates; that is decided at its creation.")
    connection = request.protocol
    assert isinstance(connection, HttpConnection)
    origin = connection.origin(services)
    dropped = remembered = 0
    latest: list[tuple[int, str, int]] = []
    for index, fragment in enumerate(view.fragments):
        effect = await origin.ask(_inspect(fragment))
        assert isinstance(effect, DuplicateReport)
        dropped += effect.dropped
        remembered += effect.remembered
        latest += [
            (time, message_id, wire_number(index, n) if n else 0)
            for message_id, time, n in zip(effect.ids, effect.times, effect.numbers, strict=True)
        ]
    latest.sort(key=lambda drop: drop[0])
    drops = [
        {"time": time, "messageId": message_id, "original": number} for time, message_id, number in latest
    ]
    return {"dropped": dropped, "remembered": remembered, "latest": drops}


def _inspect(fragment: int) -> Callable[[int, int], InspectDuplicates]:
    return lambda origin, request: InspectDuplicates(fragment, origin, request)
