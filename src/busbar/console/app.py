"""The console as a web application on loopback: which address shows which page, and how failures are shown.

1. A GET changes nothing. A change is a POST from one of the console's forms (access.py) and ends in a redirect, so that
   loading the page again repeats nothing.
2. If the broker refuses a request, the error is shown with the form and its values. If the broker does not answer, a page
   states it and tries again.
3. Any other error is one line in the log and a page without details.
4. The namespace is called from threads: a slow broker delays only its own pages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from importlib import resources

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from busbar.console import pages
from busbar.console.access import (
    CSRF_FIELD,
    HEADERS,
    SIGN_IN,
    Access,
    AccessDenied,
    check_host,
    set_cookie,
)
from busbar.console.forms import FORMS, blank, read
from busbar.console.layout import SCRIPT, STYLE, path_of
from busbar.console.namespace import (
    Address,
    EntityType,
    FailureKind,
    FragmentSummary,
    Namespace,
    NamespaceFailure,
)

HOST = "127.0.0.1"
LIMIT = 100
"""Maximum number of entities on one page."""
MAX_START = 1_000_000
MAX_BODY = 64 * 1024
CSRF = web.RequestKey("csrf", str)
STATUS = {FailureKind.NOT_FOUND: 404, FailureKind.REFUSED: 400, FailureKind.AWAY: 503}

logger = logging.getLogger(__name__)


async def serve(
    namespace: Namespace, port: int, announce: Callable[[str, Callable[[], str]], None], stop: asyncio.Event
) -> None:
    """Serve until `stop`. `announce` gets the address to print and a function that creates another one, each valid for one
    sign-in. Raises OSError if the port is not available."""
    access = Access()
    runner = web.AppRunner(application(namespace, access), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port, shutdown_timeout=1)
        await site.start()
        bound = runner.addresses[0][1]

        def address() -> str:
            return f"http://{HOST}:{bound}{SIGN_IN}?token={access.new_token()}"

        announce(address(), address)
        await stop.wait()
    finally:
        await runner.cleanup()


def application(namespace: Namespace, access: Access) -> web.Application:
    console = Console(namespace, access)
    app = web.Application(
        middlewares=[_failure_middleware(namespace), _access_middleware(access)], client_max_size=MAX_BODY
    )
    app.router.add_get("/", console.overview)
    app.router.add_get(SIGN_IN, console.sign_in)
    app.router.add_get(STYLE, _asset("console.css", "text/css"))
    app.router.add_get(SCRIPT, _asset("console.js", "text/javascript"))
    for kind in EntityType:
        app.router.add_get(f"/{kind}", console.showing(kind))
        app.router.add_get(f"/{kind}/new", console.creating(kind))
        app.router.add_post(f"/{kind}/new", console.create(kind))
        app.router.add_get(f"/{kind}/delete", console.deleting(kind))
        app.router.add_post(f"/{kind}/delete", console.delete(kind))
    return app


class Console:
    """The handlers."""

    def __init__(self, namespace: Namespace, access: Access) -> None:
        self._namespace = namespace
        self._access = access

    async def sign_in(self, request: web.Request) -> web.StreamResponse:
        cookie = self._access.sign_in(request.query.get("token", ""))
        if cookie is None:
            if self._access.browser(request) is not None:
                raise web.HTTPSeeOther("/")
            text = "This address was used already. If that was not you, stop the console."
            return _html(pages.signed_out_page(text), 403)
        response = _html(pages.signed_in_page())
        set_cookie(request, response, cookie)
        return response

    async def overview(self, request: web.Request) -> web.StreamResponse:
        queues_from, topics_from = _start(request, "queues"), _start(request, "topics")
        found = await asyncio.to_thread(self._namespace.overview, queues_from, topics_from, LIMIT)
        return _html(pages.overview_page(found, queues_from, topics_from, LIMIT, self._namespace.place))

    def showing(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address, namespace = _address(kind, request), self._namespace
            entity = await asyncio.to_thread(namespace.entity, address)
            fragments: Sequence[FragmentSummary] = ()
            subscriptions, skip = None, _start(request, "skip")
            if kind is EntityType.QUEUE and entity.partitioned:
                fragments = await asyncio.to_thread(namespace.fragments, address.name)
            if kind is EntityType.TOPIC:
                subscriptions = await asyncio.to_thread(namespace.subscriptions, address.name, skip, LIMIT)
            text = pages.entity_page(
                entity,
                fragments=fragments,
                subscriptions=subscriptions,
                skip=skip,
                limit=LIMIT,
                created="created" in request.query,
                place=namespace.place,
            )
            return _html(text)

        return handle

    def creating(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            form, topic = FORMS[kind], request.query.get("topic", "")
            text = pages.create_page(
                form, blank(form), topic=topic, csrf=request[CSRF], place=self._namespace.place
            )
            return _html(text)

        return handle

    def create(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            sent = await _read_form(request)
            form, filled = FORMS[kind], read(FORMS[kind], sent)
            address = Address(
                kind, filled.name, sent.get("topic", "") if kind is EntityType.SUBSCRIPTION else ""
            )
            try:
                await asyncio.to_thread(self._namespace.create, address, filled.values)
            except NamespaceFailure as failure:
                text = pages.create_page(
                    form,
                    filled,
                    topic=address.topic,
                    csrf=request[CSRF],
                    place=self._namespace.place,
                    refusal=failure.text,
                )
                return _html(text, STATUS[failure.problem])
            raise web.HTTPSeeOther(f"{path_of(address)}&created=1")

        return handle

    def deleting(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            entity = await asyncio.to_thread(self._namespace.entity, _address(kind, request))
            return _html(pages.delete_page(entity, csrf=request[CSRF], place=self._namespace.place))

        return handle

    def delete(self, kind: EntityType) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            address = _address(kind, request)
            await asyncio.to_thread(self._namespace.delete, address)
            raise web.HTTPSeeOther(
                path_of(Address(EntityType.TOPIC, address.topic)) if address.topic else "/"
            )

        return handle


def _access_middleware(access: Access) -> Middleware:
    """Refuse requests that are not allowed (access.py)."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_host(request.host)
        if request.path in (SIGN_IN, STYLE):
            return await handler(request)
        browser = access.browser(request)
        if browser is None:
            return _html(pages.signed_out_page("This browser is not signed in to the console."), 403)
        if request.method not in ("GET", "HEAD"):
            access.check_change(request, browser, (await _read_form(request)).get(CSRF_FIELD, ""))
        request[CSRF] = access.csrf(browser)
        return await handler(request)

    return guard


def _failure_middleware(namespace: Namespace) -> Middleware:
    """Turn every failure into a page, and add the headers to every answer."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except AccessDenied as refused:
            response = _html(pages.failure_page("Refused", refused.text), 403)
        except NamespaceFailure as failure:
            response = _failure(failure, namespace.place, request.method == "GET")
        except web.HTTPException as error:
            if error.status < 400:
                error.headers.update(HEADERS)
                raise
            response = _html(pages.failure_page(error.reason, "There is no such page."), error.status)
        except Exception as error:
            # A fault of the console. The text of an exception may contain anything, so only its type is logged.
            logger.error("%s %s failed: %s", request.method, request.path, type(error).__name__)
            logger.debug("where", exc_info=True)
            response = _html(
                pages.failure_page("That failed", "The console made a mistake; see its log."), 500
            )
        response.headers.update(HEADERS)
        return response

    return answer


def _failure(failure: NamespaceFailure, place: str, readable: bool) -> web.Response:
    titles = {
        FailureKind.NOT_FOUND: "Not there",
        FailureKind.REFUSED: "Refused",
        FailureKind.AWAY: "The namespace does not answer",
    }
    live = readable and failure.problem is FailureKind.AWAY
    text = pages.failure_page(titles[failure.problem], failure.text, place=place, live=live)
    return _html(text, STATUS[failure.problem])


def _asset(name: str, content_type: str) -> Handler:
    body = resources.files("busbar.console").joinpath(name).read_bytes()

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return handle


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html")


def _address(kind: EntityType, request: web.Request) -> Address:
    return Address(kind, request.query.get("name", ""), request.query.get("topic", ""))


def _start(request: web.Request, name: str) -> int:
    text = request.query.get(name, "")
    return min(int(text), MAX_START) if text.isascii() and text.isdigit() and len(text) <= 9 else 0


async def _read_form(request: web.Request) -> dict[str, str]:
    """The fields of a form; of a repeated field, the first. aiohttp keeps what it read."""
    fields = await request.post()
    return {key: value for key, value in reversed(list(fields.items())) if isinstance(value, str)}
