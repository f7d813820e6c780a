"""What all handlers share: how a request is read, and how an answer is made."""

from __future__ import annotations

from aiohttp import web

from busbar.console.namespace import Address, EntityType, FailureKind

LIMIT = 50
"""Maximum number of entities of a list on one page."""
MAX_START = 1_000_000
MAX_SEARCH = 260
CSRF = web.RequestKey("csrf", str)
STATUS = {FailureKind.NOT_FOUND: 404, FailureKind.REFUSED: 400, FailureKind.AWAY: 503}


def html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html")


def address_of(kind: EntityType, request: web.Request) -> Address:
    topic = request.query.get("topic", "") if kind is EntityType.SUBSCRIPTION else ""
    return Address(kind, request.query.get("name", ""), topic)


def start_of(request: web.Request, name: str) -> int:
    text = request.query.get(name, "")
    return min(int(text), MAX_START) if text.isascii() and text.isdigit() and len(text) <= 9 else 0


def search_of(request: web.Request) -> str:
    return request.query.get("search", "").strip()[:MAX_SEARCH]


async def read_form(request: web.Request) -> dict[str, str]:
    """The fields of a form; of a repeated field, the first. aiohttp keeps what it read."""
    fields = await request.post()
    return {key: value for key, value in reversed(list(fields.items())) if isinstance(value, str)}
