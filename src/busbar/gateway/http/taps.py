"""Serves the taps of the namespace, for operators with the Manage right on it. JSON:

GET   /$busbar/taps?skip=N&top=N    a page of them, and how many there are

1. The taps that are furthest behind come first. For that order every fragment with taps is asked. If there are more than
   MOST_ASKED of these, the order is that of the names of entities (`sorted` in the answer), and those of the page are asked.
2. A fragment whose store is unavailable counts nothing. Then `limited` is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from busbar.gateway.http.connection import HttpConnection
from busbar.gateway.http.entity_walk import entities_of
from busbar.gateway.http.requests import check_method, number_of
from busbar.gateway.http.runtime_origin import HttpOrigin
from busbar.gateway.services import GatewayServices
from busbar.model.api import EntityView
from busbar.model.commands import ShowTaps
from busbar.model.effects import TapState, TapStates
from busbar.model.errors import EntityNotFound, ServerBusy
from busbar.model.taps import TapDescription, reader_of

ASKED_AT_ONCE: Final = 100
MOST_ASKED: Final = 2_000
USUAL_TOP: Final = 50
MAX_TOP: Final = 500


@dataclass(frozen=True, slots=True)
class Tapped:
    """A tap and where it stands in each fragment that answers."""

    entity: EntityView
    tap: TapDescription
    states: Sequence[TapState]

    @property
    def lag(self) -> int:
        return sum(max(0, state.end - state.position) for state in self.states)


async def handle(request: web.Request, path: str, services: GatewayServices) -> web.Response:
    """Answer a request that is authorized."""
    check_method(request, ("GET",), f"'/{path}'")
    skip, top = number_of(request, "skip", 0), min(MAX_TOP, number_of(request, "top", USUAL_TOP))
    connection = request.protocol
    assert isinstance(connection, HttpConnection)
    origin = connection.origin(services)
    tapped = [entity async for entity in entities_of(services.broker) if entity.taps]
    total = sum(len(entity.taps) for entity in tapped)
    by_lag = sum(len(entity.fragments) for entity in tapped) <= MOST_ASKED
    if by_lag:
        found = await _states_of(origin, tapped)
        found.sort(key=lambda one: (-one.lag, one.entity.path, one.tap.name))
        shown = found[skip : skip + top]
    else:
        passed, chosen = _entities_of_page(tapped, skip, top)
        shown = (await _states_of(origin, chosen))[skip - passed :][:top]
    return web.json_response(
        {
            "total": total,
            "sorted": "lag" if by_lag else "name",
            "taps": [_view(one) for one in shown],
        }
    )


def _entities_of_page(tapped: Sequence[EntityView], skip: int, top: int) -> tuple[int, list[EntityView]]:
    """The entities whose taps are on a page, and how many taps come before them."""
    before, passed = 0, 0
    chosen: list[EntityView] = []
    for entity in tapped:
        end = before + len(entity.taps)
        if end > skip and before < skip + top:
            if not chosen:
                passed = before
            chosen.append(entity)
        before = end
    return passed if chosen else skip, chosen


async def _states_of(origin: HttpOrigin, tapped: Sequence[EntityView]) -> list[Tapped]:
    """All taps of these entities. Fragments are asked concurrently, because each may have to wait for a commit."""
    places = [(entity, fragment) for entity in tapped for fragment in entity.fragments]
    answers: dict[int, Sequence[TapState]] = {}
    for first in range(0, len(places), ASKED_AT_ONCE):
        some = [fragment for _, fragment in places[first : first + ASKED_AT_ONCE]]
        answers.update(zip(some, await asyncio.gather(*(_ask(origin, one) for one in some)), strict=True))
    return [
        Tapped(
            entity,
            tap,
            [state for one in entity.fragments for state in answers[one] if state.id == tap.id],
        )
        for entity in tapped
        for tap in entity.taps
    ]


async def _ask(origin: HttpOrigin, fragment: int) -> Sequence[TapState]:
    """The states of the taps of a fragment: none while it is unavailable."""
    try:
        answer = await origin.ask(lambda number, request: ShowTaps(fragment, number, request))
    except (ServerBusy, EntityNotFound):
        return ()
    assert isinstance(answer, TapStates)
    return answer.taps


def _view(one: Tapped) -> dict[str, object]:
    tap = one.tap
    return {
        "entity": one.entity.path,
        "deadLetter": tap.dead_letter,
        "name": tap.name,
        "owner": tap.owner,
        "reader": tap.reader or reader_of(tap.owner),
        "events": tap.events,
        "consumes": tap.consumes,
        "created": tap.created,
        "lag": one.lag,
        "kept": sum(state.kept for state in one.states),
        "keptBytes": sum(state.kept_bytes for state in one.states),
        "truncated": any(state.truncated for state in one.states),
        "limited": len(one.states) < len(one.entity.fragments),
    }
