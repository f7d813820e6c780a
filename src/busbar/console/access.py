"""Restricts the console to the person who started it, in a browser on this machine, and to its own pages.

1. The Host header must name loopback. If the name of another site is made to resolve to 127.0.0.1, its pages are refused.
2. `SIGN_IN?token=...` is printed once, and its token works once. It is exchanged for a cookie that scripts cannot read and
   other sites cannot send (HttpOnly, SameSite=Strict). So an address in a history or a list of processes is useless. The
   answer is a page, not a redirect: after a link from another site, a browser would not send a strict cookie with the
   redirect.
3. Without the cookie everything but the sign-in is 403.
4. A change is a POST with the form's CSRF token, which derives from the cookie. A request that names another origin is
   refused in any case.
5. Every answer forbids frames, foreign content, inline script and caches. Tokens are in no page, log or later address.

Cookies do not depend on the port. So the name of the cookie has the port, and two consoles do not sign each other out.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from urllib.parse import urlsplit

from aiohttp import web

SIGN_IN = "/sign-in"
CSRF_FIELD = "csrf"
BROWSERS = 64
"""Maximum number of signed-in browsers; beyond it the oldest is signed out."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class AccessDenied(Exception):
    """The request is not allowed; the text states what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Access:
    def __init__(self) -> None:
        self._unused: set[str] = set()
        self._browsers: dict[str, None] = {}
        self._secret = secrets.token_bytes(32)

    def new_token(self) -> str:
        """A token for one sign-in."""
        token = secrets.token_urlsafe(32)
        self._unused.add(token)
        return token

    def sign_in(self, token: str) -> str | None:
        """The value of the cookie, if the token is valid. A token is valid once."""
        found = next((each for each in self._unused if _same(each, token)), None)
        if found is None:
            return None
        self._unused.remove(found)
        while len(self._browsers) >= BROWSERS:
            del self._browsers[next(iter(self._browsers))]
        cookie = secrets.token_urlsafe(32)
        self._browsers[cookie] = None
        return cookie

    def browser(self, request: web.Request) -> str | None:
        """The cookie, if the console issued it."""
        given = request.cookies.get(cookie_name(request), "")
        return next((each for each in self._browsers if _same(each, given)), None)

    def csrf(self, browser: str) -> str:
        return hmac.new(self._secret, browser.encode(), hashlib.sha256).hexdigest()

    def check_change(self, request: web.Request, browser: str, csrf: str) -> None:
        """Check a POST. Raises AccessDenied if it is not from one of the console's own forms."""
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise AccessDenied("This change was asked for by another site; nothing was done.")
        if not _same(self.csrf(browser), csrf):
            raise AccessDenied("This form is from an earlier console. Load its page again, and send it anew.")


def check_host(host: str) -> None:
    """Check the host. Raises AccessDenied unless it is this machine's loopback."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        local = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    if not local:
        raise AccessDenied("The console answers to localhost and 127.0.0.1 only.")


def cookie_name(request: web.Request) -> str:
    port = request.url.port
    return f"busbar-console-{port}"


def set_cookie(request: web.Request, response: web.Response, value: str) -> None:
    response.set_cookie(cookie_name(request), value, path="/", httponly=True, samesite="Strict")


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "surrogatepass"))
