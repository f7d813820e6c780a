"""Serves the authorization rules of an entity or of the namespace. JSON, with the Manage right there:

GET     /$busbar/authorization-rules[/{entity}]               all rules, without keys
GET     /$busbar/authorization-rules[/{entity}]?rule=NAME     one rule; with &keys=true its keys, too
POST    ...?rule=NAME                                         creates it: {"rights": [...], "primaryKey", "secondaryKey"}
PUT     ...?rule=NAME                                         changes what the body names
POST    ...?rule=NAME&renew=primary|secondary                 replaces a key; answers with both
DELETE  ...?rule=NAME                                         deletes it

ATOM has the rules in the description of their entity, where two clients can overwrite each other. Here a change concerns one
rule. Keys are in no answer but those that were asked for them.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from aiohttp import web

from busbar.gateway.http.requests import check_method, read_body
from busbar.gateway.services import GatewayServices
from busbar.model.access import PRIMARY, AccessAction, AccessChange
from busbar.model.api import EntityView
from busbar.model.entities import AuthorizationRule, Right, authorization_rules_of
from busbar.model.errors import ArgumentError, AuthorizationRuleNotFound
from busbar.model.names import NAMESPACE_ENTRY

_FIELDS = {"rights", "primaryKey", "secondaryKey"}


async def handle(request: web.Request, path: str, services: GatewayServices) -> web.Response:
    """Answer a request that is authorized for the entity at `path` (empty: the namespace)."""
    name = request.query.get("rule", "")
    if not name:
        check_method(request, ("GET",), "a list of authorization rules")
        view = await services.broker.entity(path or NAMESPACE_ENTRY)
        return web.json_response([_json(rule) for rule in authorization_rules_of(view.description)])
    check_method(request, ("GET", "POST", "PUT", "DELETE"), "an authorization rule")
    if request.method == "GET":
        view = await services.broker.entity(path or NAMESPACE_ENTRY)
        with_keys = request.query.get("keys", "").lower() == "true"
        return web.json_response(_json(_rule_of(view, name), with_keys=with_keys))
    change = await _change(request, services)
    view = await services.broker.change_access(path, name, change)
    if change.action is AccessAction.DELETE:
        return web.Response(status=200)
    status = 201 if change.action is AccessAction.CREATE else 200
    with_keys = change.action is AccessAction.RENEW
    return web.json_response(_json(_rule_of(view, name), with_keys=with_keys), status=status)


async def _change(request: web.Request, services: GatewayServices) -> AccessChange:
    if request.method == "DELETE":
        return AccessChange(AccessAction.DELETE)
    fields = await _fields(request, services)
    rights = fields.get("rights", [])
    if not isinstance(rights, list) or not all(isinstance(right, str) for right in rights):
        raise ArgumentError("'rights' has to be a list of texts: Send, Listen, Manage.")
    primary, secondary = (_text(fields, key) for key in ("primaryKey", "secondaryKey"))
    renewed = request.query.get("renew", "")
    if renewed:
        given = primary if renewed == PRIMARY else secondary
        return AccessChange(AccessAction.RENEW, (), given, given, renewed)
    action = AccessAction.CREATE if request.method == "POST" else AccessAction.UPDATE
    return AccessChange(action, tuple(rights), primary, secondary)


async def _fields(request: web.Request, services: GatewayServices) -> dict[str, object]:
    limits = services.limits
    body = await read_body(request, limits.http_management_body, limits.http_body_timeout)
    if not body:
        return {}
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise ArgumentError("The body of the request is not JSON.") from None
    if not isinstance(fields, dict):
        raise ArgumentError("The body of the request is not a JSON object.")
    unknown = next((key for key in fields if key not in _FIELDS), None)
    if unknown is not None:
        raise ArgumentError(
            f"An authorization rule has no '{unknown[:40]}'; it has {', '.join(sorted(_FIELDS))}."
        )
    return fields


def _text(fields: dict[str, object], key: str) -> str:
    value = fields.get(key) or ""
    if not isinstance(value, str):
        raise ArgumentError(f"'{key}' has to be a text.")
    return value


def _rule_of(view: EntityView, name: str) -> AuthorizationRule:
    for rule in authorization_rules_of(view.description):
        if rule.name == name:
            return rule
    what = "The namespace" if view.path == NAMESPACE_ENTRY else f"'{view.path}'"
    raise AuthorizationRuleNotFound(what, name)


def _json(rule: AuthorizationRule, *, with_keys: bool = False) -> dict[str, object]:
    found: dict[str, object] = {
        "name": rule.name,
        "rights": [right.value for right in Right if right in rule.rights],
        "createdAt": _time(rule.created),
        "updatedAt": _time(rule.modified),
    }
    if with_keys:
        found |= {"primaryKey": rule.primary_key, "secondaryKey": rule.secondary_key}
    return found


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
