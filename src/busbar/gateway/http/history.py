"""Serves the history of messages. JSON:

GET   /$busbar/history?messageId=ID            what was recorded of messages with that id; the right Manage
GET   /$busbar/history/{entity}?messageId=ID   the same of one entity, a topic with its subscriptions; the right Listen on it
GET   /$busbar/recording                       which entities record their history; the right Manage
POST  /$busbar/recording/on|off[/{entity}]     starts or stops that, for an entity or for all; the right Manage
"""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from busbar.gateway.http.authorization import authorize
from busbar.gateway.http.requests import check_method
from busbar.gateway.services import GatewayServices
from busbar.model.errors import ArgumentError, EntityNotFound
from busbar.model.history import HistoryRecording, HistoryStep
from busbar.model.sas import LISTEN, MANAGE

MESSAGE_ID = "messageId"


async def handle_history(request: web.Request, entity: str, services: GatewayServices) -> web.Response:
    await authorize(request, LISTEN if entity else MANAGE, entity, services)
    check_method(request, ("GET",), "the history of a message")
    message_id = request.query.get(MESSAGE_ID, "")
    if not message_id:
        raise ArgumentError(f"The request names no message; give its id as '{MESSAGE_ID}' in the query.")
    steps = await services.broker.history(message_id, entity)
    return web.json_response([_step(step) for step in steps])


async def handle_recording(request: web.Request, rest: str, services: GatewayServices) -> web.Response:
    await authorize(request, MANAGE, "", services)
    if not rest:
        check_method(request, ("GET",), "the recording of history")
        return web.json_response(_recording(await services.broker.recording()))
    check_method(request, ("POST",), "the recording of history")
    change, _, entity = rest.partition("/")
    if change.lower() not in ("on", "off"):
        raise EntityNotFound(f"$busbar/recording/{rest}")
    return web.json_response(_recording(await services.broker.record_history(entity, change.lower() == "on")))


def _recording(recording: HistoryRecording) -> dict[str, object]:
    return {"everything": recording.everything, "entities": [*recording.entities]}


def _step(step: HistoryStep) -> dict[str, object]:
    return {
        "time": step.time,
        "entity": step.entity,
        "what": step.what,
        "messageId": step.message_id,
        "sequenceNumber": step.sequence_number or None,
        "deliveryCount": step.deliveries,
        "reason": step.reason,
        "byClient": step.origin > 0,
        "client": None if step.client is None else asdict(step.client),
        "connection": f"{step.gateway}#{step.origin}" if step.origin > 0 else None,
    }
