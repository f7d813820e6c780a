"""Serves what operators request about stores, fragments, duplicates and transfers. JSON, with the Manage right:

GET   /$busbar/stores                   all stores
POST  /$busbar/stores/{name}/{change}   offline, online, reset or forced-reset; answers with the new state
POST  /$busbar/stores/{name}/move/{broker}   to that broker, or to `any`; answers with the new state
GET   /$busbar/fragments/{entity}       the fragments of an entity
GET   /$busbar/duplicates/{entity}      what its duplicate detection dropped (duplicates.py)
GET   /$busbar/nodes                    the processes of the namespace
POST  /$busbar/brokers/restart          begins to restart the broker processes, one after the other
GET   /$busbar/log-level                the level of the log
POST  /$busbar/log-level/{level}        changes it, in all processes; answers with the new one
GET   /$busbar/transfers                what is forwarded now, and what is held
      /$busbar/history, recording       the history of messages (history.py)
...   /$busbar/authorization-rules      of the namespace or of an entity (access.py)
GET   /$busbar/definitions              all entities, as a Config.json (definitions.py)
POST  /$busbar/backup                   leaves the files of all stores as they are; DELETE ends that
...   /$busbar/connections              the connections of clients (connections.py)
GET   /$busbar/taps                     the taps of all entities (taps.py)
"""

from __future__ import annotations

from aiohttp import web

from busbar.gateway.http import access, connections, taps
from busbar.gateway.http.authorization import authorize
from busbar.gateway.http.definitions import definitions
from busbar.gateway.http.duplicates import duplicates_of
from busbar.gateway.http.history import handle_history, handle_recording
from busbar.gateway.http.requests import check_method
from busbar.gateway.http.view_json import view_json
from busbar.gateway.services import GatewayServices
from busbar.model.errors import EntityNotFound
from busbar.model.sas import MANAGE

PREFIX = "$busbar/"


async def handle(request: web.Request, path: str, services: GatewayServices) -> web.Response:
    """Answer a request; `path` is that of the request, with the prefix."""
    what, _, rest = path[len(PREFIX) :].partition("/")
    kind = what.lower()
    if kind == "fragments" and rest:
        await authorize(request, MANAGE, rest, services)
        check_method(request, ("GET",), f"'/{path}'")
        return web.json_response([view_json(view) for view in await services.broker.fragments(rest)])
    if kind == "duplicates" and rest:
        await authorize(request, MANAGE, rest, services)
        check_method(request, ("GET",), f"'/{path}'")
        return web.json_response(await duplicates_of(request, rest, services))
    if kind == "history":
        return await handle_history(request, rest, services)
    if kind == "recording":
        return await handle_recording(request, rest, services)
    if kind == "authorization-rules":
        await authorize(request, MANAGE, rest, services)
        return await access.handle(request, rest, services)
    await authorize(request, MANAGE, "", services)
    if kind == "definitions" and not rest:
        check_method(request, ("GET",), f"'/{path}'")
        keys = request.query.get("keys", "").lower() == "true"
        return web.json_response(await definitions(services.broker, services.limits, keys=keys))
    if kind == "backup" and not rest:
        check_method(request, ("POST", "DELETE"), f"'/{path}'")
        if request.method == "POST":
            return web.json_response([*await services.broker.begin_backup()])
        return web.json_response({"complete": await services.broker.end_backup()})
    if kind == "connections":
        return await connections.handle(request, path, rest, services)
    if kind == "taps" and not rest:
        return await taps.handle(request, path, services)
    if kind == "log-level":
        check_method(request, ("POST",) if rest else ("GET",), f"'/{path}'")
        return web.json_response({"level": await services.broker.log_level(rest)})
    if kind == "stores" and not rest:
        check_method(request, ("GET",), f"'/{path}'")
        return web.json_response([view_json(view) for view in await services.broker.stores()])
    if kind == "brokers" and rest.lower() == "restart":
        check_method(request, ("POST",), f"'/{path}'")
        return web.json_response([*await services.broker.restart_brokers()], status=202)
    if kind == "nodes" and not rest:
        check_method(request, ("GET",), f"'/{path}'")
        return web.json_response([view_json(view) for view in await services.broker.nodes()])
    if kind == "transfers" and not rest:
        check_method(request, ("GET",), f"'/{path}'")
        report = await services.broker.transfers()
        return web.json_response([view_json(view) for view in report.transfers])
    name, _, change = rest.partition("/")
    if kind == "stores" and name and change:
        check_method(request, ("POST",), f"'/{path}'")
        verb, _, broker = change.partition("/")
        if verb.lower() == "move":
            return web.json_response(view_json(await services.broker.move_store(name, broker)))
        return web.json_response(view_json(await services.broker.change_store(name, change.lower())))
    raise EntityNotFound(path)
