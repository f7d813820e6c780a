"""The runtime operations: send, receive and settle, one message or batch for each request.

    operation             request                                             right     answers
    send, send a batch    POST   {entity}/messages                            Send      201
    peek-lock             POST   {entity}/messages/head?timeout=s             Listen    201, or 204 if nothing came
    receive and delete    DELETE {entity}/messages/head?timeout=s             Listen    200, or 204
    unlock                PUT    {entity}/messages/{id or number}/{token}     Listen    200
    renew the lock        POST   the same                                     Listen    200
    complete              DELETE the same                                     Listen    200

1. The right is checked before the entity is looked up. So a client without the right cannot find out whether a name exists.
   A token has to cover the path of the request: it can be for the entity or for this very URL.
2. A message becomes AMQP bytes first (runtime_message.py). From there it takes the same way as any other.
3. A receive waits for `timeout` seconds, a minute by default, but not longer than its token is valid.
4. If a message was locked for a client that has disconnected, it is released at once.
5. A lock is named by its token. In front of it is the message's number or its id; any other value is refused.
6. A wait ends when its entity is deleted (410) or delivers no messages any more (403).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote
from uuid import UUID

from aiohttp import web

from busbar.clock import wall_clock
from busbar.gateway.address import sub_queue
from busbar.gateway.entity_checks import (
    check_can_receive,
    check_can_send,
    check_has_messages,
    message_size,
    requires_session,
)
from busbar.gateway.http.atom_values import check_partitioning, read_version
from busbar.gateway.http.authorization import authorize
from busbar.gateway.http.connection import HttpConnection
from busbar.gateway.http.errors import EntityDeleted
from busbar.gateway.http.requests import check_method, path_of, read_body
from busbar.gateway.http.runtime_batch import compose_batch, is_batch
from busbar.gateway.http.runtime_dates import date_text
from busbar.gateway.http.runtime_headers import properties_of
from busbar.gateway.http.runtime_message import DEFAULT_TYPE, compose, message_id_of, show
from busbar.gateway.http.runtime_origin import HttpOrigin
from busbar.gateway.http.runtime_path import RuntimePath, RuntimePathKind, target_of
from busbar.gateway.http.runtime_properties import parse_broker_properties
from busbar.gateway.services import GatewayServices
from busbar.message.lock_token import lock_tag, split_tags, tag_fragment, tag_to_uuid, uuid_to_tag
from busbar.message.parsing import parse_message
from busbar.model.api import EntityView
from busbar.model.commands import ABANDON, COMPLETE, Command, Peek, Renew, Settle
from busbar.model.effects import Peeked, Renewed
from busbar.model.errors import (
    ArgumentError,
    BusbarError,
    InvalidOperation,
    MessageNotFound,
    MessageSizeExceeded,
)
from busbar.model.message import Draft
from busbar.model.sas import LISTEN, SEND
from busbar.partitions.resolver import FragmentResolver

DEFAULT_WAIT = 60.0
MAX_WAIT = 86_400.0
_SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,9})?", re.ASCII)
_GUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RuntimeRequest:
    """An authorized request, and its entity."""

    request: web.Request
    services: GatewayServices
    origin: HttpOrigin
    target: RuntimePath
    entity: EntityView
    expires: int
    """When its token ends, in ms; 0: never."""

    @property
    def sub(self) -> int:
        return sub_queue(self.target.dead_letter, self.target.transfer)


Operation = Callable[[RuntimeRequest], Awaitable[web.StreamResponse]]


async def handle(request: web.Request, services: GatewayServices) -> web.StreamResponse:
    path = path_of(request)
    target = target_of(path)
    operations = _OPERATIONS[target.node]
    check_method(request, operations, f".../{target.node.value}")
    grant = await authorize(request, SEND if target.node is RuntimePathKind.SEND else LISTEN, path, services)
    entity = await services.broker.entity(target.entity)
    check_partitioning(entity.path, len(entity.fragments) > 1, read_version(request.query.get("api-version")))
    if target.node is RuntimePathKind.HEAD and not target.dead_letter:
        _check_no_sessions(entity)
    check_has_messages(entity)
    connection = request.protocol
    assert isinstance(connection, HttpConnection)
    origin = connection.origin(services)
    return await operations[request.method](
        RuntimeRequest(request, services, origin, target, entity, grant.expires)
    )


def _check_no_sessions(entity: EntityView) -> None:
    if requires_session(entity):
        raise InvalidOperation(
            f"'{entity.path}' requires sessions, which cannot be received over HTTP; use AMQP."
        )


# Send


async def _send(asked: RuntimeRequest) -> web.StreamResponse:
    check_can_send(asked.entity, asked.target.dead_letter)
    request, limits = asked.request, asked.services.limits
    size = message_size(asked.entity, limits)
    content_type = request.headers.get("Content-Type", "")
    now = wall_clock()
    if is_batch(content_type):
        # As JSON a batch may be larger than it is: escapes, names of keys.
        document = await read_body(request, 2 * size + limits.max_header_size, limits.http_body_timeout)
        payloads = compose_batch(document, now, size)
    else:
        properties = parse_broker_properties(request.headers.get("BrokerProperties"))
        custom = properties_of(request.headers.items())
        body = await read_body(request, size, limits.http_body_timeout)
        payloads = [compose(properties, custom, content_type, body, now)]
        if len(payloads[0]) > size:
            raise MessageSizeExceeded(
                f"The message has {len(payloads[0])} bytes with its properties; at most {size} are taken."
            )
    drafts = [
        parse_message(
            payload, 0, len(payload), asked.origin.fresh_id(), limits.max_id_length, limits.max_header_size
        )
        for payload in payloads
    ]
    await _stored(asked, drafts, payloads)
    return _empty(201)


async def _stored(asked: RuntimeRequest, drafts: list[Draft], payloads: Sequence[bytes]) -> None:
    """Store messages, with their spans if there are traces. Raises the error of a refusal."""
    tracer, begin = asked.services.tracer, time.time_ns()
    try:
        await asked.origin.send(asked.entity, drafts)
    except BusbarError as error:
        if tracer is not None:
            tracer.sent(asked.entity.path, payloads, begin, error.condition)
        raise
    if tracer is not None:
        tracer.sent(asked.entity.path, payloads, begin)


# Receive


async def _peek_lock(asked: RuntimeRequest) -> web.StreamResponse:
    return await _receive(asked, delete=False)


async def _receive_and_delete(asked: RuntimeRequest) -> web.StreamResponse:
    return await _receive(asked, delete=True)


async def _receive(asked: RuntimeRequest, *, delete: bool) -> web.StreamResponse:
    check_can_receive(asked.entity, asked.sub)
    end_watch = asked.services.broker.watch(lambda path, view: _on_entity_changed(asked, path, view))
    try:
        delivered = await asked.origin.receive(asked.entity, asked.sub, delete, _wait_of(asked))
    finally:
        end_watch()
    if delivered is None:
        return web.Response(status=204)
    try:
        record = delivered.records[0]
        now = wall_clock()
        asked.services.deliveries.add(now - record.enqueued)
        if asked.services.tracer is not None:
            asked.services.tracer.delivered(asked.entity.path, record, now)
        token = None if delete else tag_to_uuid(lock_tag(delivered.fragment, record.n, delivered.nonce))
        number = FragmentResolver(asked.entity).sequence_number_in(delivered.fragment, record.n)
        shown = show(record, number, token, delivered.until)
        headers = shown.headers
        if token is not None:
            path = f"{asked.target.location(asked.entity)}/{number}/{token}"
            headers["Location"] = f"{_namespace(asked.request)}/{quote(path, safe='/$~')}"
        response = web.Response(status=200 if delete else 201, headers=headers, body=shown.body)
        # Written here and not after the return: rule 4 depends on whether the client is still connected.
        await response.prepare(asked.request)
        await response.write_eof()
    except (Exception, asyncio.CancelledError):
        asked.origin.release(delivered)
        raise
    return response


def _on_entity_changed(asked: RuntimeRequest, path: str, view: EntityView | None) -> None:
    """End the wait of this request if its entity was deleted or delivers no messages any more."""
    if path.lower() != asked.entity.path.lower():
        return
    try:
        if view is None:
            raise EntityDeleted(f"The messaging entity '{asked.entity.path}' has been deleted.")
        check_can_receive(view, asked.sub)
    except BusbarError as error:
        asked.origin.interrupt(error)


def _wait_of(asked: RuntimeRequest) -> float:
    """The time that a receive waits, in seconds."""
    given = asked.request.query.get("timeout", "")
    if given and not _SECONDS.fullmatch(given):
        raise ArgumentError(f"timeout is '{given[:40]}'; it has to be a number of seconds.")
    wait = float(given) if given else DEFAULT_WAIT
    if asked.expires:
        left = asked.expires + asked.services.limits.token_grace - wall_clock()
        wait = min(wait, max(0, left) / 1000)
    return min(wait, MAX_WAIT)


def _namespace(request: web.Request) -> str:
    host = request.host
    if not re.fullmatch(r"[\w.:\[\]-]+", host, re.ASCII):
        host = "localhost"
    return f"{request.scheme}://{host}"


# Settle


async def _complete(asked: RuntimeRequest) -> web.StreamResponse:
    return await _settle(asked, COMPLETE)


async def _unlock(asked: RuntimeRequest) -> web.StreamResponse:
    return await _settle(asked, ABANDON)


async def _settle(asked: RuntimeRequest, outcome: int) -> web.StreamResponse:
    fragment, numbers, nonces = await _lock_of(asked)
    await asked.origin.ask(
        lambda origin, number: Settle(fragment, origin, number, outcome, numbers, nonces, None, True)
    )
    return _empty(200)


async def _renew(asked: RuntimeRequest) -> web.StreamResponse:
    fragment, numbers, nonces = await _lock_of(asked)

    def build(origin: int, number: int) -> Command:
        return Renew(fragment, origin, number, numbers, nonces)

    effect = await asked.origin.ask(build)
    assert isinstance(effect, Renewed)
    response = _empty(200)
    response.headers["BrokerProperties"] = f'{{"LockedUntilUtc": "{date_text(effect.until)}"}}'
    return response


async def _lock_of(asked: RuntimeRequest) -> tuple[int, list[int], list[int]]:
    """Fragment, number and nonce of the lock that the path names."""
    target = asked.target
    unknown = MessageNotFound(
        f"There is no lock '{target.lock[:40]}' of a message '{target.message[:40]}' in "
        f"'{asked.target.location(asked.entity)}'."
    )
    if not _GUID.fullmatch(target.lock):
        raise unknown
    tag = uuid_to_tag(UUID(target.lock))
    fragment = tag_fragment(tag)
    if fragment not in asked.entity.fragments:
        raise unknown
    numbers, nonces = split_tags([tag])
    given = target.message
    shown = FragmentResolver(asked.entity).sequence_number_in(fragment, numbers[0])
    if given.isascii() and given.isdigit() and given != str(shown):
        # Not its number: then it must be the id of the message, which may look like a number.
        effect = await asked.origin.ask(
            lambda origin, number: Peek(fragment, origin, number, asked.sub, numbers[0], 1, 1)
        )
        assert isinstance(effect, Peeked)
        record = effect.records[0] if effect.records else None
        if record is None or record.n != numbers[0] or message_id_of(record) != given:
            raise unknown
    return fragment, numbers, nonces


def _empty(status: int) -> web.Response:
    return web.Response(status=status, headers={"Content-Type": DEFAULT_TYPE})


_OPERATIONS: dict[RuntimePathKind, dict[str, Operation]] = {
    RuntimePathKind.SEND: {"POST": _send},
    RuntimePathKind.HEAD: {"POST": _peek_lock, "DELETE": _receive_and_delete},
    RuntimePathKind.LOCK: {"PUT": _unlock, "POST": _renew, "DELETE": _complete},
}
