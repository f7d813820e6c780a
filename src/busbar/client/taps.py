"""Taps of an entity: durable, named positions, and bulk reading of the messages behind them.

Positions are numbers within a fragment, by the fragment's index (0 to 15; a regular entity has only fragment 0). The
sequence number of a message is index << 48 | number. Reads, and operations that change nothing when repeated, are retried by
the factory's Retry. `create` and `delete` are not retried once they were sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from busbar.client.errors import BusbarClientError, error_of
from busbar.client.requests import RequestNode
from busbar.client.tap_selection import TapSelection

if TYPE_CHECKING:
    from busbar.client.factory import MessagingFactory

MESSAGES = "messages"
EVENTS = "events"
PAGE_MESSAGES = 10_000
PAGE_BYTES = 4 * 1024 * 1024
AHEAD = 2

Body = dict[str, object]
Span = tuple[int, int, int]
"""A range of a fragment: its index, the position behind which it begins, and the last one."""


@dataclass(frozen=True, slots=True)
class FragmentTap:
    """A tap in one fragment. If it is not `available` (its store is unavailable), the other fields have no meaning."""

    index: int
    position: int
    """The tap has passed everything up to here."""
    lost: int
    """Something up to here was dropped before the tap passed it (0: nothing)."""
    end: int
    """Nothing at or below it will ever appear or change."""
    event_position: int
    event_lost: int
    event_end: int
    kept: int
    kept_bytes: int
    truncated: bool
    available: bool


@dataclass(frozen=True, slots=True)
class TapView:
    """A tap. Times are ms, `created` since 1970."""

    name: str
    entity: str
    incarnation: str
    """Of the entity: it is different after the entity was deleted and created again."""
    dead_letter: bool
    events: bool
    consumes: bool
    owner: str
    max_age: int
    max_size: int
    lease: int
    created: int
    truncated: bool
    fragments: tuple[FragmentTap, ...]
    reader: str = ""
    """What reads it, for people; '' if the broker does not know."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of an entity now, by fragment: nothing at or below these positions will ever appear or change. Fragments in
    unavailable stores are missing."""

    entity: str
    incarnation: str
    fragments: int
    ends: dict[int, int]
    dead_ends: dict[int, int]
    event_ends: dict[int, int]


@dataclass(frozen=True, slots=True)
class Page:
    """Encoded rows (`busbar.pages.rows` reads them). They are all selected rows up to `upto`."""

    rows: bytes
    count: int
    upto: int
    scanned: int
    """The messages that the broker read for it; more than `count` if a selection left some out."""


class Taps:
    """The taps of one entity. MessagingFactory.taps creates it."""

    def __init__(self, factory: MessagingFactory, entity: str, address: str) -> None:
        self.entity = entity
        self._factory = factory
        self._address = address

    async def node(self) -> RequestNode:
        return await self._factory.node(self.entity, self._address)

    # ---- the taps --------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        *,
        events: bool = False,
        consumes: bool = False,
        from_earliest: bool = False,
        owner: str = "",
        max_age: int | None = None,
        max_size: int | None = None,
        lease: int | None = None,
    ) -> TapView:
        """Create a tap; `max_age` and `lease` in ms, `max_size` in bytes of each fragment. Raises AlreadyExists."""
        body: Body = {"name": name, "events": events, "consumes": consumes}
        body |= {"from-earliest": from_earliest, "owner": owner}
        limits = {"max-age": max_age, "max-size": max_size, "lease": lease}
        body |= {key: value for key, value in limits.items() if value is not None}
        return _view(await self._ask_once("busbar:create-tap", body))

    async def show(self, name: str) -> TapView:
        return _view(await self._ask("busbar:show-tap", {"name": name}))

    async def list(self) -> tuple[TapView, ...]:
        reply = await self._ask("busbar:list-taps", {})
        views = reply.get("taps")
        if not isinstance(views, list):
            raise _unexpected_reply("taps", views)
        return tuple(_view(view) for view in views if isinstance(view, dict))

    async def delete(self, name: str) -> None:
        await self._ask_once("busbar:delete-tap", {"name": name})

    async def own(self, name: str, owner: str, *, take_over: bool = False, reader: str = "") -> TapView:
        """Make `owner` the only one that can advance the tap. Raises TapOwned if it has another owner, unless it is taken
        over. `reader` is what lists of taps show as its reader."""
        body: Body = {"name": name, "owner": owner, "take-over": take_over}
        return _view(await self._ask("busbar:own-tap", body | ({"reader": reader} if reader else {})))

    async def advance(
        self, name: str, owner: str, positions: Mapping[int, int], *, stream: str = MESSAGES
    ) -> None:
        """Advance the tap to these positions, by fragment. Going back changes nothing."""
        body: Body = {"name": name, "owner": owner, "stream": stream, "positions": dict(positions)}
        await self._ask("busbar:advance-tap", body)

    async def resume(self, name: str, owner: str) -> TapView:
        """Let a truncated tap continue behind the loss."""
        return _view(await self._ask("busbar:resume-tap", {"name": name, "owner": owner}))

    # ---- positions and messages ------------------------------------------------------------------

    async def find_time(self, time: int) -> dict[int, int]:
        """Find, by fragment, the position behind which everything was enqueued at a time (ms since 1970) or later."""
        return _positions(await self._ask("busbar:find-time", {"time": time}), "positions")

    async def ends(self) -> Ends:
        reply = await self._ask("busbar:ends", {})
        return Ends(
            _text(reply, "entity"),
            _text(reply, "incarnation"),
            _number(reply, "fragments"),
            _positions(reply, "ends"),
            _positions(reply, "dead-ends"),
            _positions(reply, "event-ends"),
        )

    async def read(
        self,
        name: str | None,
        fragment: int,
        after: int,
        upto: int,
        *,
        stream: str = MESSAGES,
        count: int = PAGE_MESSAGES,
        max_bytes: int = PAGE_BYTES,
        select: TapSelection | None = None,
    ) -> Page:
        """Read the messages behind one position, up to another. Without a name, read what the entity holds for receivers.

        `select` has conditions and parts of messages; it is for messages, not for events. Raises TapTruncated and TapPassed
        for positions that the tap has passed.
        """
        body: Body = {"name": name, "fragment": fragment, "stream": stream, "after": after, "upto": upto}
        body |= {"count": count, "max-bytes": max_bytes}
        selects = select is not None and not select.is_everything
        if select is not None and selects:
            body["select"] = select.to_body()
        reply = await self._ask("busbar:read-tap", body)
        rows = reply.get("rows")
        if not isinstance(rows, bytes):
            raise _unexpected_reply("rows", rows)
        found = _number(reply, "count")
        # An older broker ignores `select`, and does not report what it has scanned.
        scanned = _number(reply, "scanned") if selects else found
        return Page(rows, found, _number(reply, "upto"), scanned)

    async def pages(
        self,
        name: str | None,
        fragment: int,
        after: int,
        upto: int,
        *,
        stream: str = MESSAGES,
        count: int = PAGE_MESSAGES,
        max_bytes: int = PAGE_BYTES,
        select: TapSelection | None = None,
    ) -> AsyncGenerator[Page, None]:
        """Yield all pages of a range of one fragment; see `pages_of`."""
        spans = [(fragment, after, upto)]
        found = self.pages_of(name, spans, stream=stream, count=count, max_bytes=max_bytes, select=select)
        async with aclosing(found):
            async for _, page in found:
                yield page

    async def pages_of(
        self,
        name: str | None,
        spans: Iterable[Span],
        *,
        stream: str = MESSAGES,
        count: int = PAGE_MESSAGES,
        max_bytes: int = PAGE_BYTES,
        select: TapSelection | None = None,
    ) -> AsyncGenerator[tuple[int, Page], None]:
        """Yield all pages of ranges of fragments, one range after the other, up to two pages read ahead.

        It ends early if the broker returns no more now: a consuming tap does not pass messages that receivers have locked.
        """
        ready: asyncio.Queue[tuple[int, Page] | BaseException | None] = asyncio.Queue(AHEAD - 1)

        async def read_ahead() -> None:
            try:
                for fragment, position, upto in spans:
                    while position < upto:
                        page = await self.read(
                            name,
                            fragment,
                            position,
                            upto,
                            stream=stream,
                            count=count,
                            max_bytes=max_bytes,
                            select=select,
                        )
                        if page.upto <= position:
                            await ready.put(None)
                            return
                        position = page.upto
                        await ready.put((fragment, page))
                await ready.put(None)
            except Exception as error:
                await ready.put(error)

        reading = asyncio.get_running_loop().create_task(read_ahead())
        try:
            while (item := await ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            reading.cancel()

    async def commit_writes(self, writer: str, batch: int) -> None:
        """Commit a batch of a writer: sends of earlier batches are refused from now on, and their ids forgotten."""
        await self._ask("busbar:commit-writes", {"writer": writer, "batch": batch})

    # ---- requests --------------------------------------------------------------------------------

    async def _ask(self, operation: str, body: Body) -> Body:
        return await self._factory.retry.run(lambda: self._exchange(operation, body))

    async def _ask_once(self, operation: str, body: Body) -> Body:
        """Send a request that must not be repeated: only connecting is retried."""
        await self._factory.retry.run(self.node)
        return await self._exchange(operation, body)

    async def _exchange(self, operation: str, body: Body) -> Body:
        node = await self.node()
        reply = await node.ask(body, {"operation": operation}, self._factory.operation_timeout)
        said = reply.application_properties
        status = said.get("statusCode")
        if status not in (200, 202, 204):
            condition = said.get("errorCondition")
            text = str(said.get("statusDescription") or f"{operation} was answered with {status}")
            raise error_of(str(condition) if isinstance(condition, str) else "", text)
        value = reply.value
        return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def _view(reply: Mapping[str, object]) -> TapView:
    fragments = reply.get("fragments")
    return TapView(
        _text(reply, "name"),
        _text(reply, "entity"),
        _text(reply, "incarnation"),
        reply.get("dead-letter") is True,
        reply.get("events") is True,
        reply.get("consumes") is True,
        _text(reply, "owner"),
        _number(reply, "max-age"),
        _number(reply, "max-size"),
        _number(reply, "lease"),
        _number(reply, "created"),
        reply.get("truncated") is True,
        tuple(_fragment(item) for item in fragments if isinstance(item, dict))
        if isinstance(fragments, list)
        else (),
        _text(reply, "reader") if "reader" in reply else "",  # brokers of earlier versions have none
    )


def _fragment(reply: Mapping[str, object]) -> FragmentTap:
    return FragmentTap(
        _number(reply, "index"),
        _number(reply, "position"),
        _number(reply, "lost"),
        _number(reply, "end"),
        _number(reply, "event-position"),
        _number(reply, "event-lost"),
        _number(reply, "event-end"),
        _number(reply, "kept"),
        _number(reply, "kept-bytes"),
        reply.get("truncated") is True,
        reply.get("available") is True,
    )


def _text(reply: Mapping[str, object], key: str) -> str:
    value = reply.get(key)
    if not isinstance(value, str):
        raise _unexpected_reply(key, value)
    return str(value)


def _number(reply: Mapping[str, object], key: str) -> int:
    value = reply.get(key)
    if not isinstance(value, int):
        raise _unexpected_reply(key, value)
    return int(value)


def _positions(reply: Mapping[str, object], key: str) -> dict[int, int]:
    value = reply.get(key)
    if not isinstance(value, dict):
        raise _unexpected_reply(key, value)
    return {
        int(index): int(position)
        for index, position in value.items()
        if isinstance(index, int) and isinstance(position, int)
    }


def _unexpected_reply(key: str, value: object) -> BusbarClientError:
    shown = "missing" if value is None else f"a {type(value).__name__}"
    return BusbarClientError(f"'{key}' of the broker's reply is {shown}: is it a Busbar of this version?")
