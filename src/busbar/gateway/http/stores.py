"""Serves what operators request about stores, fragments, duplicates and transfers. JSON, with the Manage right:

GET   /$busbar/stores                   all stores
POST  /$busbar/stores/{name}/{change}   offline, online, reset or forced-reset; answers with the new state
POST  /$busbar/stores/{name}/move/{broker}   to that broker, or to `any`; answers with the new state
GET   /$busbar/fragments/{entity}       the fragments of an entity
GET   /$busbar/duplicates/{entity}      what its duplicate detection dropped (duplicates.py)
GET   /$busbar/nodes                    the processes of the namespace
POST  /$busbar/brokers/restart          begins to restart the broker processes, one after the other
GET   /$busbar/transfers                what is forwarded now, and what is held
      /$busbar/history, recording       the history of messages (history.py)
"""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from busbar.gateway.http.authorization import authorize
from busbar.gateway.http.duplicates import duplicates_of
from busbar.gateway.http.history import handle_history, handle_recording
from busbar.gateway.http.requests import check_method
from busbar.gateway.services import GatewayServices
from busbar.model.api import FragmentView, StoreView, TransferView
from busbar.model.errors import EntityNotFound
from busbar.model.node_views import NodeView
from busbar.model.sas import MANAGE

PREFIX = "$busbar/"


async def handle(request: web.Request, path: str, services: GatewayServices) -> web.Response:
    """Answer a request; `path` is that of the request, with the prefix."""
    what, _, rest = path[len(PREFIX) :].partition("/")
    kind = what.lower()
    if kind == "fragments" and rest:
        await authorize(request, MANAGE, rest, services)
        check_method(request, ("GET",), f"'/{path}'")
        return web.json_response([_json(view) for view in await services.broker.fragments(rest)])
    if kind == "duplicates" and rest:
        await authorize(request, MANAGE, rest, services)
        check_method(request, ("GET",), f"'/{path}'")
        return web.json_response(await duplicates_of(request, rest, services))
    if kind == "history":
        return await handle_history(request, rest, services)
    if kind == "recording":
        return await handle_recording(request, rest, services)
    await authorize(request, MANAGE, "", services)
    if kind == "stores" and not rest:
        check_method(request, ("GET",), f"'/{path}'")
        return web.json_response([_json(view) for view in await services.broker.stores()])
    if kind == "brokers" and rest.lower() == "restart":
        check_method(request, ("POST",), f"'/{path}'")
        return web.json_response([*await services.broker.restart_brokers()], status=202)
    if kind == "nodes" and not rest:
        check_method(request, ("GET",), f"'/{path}'")
        return web.json_response([_json(view) for view in await services.broker.nodes()])
    if kind == "transfers" and not rest:
        check_method(request, ("GET",), f"'/{path}'")
        report = await services.broker.transfers()
        return web.json_response([_json(view) for view in report.transfers])
    name, _, change = rest.partition("/")
    if kind == "stores" and name and change:
        check_method(request, ("POST",), f"'/{path}'")
        verb, _, broker = change.partition("/")
        if verb.lower() == "move":
            return web.json_response(_json(await services.broker.move_store(name, broker)))
        return web.json_response(_json(await services.broker.change_store(name, change.lower())))
    raise EntityNotFound(path)


def _json(view: StoreView | FragmentView | TransferView | NodeView) -> dict[str, object]:
    return _camel_keys(asdict(view))


def _camel_keys(fields: dict[str, object]) -> dict[str, object]:
    return {_camel(key): _camel_value(value) for key, value in fields.items()}


def _camel_value(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_camel_keys(one) if isinstance(one, dict) else one for one in value]
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
