"""Management over HTTP, as the administration clients of all SDKs use it.

    GET     an entity: its description and its counts; a list: a page of entities
    PUT     without If-Match creates (201); with `If-Match: *` updates (200)
    DELETE  removes (200)

1. Every request needs Manage on its path. That is decided before any lookup.
2. If a client sets a forwarding target, it must have the right to send there. The token of the request can give it, or the
   one in the header for it (`ServiceBusSupplementaryAuthorization`, `ServiceBusDlqSupplementaryAuthorization`).
3. An entity has no ETag: `If-Match` is `*` or fails.
4. A list with `$search` has the entities whose names contain that text, in any case. It is an addition to the service.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote
from xml.etree.ElementTree import Element

from aiohttp import web

from busbar.clock import wall_clock
from busbar.gateway.http.atom_description import EntityAnswer, Site, read_description
from busbar.gateway.http.atom_feed import (
    ENTRY_TYPE,
    FEED_TYPE,
    discovery_document,
    entry_document,
    feed_document,
    namespace_document,
)
from busbar.gateway.http.atom_path import ManagementPath, ManagementPathKind, read_target
from busbar.gateway.http.atom_rule import read_default_rule, read_rule
from busbar.gateway.http.atom_values import PARTITIONING, check_partitioning, is_partitioned, read_version
from busbar.gateway.http.atom_xml import read_entry
from busbar.gateway.http.authorization import authorize, authorize_token
from busbar.gateway.http.errors import PreconditionFailed
from busbar.gateway.http.requests import check_method, path_of, read_body
from busbar.gateway.services import GatewayServices
from busbar.model.api import EntityListing, EntityView, RuntimeProperties
from busbar.model.entities import (
    Description,
    EntityDescription,
    EntityKind,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.errors import ArgumentError, Unauthorized
from busbar.model.names import parent_and_name
from busbar.model.sas import MANAGE, SEND

PAGE = 100
LISTED_AT_ONCE = 1_000

_Method = Callable[[], Awaitable[web.Response]]

_FORWARDS = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_messages_to": "ServiceBusDlqSupplementaryAuthorization",
}
_DISCOVERY = {"Queues": "$Resources/Queues", "Topics": "$Resources/Topics"}
_CONTENT: dict[EntityKind | None, tuple[str, ...]] = {
    None: ("QueueDescription", "TopicDescription"),
    EntityKind.SUBSCRIPTION: ("SubscriptionDescription",),
    EntityKind.RULE: ("RuleDescription",),
}

_KINDS: dict[str, type[EntityDescription]] = {
    kind.__name__: kind for kind in (QueueDescription, TopicDescription, SubscriptionDescription)
}


async def handle(request: web.Request, services: GatewayServices) -> web.StreamResponse:
    target = read_target(path_of(request))
    await authorize(request, MANAGE, target.path, services)
    limits = services.limits
    site = Site(
        request.scheme,
        request.host,
        read_version(request.query.get("api-version")),
        limits.default_message_size or limits.max_message_size,
        wall_clock(),
    )
    management = _Management(request, services, target, site)
    methods = management.methods()
    check_method(request, methods, f"'/{target.path}'")
    return await methods[request.method]()


class _Management:
    """One request: its target, and the site from which it came."""

    def __init__(
        self, request: web.Request, services: GatewayServices, target: ManagementPath, site: Site
    ) -> None:
        self._request = request
        self._services = services
        self._catalogue = services.broker
        self._target = target
        self._site = site

    def methods(self) -> dict[str, _Method]:
        match self._target.place:
            case ManagementPathKind.ROOT:
                return {"GET": self._discover}
            case ManagementPathKind.NAMESPACE:
                return {"GET": self._namespace}
            case ManagementPathKind.LIST:
                return {"GET": self._list}
            case ManagementPathKind.ENTITY:
                return {"GET": self._get, "PUT": self._put, "DELETE": self._delete}

    async def _discover(self) -> web.Response:
        return _answer(200, FEED_TYPE, discovery_document(_DISCOVERY, self._site))

    async def _namespace(self) -> web.Response:
        return _answer(200, ENTRY_TYPE, namespace_document(await self._catalogue.namespace(), self._site))

    async def _get(self) -> web.Response:
        view = await self._catalogue.entity(self._target.path)
        await self._check_version(view.path, view.description)
        return await self._entry(200, view)

    async def _list(self) -> web.Response:
        target = self._target
        assert target.kind is not None
        skip = self._number("$skip", 0)
        top = min(self._number("$top", PAGE), PAGE)
        await self._check_version(target.path, None)
        search = self._request.query.get("$search", "").strip()
        page = await (
            self._search(target.kind, search, skip, top)
            if search
            else self._catalogue.page(target.kind, target.parent, skip, top)
        )
        entries = []
        for view, runtime in zip(page.entities, page.runtimes, strict=True):
            check_partitioning(view.path, is_partitioned(view.description), self._site.version)
            entries.append(EntityAnswer(view, runtime, self._site))
        following = f"$skip={skip + top}&$top={top}&" if top and page.has_more else ""
        if following and search:
            following += f"$search={quote(search, safe='')}&"
        kind = f"{target.kind.value}s"
        document = feed_document(target.path, kind, entries, self._site, page.namespace, following)
        return _answer(200, FEED_TYPE, document)

    async def _search(self, kind: EntityKind, text: str, skip: int, top: int) -> EntityListing:
        """The entities of the list whose names contain a text. Names are in memory, so all are looked at."""
        found: list[EntityView] = []
        seen = 0
        while len(found) <= skip + top:
            views = await self._catalogue.list(kind, self._target.parent, seen, LISTED_AT_ONCE)
            if not views:
                break
            seen += len(views)
            found += [view for view in views if text.lower() in parent_and_name(view.path)[1].lower()]
        shown = found[skip : skip + top]
        runtimes = await self._catalogue.runtimes([view.path for view in shown])
        pairs = [(view, now) for view, now in zip(shown, runtimes, strict=True) if now is not None]
        return EntityListing(
            (await self._catalogue.namespace()).name,
            [view for view, _ in pairs],
            [now for _, now in pairs],
            len(found) > skip + top,
        )

    async def _put(self) -> web.Response:
        limits = self._services.limits
        body = await read_body(self._request, limits.http_management_body, limits.http_body_timeout)
        name, element = read_entry(body)
        expected = _CONTENT[self._target.kind]
        if name not in expected:
            raise ArgumentError(
                f"The entry's content is a '{name[:60]}'; for '{self._target.path}' it must be a "
                f"{' or a '.join(expected)}."
            )
        match = self._request.headers.get("If-Match")
        if match is None:
            return await self._create(name, element)
        if match.strip().strip('"') != "*":
            raise PreconditionFailed(f"If-Match is '{match[:60]}'; entities have no ETag, use '*'.")
        return await self._update(name, element)

    async def _create(self, name: str, element: Element) -> web.Response:
        path = self._target.path
        description = _read(name, element, None, self._site)
        await self._check_version(path, description)
        await self._check_forwards(description, None)
        default_rule = (
            read_default_rule(element) if isinstance(description, SubscriptionDescription) else None
        )
        return await self._entry(201, await self._catalogue.create(path, description, default_rule))

    async def _update(self, name: str, element: Element) -> web.Response:
        view = await self._catalogue.entity(self._target.path)
        kind = type(view.description).__name__
        if name != kind:
            raise ArgumentError(f"The entry's content is a '{name}'; the entity '{view.path}' has a {kind}.")
        await self._check_version(view.path, view.description)
        description = _read(name, element, view.description, self._site)
        await self._check_forwards(description, view.description)
        return await self._entry(200, await self._catalogue.update(view.path, description))

    async def _delete(self) -> web.Response:
        view = await self._catalogue.entity(self._target.path)
        await self._check_version(view.path, view.description)
        await self._catalogue.delete(view.path)
        return web.Response(status=200)

    async def _check_version(self, path: str, description: Description | None) -> None:
        """Check that the entity of the request, and the topic it belongs to, exist in its api-version."""
        version = self._site.version
        if description is not None:
            check_partitioning(path, is_partitioned(description), version)
        if self._target.topic and version < PARTITIONING:
            topic = await self._catalogue.entity(self._target.topic)
            check_partitioning(topic.path, is_partitioned(topic.description), version)

    async def _check_forwards(self, description: Description, current: Description | None) -> None:
        """Check that the client may send to each new target of forwarding. Raises Unauthorized."""
        for attribute, header in _FORWARDS.items():
            destination: str = getattr(description, attribute, "")
            if not destination or destination == getattr(current, attribute, ""):
                continue
            try:
                await authorize(self._request, SEND, destination, self._services)
            except Unauthorized:
                token = self._request.headers.get(header, "")
                if not token:
                    raise Unauthorized(
                        f"The token does not cover '{destination}', to which '{self._target.path}' is to forward; "
                        f"give one that does in the header {header}."
                    ) from None
                await authorize_token(token, SEND, destination, self._services)

    async def _entry(self, status: int, view: EntityView) -> web.Response:
        author = (await self._catalogue.namespace()).name
        return _answer(status, ENTRY_TYPE, entry_document(await self._build_answer(view), author))

    async def _build_answer(self, view: EntityView) -> EntityAnswer:
        if isinstance(view.description, RuleDescription):
            return EntityAnswer(view, RuntimeProperties(), self._site)
        return EntityAnswer(view, await self._catalogue.runtime(view.path), self._site)

    def _number(self, name: str, default: int) -> int:
        text = self._request.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise ArgumentError(f"{name} is '{text[:40]}'; it must be a number that is not negative.")
        return int(text)


def _read(name: str, element: Element, current: Description | None, site: Site) -> Description:
    if name == "RuleDescription":
        return read_rule(element)
    return read_description(_KINDS[name], element, current, site)


def _answer(status: int, content_type: str, document: bytes) -> web.Response:
    return web.Response(status=status, body=document, headers={"Content-Type": content_type})
