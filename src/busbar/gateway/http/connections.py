"""Serves the AMQP connections of clients, for operators with the Manage right on the namespace. JSON:

GET     /$busbar/connections?entity=E&sort=S&skip=N&top=N    a page of them, and how many there are
DELETE  /$busbar/connections/{id}                            closes one; its client gets amqp:connection:forced
"""

from __future__ import annotations

import logging

from aiohttp import web

from busbar.gateway.http.requests import check_method, number_of
from busbar.gateway.http.view_json import view_json
from busbar.gateway.services import GatewayServices
from busbar.model.connection_views import ConnectionQuery
from busbar.model.errors import ConnectionNotFound

_log = logging.getLogger(__name__)


async def handle(request: web.Request, path: str, id: str, services: GatewayServices) -> web.Response:
    """Answer a request that is authorized; `id` is what follows the collection in its path."""
    if not id:
        check_method(request, ("GET",), f"'/{path}'")
        return web.json_response(view_json(await services.broker.connection_report(_query(request))))
    check_method(request, ("DELETE",), f"'/{path}'")
    if not await services.broker.close_connection(id):
        raise ConnectionNotFound(id)
    _log.info("the connection %s was closed by an operator", id)
    return web.Response(status=200)


def _query(request: web.Request) -> ConnectionQuery:
    usual = ConnectionQuery()
    query = ConnectionQuery(
        request.query.get("entity", "").strip("/"),
        request.query.get("sort", usual.sort),
        number_of(request, "skip", usual.skip),
        number_of(request, "top", usual.top),
    )
    query.check()
    return query
