"""Decides whether a request may do what it asks for: the same decision as for `$cbs` and SASL PLAIN, by the authority.

The token is in the Authorization header, as `SharedAccessSignature sr=..&sig=..&se=..&skn=..`. SDKs sign different
resources: the Python SDK the root of the namespace, the others the path of the request, samples a parent of it. A token
covers its resource and everything below it. It is valid for `token_grace` after its end, because the Python SDK renews no
sooner.
"""

from __future__ import annotations

from aiohttp import web

from busbar.clock import wall_clock
from busbar.gateway.authority import Grant
from busbar.gateway.refused_tokens import host_of
from busbar.gateway.services import GatewayServices
from busbar.model.errors import Unauthorized


async def authorize(request: web.Request, right: str, path: str, services: GatewayServices) -> Grant:
    """The grant that gives `right` on `path`. Raises Unauthorized."""
    token = request.headers.get("Authorization", "")
    try:
        return await authorize_token(token, right, path, services)
    except Unauthorized as error:
        if token:  # a request without a token is refused and not logged
            peername = None if request.transport is None else request.transport.get_extra_info("peername")
            services.authority.refused.token(host_of(peername), token, error.text, wall_clock())
        raise


async def authorize_token(token: str, right: str, path: str, services: GatewayServices) -> Grant:
    """The grant of a token from elsewhere (a supplementary header). Raises Unauthorized."""
    if not token:
        raise Unauthorized("MissingToken: The request has no Authorization header.")
    try:
        grant = services.authority.verify_token(token, "", wall_clock(), services.limits.token_grace)
    except Unauthorized as error:
        raise Unauthorized(f"InvalidToken: {error.text}") from None
    if not grant.covers(path):
        raise Unauthorized(
            f"InvalidToken: The token is signed for '{grant.path}', which does not include '{path}'."
        )
    if right not in grant.rights:
        raise Unauthorized(f"Unauthorized access: the token lacks the claim '{right}' on '{path}'.")
    return grant
