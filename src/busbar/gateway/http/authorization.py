"""Whether a request may do what it asks: the same decision as for `$cbs` and SASL PLAIN, taken by the authority.

The token is in the Authorization header, as `SharedAccessSignature sr=..&sig=..&se=..&skn=..`. What it was signed for
differs: the Python SDK signs the root of the namespace, the others the path they ask for, samples a parent of it. Each
covers itself and what is below it. A token is taken up to a minute after its end: the Python SDK renews no sooner.
"""

from __future__ import annotations

from urllib.parse import quote

from aiohttp import web

from busbar.gateway.authority import Grant
from busbar.gateway.http.namespace import HttpContext
from busbar.model.errors import Unauthorized

EXPIRY_GRACE = 60_000


async def authorize(request: web.Request, right: str, path: str, context: HttpContext) -> Grant:
    """The grant that gives `right` on `path`. Raises Unauthorized."""
    return await authorize_token(request.headers.get("Authorization", ""), right, path, context, request.host)


async def authorize_token(token: str, right: str, path: str, context: HttpContext, host: str = "") -> Grant:
    """The same for a token from elsewhere (a supplementary header). `host` is what the client calls us."""
    if not token:
        raise Unauthorized("MissingToken: The request has no Authorization header.")
    try:
        audience = f"https://{host}/{quote(path)}"
        grant = context.authority.verify_token(token, audience, context.clock(), EXPIRY_GRACE)
    except Unauthorized as error:
        raise Unauthorized(f"InvalidToken: {error.text}") from None
    if not grant.covers(path):
        raise Unauthorized(
            f"InvalidToken: The token is signed for '{grant.path}', which does not include '{path}'."
        )
    if right not in grant.rights:
        raise Unauthorized(f"Unauthorized access: the token lacks the claim '{right}' on '{path}'.")
    return grant
