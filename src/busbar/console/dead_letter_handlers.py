"""Which address shows which page of dead letters: triage, resubmission, deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler

from busbar.console import dead_letter_pages as pages
from busbar.console.forms import SHOWN
from busbar.console.layout import path_of
from busbar.console.message_handlers import WITH_MESSAGES, lane_of, number_of
from busbar.console.message_pages import read_message
from busbar.console.messages import CopyChanges, Lane, Selected
from busbar.console.namespace import Address, EntityType, Namespace, NamespaceFailure
from busbar.console.requests import CSRF, LIMIT, STATUS, address_of, html, read_form

MAX_RESULT = 600


def add_routes(app: web.Application, namespace: Namespace) -> None:
    handlers = DeadLetterHandlers(namespace)
    for kind in WITH_MESSAGES:
        app.router.add_get(f"/{kind}/dead-letters", handlers.listing(kind))
        app.router.add_get(f"/{kind}/dead-letters/resubmit", handlers.choosing(kind, "resubmit"))
        app.router.add_post(f"/{kind}/dead-letters/resubmit", handlers.resubmit(kind))
        app.router.add_get(f"/{kind}/dead-letters/delete", handlers.choosing(kind, "delete"))
        app.router.add_post(f"/{kind}/dead-letters/delete", handlers.delete(kind))
        app.router.add_get(f"/{kind}/mend", handlers.mending(kind))
        app.router.add_post(f"/{kind}/mend", handlers.mend(kind))


class DeadLetterHandlers:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._messages = namespace.messages

    def listing(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, lane, start = address_of(kind, request), _lane(request), number_of(request)
            entity = await asyncio.to_thread(self._namespace.entity, address)
            groups = await asyncio.to_thread(self._messages.groups, address, lane)
            found = await asyncio.to_thread(self._messages.range, address, lane, start, None, LIMIT)
            text = pages.dead_letters_page(
                entity,
                lane,
                groups,
                found,
                start=start,
                result=request.query.get("result", "")[:MAX_RESULT],
                place=self._namespace.place,
            )
            return html(text)

        return handle

    def choosing(self, kind: EntityType, action: str) -> Handler:
        """The page that asks before dead letters are resubmitted or deleted."""

        async def handle(request: web.Request) -> web.StreamResponse:
            address, lane = address_of(kind, request), _lane(request)
            selected = _selected(request.query.getall("number", []), request.query.getall("reason", []))
            if not selected.numbers and not selected.reasons:
                raise web.HTTPSeeOther(_back(address, lane, "Select dead letters first."))
            groups = await asyncio.to_thread(self._messages.groups, address, lane) if selected.reasons else ()
            what = pages.chosen_text(selected, groups)
            page = pages.resubmit_page if action == "resubmit" else pages.delete_letters_page
            return html(page(address, lane, selected, what, csrf=request[CSRF], place=self._namespace.place))

        return handle

    def resubmit(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, lane, sent = address_of(kind, request), _lane(request), await read_form(request)
            selected = await _submitted(request)
            changes = CopyChanges(sent.get("target", "").strip(), sent.get("id", "") == "keep")
            try:
                result = await asyncio.to_thread(self._messages.resubmit, address, lane, selected, changes)
            except NamespaceFailure as failure:
                text = pages.resubmit_page(
                    address,
                    lane,
                    selected,
                    pages.chosen_text(selected, ()),
                    csrf=request[CSRF],
                    place=self._namespace.place,
                    refusal=failure.text,
                )
                return html(text, STATUS[failure.problem])
            raise web.HTTPSeeOther(_back(address, lane, pages.result_text(result, "resubmitted")))

        return handle

    def delete(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, lane = address_of(kind, request), _lane(request)
            selected = await _submitted(request)
            result = await asyncio.to_thread(self._messages.delete, address, lane, selected)
            raise web.HTTPSeeOther(_back(address, lane, pages.result_text(result, "deleted")))

        return handle

    def mending(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, lane = address_of(kind, request), _lane(request)
            found = await asyncio.to_thread(self._messages.get, address, lane, number_of(request, "number"))
            text = pages.mend_page(
                address, lane, found, found.copy, csrf=request[CSRF], place=self._namespace.place
            )
            return html(text)

        return handle

    def mend(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, lane, sent = address_of(kind, request), _lane(request), await read_form(request)
            number, typed = number_of(request, "number"), read_message(sent, None)
            target, id = sent.get("target", "").strip(), sent.get("id", "")
            try:
                result = await asyncio.to_thread(
                    self._messages.resubmit,
                    address,
                    lane,
                    Selected(frozenset((number,))),
                    CopyChanges(
                        target, id == "keep", typed.message_id if id == "own" else "", _changed(sent)
                    ),
                )
            except NamespaceFailure as failure:
                found = await asyncio.to_thread(self._messages.get, address, lane, number)
                text = pages.mend_page(
                    address,
                    lane,
                    found,
                    typed,
                    target=target,
                    id=id,
                    csrf=request[CSRF],
                    place=self._namespace.place,
                    refusal=failure.text,
                )
                return html(text, STATUS[failure.problem])
            raise web.HTTPSeeOther(_back(address, lane, pages.result_text(result, "resubmitted")))

        return handle


def _lane(request: web.Request) -> Lane:
    lane = lane_of(request, Lane.DEAD_LETTER)
    return lane if lane is Lane.TRANSFER_DEAD_LETTER else Lane.DEAD_LETTER


def _back(address: Address, lane: Lane, result: str) -> str:
    return path_of(address, "dead-letters", lane=str(lane), result=result)


async def _submitted(request: web.Request) -> Selected:
    fields = await request.post()
    texts = {name: [str(value) for value in fields.getall(name, [])] for name in ("number", "reason")}
    return _selected(texts["number"], texts["reason"])


def _selected(numbers: Iterable[str], reasons: Iterable[str]) -> Selected:
    known = (text for text in numbers if text.isascii() and text.isdigit() and len(text) <= 19)
    return Selected(frozenset(map(int, known)), frozenset(reasons))


def _changed(sent: dict[str, str]) -> dict[str, str]:
    """The fields of a copy that differ from those that the form showed. The id has an input of its own."""
    before = {name.removeprefix(SHOWN): text for name, text in sent.items() if name.startswith(SHOWN)}
    now, shown = (pages.fields_of(read_message(values, None)) for values in (sent, before))
    return {name: text for name, text in now.items() if text != shown[name] and name != "message_id"}
