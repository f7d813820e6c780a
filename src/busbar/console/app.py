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
from collections.abc import Callable
from importlib import resources

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from busbar.console import (
    access_handlers,
    connection_handlers,
    dead_letter_handlers,
    diagnosis_handlers,
    entity_handlers,
    message_handlers,
    operation_handlers,
    pages,
    rule_handlers,
    session_handlers,
)
from busbar.console.access import (
    CSRF_FIELD,
    HEADERS,
    SIGN_IN,
    Access,
    AccessDenied,
    check_host,
    set_cookie,
)
from busbar.console.layout import SCRIPT, STYLE
from busbar.console.namespace import FailureKind, Namespace, NamespaceFailure
from busbar.console.polling import CountPolling
from busbar.console.requests import CSRF, STATUS, html, read_form

HOST = "127.0.0.1"
MAX_BODY = 64 * 1024
MAX_MESSAGE = 4 * 1024 * 1024
"""Of a form with the body of a message."""
WITH_MESSAGES = ("/send", "/mend")
"""The ends of the addresses of such forms."""

FAILURES = {
    FailureKind.NOT_FOUND: (
        "It is not there",
        "Somebody may have deleted it, or its name is another one. The search finds names by a part.",
    ),
    FailureKind.REFUSED: ("Refused", ""),
    FailureKind.AWAY: (
        "The namespace does not answer",
        "Is Busbar running? `busbar doctor` finds out what is wrong.",
    ),
}
"""The title of a failure, and what a person can do."""
TRIES_AGAIN = "This page tries again by itself."

logger = logging.getLogger(__name__)


async def serve(
    namespace: Namespace, port: int, announce: Callable[[str, Callable[[], str]], None], stop: asyncio.Event
) -> None:
    """Serve until `stop`. `announce` gets the address to print and a function that creates another one, each valid for one
    sign-in. Raises OSError if the port is not available."""
    access = Access()
    polling = CountPolling(namespace.operation)
    app = application(namespace, access, polling)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port, shutdown_timeout=1)
        await site.start()
        bound = runner.addresses[0][1]

        def address() -> str:
            return f"http://{HOST}:{bound}{SIGN_IN}?token={access.new_token()}"

        announce(address(), address)
        async with polling.running():
            await stop.wait()
    finally:
        await runner.cleanup()


def application(namespace: Namespace, access: Access, polling: CountPolling) -> web.Application:
    app = web.Application(
        middlewares=[_failure_middleware(namespace), _access_middleware(access, polling)],
        client_max_size=MAX_MESSAGE,
    )
    app.router.add_get(SIGN_IN, _sign_in(access))
    app.router.add_get(STYLE, _asset("console.css", "text/css"))
    app.router.add_get(SCRIPT, _asset("console.js", "text/javascript"))
    entity_handlers.add_routes(app, namespace, polling)
    rule_handlers.add_routes(app, namespace)
    diagnosis_handlers.add_routes(app, namespace)
    access_handlers.add_routes(app, namespace)
    operation_handlers.add_routes(app, namespace)
    connection_handlers.add_routes(app, namespace)
    message_handlers.add_routes(app, namespace)
    dead_letter_handlers.add_routes(app, namespace)
    session_handlers.add_routes(app, namespace)
    return app


def _sign_in(access: Access) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        cookie = access.sign_in(request.query.get("token", ""))
        if cookie is None:
            if access.browser(request) is not None:
                raise web.HTTPSeeOther("/")
            text = "This address was used already. If that was not you, stop the console."
            return html(pages.signed_out_page(text), 403)
        response = html(pages.signed_in_page())
        set_cookie(request, response, cookie)
        return response

    return handle


def _access_middleware(access: Access, polling: CountPolling) -> Middleware:
    """Refuse requests that are not allowed (access.py)."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_host(request.host)
        if request.path in (SIGN_IN, STYLE):
            return await handler(request)
        browser = access.browser(request)
        if browser is None:
            return html(pages.signed_out_page("This browser is not signed in to the console."), 403)
        if request.method not in ("GET", "HEAD"):
            if not request.path.endswith(WITH_MESSAGES) and (request.content_length or 0) > MAX_BODY:
                raise web.HTTPRequestEntityTooLarge(MAX_BODY, request.content_length or 0)
            access.check_change(request, browser, (await read_form(request)).get(CSRF_FIELD, ""))
        request[CSRF] = access.csrf(browser)
        polling.note_viewer()
        return await handler(request)

    return guard


def _failure_middleware(namespace: Namespace) -> Middleware:
    """Turn every failure into a page, and add the headers to every answer."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except AccessDenied as refused:
            response = html(pages.failure_page("Refused", refused.text), 403)
        except NamespaceFailure as failure:
            response = _failure(failure, namespace.place, request.method == "GET")
        except web.HTTPException as error:
            if error.status < 400:
                error.headers.update(HEADERS)
                raise
            response = html(_http_failure(error), error.status)
        except Exception as error:
            # A fault of the console. The text of an exception may contain anything, so only its type is logged.
            logger.error("%s %s failed: %s", request.method, request.path, type(error).__name__)
            logger.debug("where", exc_info=True)
            response = html(
                pages.failure_page("That failed", "The console made a mistake; see its log."), 500
            )
        response.headers.update(HEADERS)
        return response

    return answer


def _failure(failure: NamespaceFailure, place: str, readable: bool) -> web.Response:
    title, advice = FAILURES[failure.problem]
    live = readable and failure.problem is FailureKind.AWAY
    text = pages.failure_page(
        title, failure.text, f"{advice} {TRIES_AGAIN}" if live else advice, place=place, live=live
    )
    return html(text, STATUS[failure.problem])


def _http_failure(error: web.HTTPException) -> str:
    if error.status == 404:
        return pages.failure_page(
            "There is no such page",
            "The console has no page with this address.",
            "The links at the top lead to all pages.",
        )
    return pages.failure_page(
        error.reason, "The console cannot answer this request.", "Go back and try it again."
    )


def _asset(name: str, content_type: str) -> Handler:
    body = resources.files("busbar.console").joinpath(name).read_bytes()

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return handle
