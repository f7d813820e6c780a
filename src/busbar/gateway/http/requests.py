"""Reads a request: its path, and its body within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from urllib.parse import unquote_to_bytes

from aiohttp import web

from busbar.model.errors import ArgumentError, MessageSizeExceeded, OperationTimeout


def path_of(request: web.Request) -> str:
    """The path inside the namespace, percent-decoded, without outer slashes. Raises ArgumentError for a path that no entity
    can have: names are compared as text, so nothing may be hidden in them."""
    raw = request.raw_path.split("?", 1)[0]
    if "://" in raw.split("/$", 1)[0]:  # the absolute form, as for a proxy
        raw = "/" + raw.split("://", 1)[1].partition("/")[2]
    try:
        path = unquote_to_bytes(raw.encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError:
        raise ArgumentError("The path of the request is not UTF-8.") from None
    path = path.strip("/")
    for segment in path.split("/") if path else ():
        if segment in ("", ".", ".."):
            raise ArgumentError(
                f"The path '{path}' has the segment '{segment}', which no entity name can have."
            )
    bad = next((char for char in path if char < " " or char in "\\\x7f"), "")
    if bad:
        raise ArgumentError(
            f"The path of the request has the character {bad!r}, which no entity name can have."
        )
    return path


def check_method(request: web.Request, allowed: Collection[str], where: str) -> None:
    """Check the method. Raises HTTPMethodNotAllowed, which names the allowed ones."""
    if request.method not in allowed:
        text = f"{request.method} is not an operation of {where}; it takes {', '.join(allowed)}."
        raise web.HTTPMethodNotAllowed(request.method, allowed, text=text)


def number_of(request: web.Request, name: str, usual: int) -> int:
    """A number of the query, or the usual one. Raises ArgumentError."""
    text = request.query.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ArgumentError(f"'{name}' is '{text[:40]}'; it must be a number.")
    return int(text)


def refuse_large(request: web.Request, maximum: int) -> None:
    """Refuse a body whose announced size is too large, before any of it is read."""
    announced = request.content_length
    if announced is not None and announced > maximum:
        raise MessageSizeExceeded(
            f"The body of the request has {announced} bytes; at most {maximum} are taken."
        )


async def read_body(request: web.Request, maximum: int, wait: int) -> bytes:
    """Read the whole body: at most `maximum` bytes, within `wait` ms."""
    refuse_large(request, maximum)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(wait / 1000):
            async for part in request.content.iter_any():
                size += len(part)
                if size > maximum:
                    raise MessageSizeExceeded(f"The body of the request has more than {maximum} bytes.")
                parts.append(part)
    except TimeoutError:
        raise OperationTimeout(f"The body of the request did not come within {wait // 1000} s.") from None
    return b"".join(parts)
