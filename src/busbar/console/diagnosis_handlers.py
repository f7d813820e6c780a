"""Which address tests the rules of a topic, and shows the history of a message."""

from __future__ import annotations

import asyncio

from aiohttp import web

from busbar.console.diagnosis_pages import HISTORY, history_page, rule_test_page
from busbar.console.namespace import DescribedMessage, EntityType, Namespace, NamespaceFailure
from busbar.console.requests import CSRF, STATUS, address_of, html


def add_routes(app: web.Application, namespace: Namespace) -> None:
    handlers = DiagnosisHandlers(namespace)
    app.router.add_get("/topic/test", handlers.test_rules)
    app.router.add_get(HISTORY, handlers.history)
    app.router.add_post(f"{HISTORY}/record", handlers.record)
    app.router.add_post(f"{HISTORY}/stop", handlers.stop)


class DiagnosisHandlers:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._diagnosis = namespace.diagnosis

    async def test_rules(self, request: web.Request) -> web.StreamResponse:
        address = address_of(EntityType.TOPIC, request)
        entity = await asyncio.to_thread(self._namespace.entity, address)
        query = request.query
        message = DescribedMessage(
            query.get("id", "").strip(), query.get("subject", ""), query.get("properties", "")
        )
        place = self._namespace.place
        if "asked" not in query:
            return html(rule_test_page(entity, message, None, place=place))
        try:
            found = await asyncio.to_thread(self._diagnosis.test_rules, address.name, message)
        except NamespaceFailure as failure:
            text = rule_test_page(entity, message, None, place=place, refusal=failure.text)
            return html(text, STATUS[failure.problem])
        return html(rule_test_page(entity, message, found, place=place))

    async def history(self, request: web.Request) -> web.StreamResponse:
        message_id = request.query.get("id", "").strip()
        steps = await asyncio.to_thread(self._diagnosis.history, message_id) if message_id else None
        recorded = await asyncio.to_thread(self._diagnosis.recorded)
        done = request.query.get("done", "")
        return html(
            history_page(
                message_id, steps, recorded, done=done, csrf=request[CSRF], place=self._namespace.place
            )
        )

    async def record(self, request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(self._diagnosis.record, True)
        raise web.HTTPSeeOther(f"{HISTORY}?done=on")

    async def stop(self, request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(self._diagnosis.record, False)
        raise web.HTTPSeeOther(f"{HISTORY}?done=off")
