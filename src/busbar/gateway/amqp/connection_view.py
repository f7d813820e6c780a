"""What operators see of one connection and its links, from what the protocol keeps of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from busbar.amqp.credit import delivered
from busbar.amqp.link import Link
from busbar.gateway.address import plain_path
from busbar.gateway.amqp.attach import GatewayLink
from busbar.gateway.amqp.connection_links import ConnectionLinks
from busbar.gateway.amqp.coordinator import CoordinatorLink
from busbar.gateway.amqp.incoming import IncomingLink
from busbar.gateway.amqp.outgoing import OutgoingLink
from busbar.gateway.amqp.requests import ReplyLink
from busbar.model.connection_views import LinkShown

MAX_TEXT = 120
"""Characters that are kept of what a client calls itself. It may be unauthenticated."""
_PRODUCT = ("product", "version", "platform")


def product_of(properties: Mapping[object, object]) -> str:
    """The client library of an open frame. A user agent names it too, behind what the application calls itself."""
    names = ("user-agent",) if properties.get("user-agent") else _PRODUCT
    text = " ".join(str(properties[name])[: MAX_TEXT + 1] for name in names if properties.get(name))
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def address_text(peername: object) -> str:
    """Host and port of a client; empty if they are not known."""
    if not isinstance(peername, tuple) or len(peername) < 2:
        return ""
    host = f"[{peername[0]}]" if ":" in str(peername[0]) else str(peername[0])
    return f"{host}:{peername[1]}"


def shown_links(links: ConnectionLinks) -> Iterator[LinkShown]:
    for link, attached in links.attached():
        yield LinkShown(
            link.name[:MAX_TEXT],
            attached.path or _address(link),
            _role(attached.end),
            delivered(link.delivery_count, link.uncounted),
            unsettled=link.unsettled,
            credit=link.credit,
        )


def _address(link: Link) -> str:
    end = link.source if link.sending else link.target
    return plain_path(end.address or "") if end is not None else ""


def _role(end: GatewayLink) -> str:
    if isinstance(end, IncomingLink):
        return "sender"
    if isinstance(end, OutgoingLink):
        return "receiver"
    if isinstance(end, CoordinatorLink):
        return "transactions"
    return "replies" if isinstance(end, ReplyLink) else "requests"
