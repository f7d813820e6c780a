"""The operations of a management node on taps, and on what writers have committed.

    create-tap    Manage  name, events, consumes, from-earliest, owner, max-age, max-size, lease   the tap
    show-tap      Listen  name                                                                     the tap
    list-taps     Listen                                                                           taps
    delete-tap    Manage  name
    own-tap       Listen  name, owner, take-over, reader                                           the tap
    advance-tap   Listen  name, owner, stream, positions
    resume-tap    Listen  name, owner                                                              the tap
    find-time     Listen  time                                                                     positions
    ends          Listen                                      entity, incarnation, fragments, ends, dead-ends, event-ends
    read-tap      Listen  name, fragment, stream, after, upto, count, max-bytes                    rows, count, upto
    commit-writes Send    writer, batch

The names begin with `busbar:`. The node of a queue or subscription is for its taps, that of its dead-letter queue for those
of the dead-letter queue. A topic keeps no messages, so it has no taps. Writers write to topics and queues: commit-writes is
for those two. Times and durations are ms, positions are numbers within a fragment, fragments are named by their index. Maps
of positions have one entry for each fragment that answers. A fragment whose store is unavailable is shown as not available.
A request for several fragments reaches all that can be reached. If one cannot, the request fails and can be repeated: each
of these operations may be done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.management_request import Operations, Reply, RequestBody
from busbar.gateway.amqp.tap_selection import selector_of
from busbar.gateway.amqp.writer_properties import writer_of
from busbar.message.decoded import BinaryParts
from busbar.model.api import EntityView
from busbar.model.commands import (
    EVENTS,
    MESSAGES,
    AdvanceTap,
    Command,
    CommitWrites,
    FindTime,
    ReadTap,
    ResumeTap,
    ShowTaps,
)
from busbar.model.effects import Effect, EventPage, PositionFound, TapPage, TapState, TapStates
from busbar.model.entities import SubscriptionDescription, TopicDescription
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    EntityNotFound,
    InvalidOperation,
    ServerBusy,
    TapNotFound,
)
from busbar.model.message import DEAD, TRANSFER_DEAD
from busbar.model.names import key_of
from busbar.model.partitioning import NUMBER_MASK
from busbar.model.sas import LISTEN, MANAGE, SEND
from busbar.model.tap_page import HEAD
from busbar.model.taps import TapChange, TapDescription, reader_of
from busbar.pages.rows import encode_events, encode_messages

STREAMS: Final = {"messages": MESSAGES, "events": EVENTS}
NO_STATE: Final = TapState(0, 0, 0, 0, 0, False, 0, 0)

E = TypeVar("E", bound=Effect)
Build = Callable[[int, int], Command]
"""Makes the command for the fragment with an index, with a request number."""


class TapOperations:
    """The tap operations of one queue, subscription or topic, or of a dead-letter queue."""

    def __init__(self, peer: LinkConnection, entity: EntityView, sub: int) -> None:
        self._peer = peer
        self._path = entity.path
        self._fragments = entity.fragments
        self._sub = sub
        self._dead_letter = sub == DEAD
        self._subscription = isinstance(entity.description, SubscriptionDescription)
        self._topic = isinstance(entity.description, TopicDescription)

    @property
    def operations(self) -> Operations:
        operations: Operations = {
            "busbar:create-tap": (MANAGE, self._create),
            "busbar:show-tap": (LISTEN, self._show),
            "busbar:list-taps": (LISTEN, self._list),
            "busbar:delete-tap": (MANAGE, self._delete),
            "busbar:own-tap": (LISTEN, self._own),
            "busbar:advance-tap": (LISTEN, self._advance),
            "busbar:resume-tap": (LISTEN, self._resume),
            "busbar:find-time": (LISTEN, self._find_time),
            "busbar:ends": (LISTEN, self._ends),
            "busbar:read-tap": (LISTEN, self._read),
        }
        if self._topic or self._sub == TRANSFER_DEAD:
            operations = {name: (right, self._refuse) for name, (right, _) in operations.items()}
        operations["busbar:commit-writes"] = (SEND, self._commit_writes)
        return operations

    async def _refuse(self, body: RequestBody) -> Reply:
        if self._sub == TRANSFER_DEAD:
            raise InvalidOperation(f"The transfer dead-letter queue of '{self._path}' cannot have taps.")
        raise InvalidOperation(
            f"'{self._path}' is a topic, which keeps no messages: what can be read, and taps, are with its "
            "subscriptions."
        )

    # ---- the taps of the entity ----

    async def _create(self, body: RequestBody) -> Reply:
        default = TapDescription("")
        tap = TapDescription(
            name=body.text("name"),
            dead_letter=self._dead_letter,
            events=body.flag("events"),
            consumes=body.flag("consumes"),
            from_earliest=body.flag("from-earliest"),
            owner=body.text("owner") if body.has("owner") else "",
            max_age=body.integer("max-age") if body.has("max-age") else default.max_age,
            max_size=body.integer("max-size") if body.has("max-size") else default.max_size,
            lease=body.integer("lease") if body.has("lease") else default.lease,
        )
        entity = await self._peer.service.broker.create_tap(self._path, tap)
        return await self._view_of(self._named(entity, tap.name))

    async def _show(self, body: RequestBody) -> Reply:
        return await self._view_of(self._named(await self._entity(), body.text("name")))

    async def _list(self, body: RequestBody) -> Reply:
        entity = await self._entity()
        states = await self._states()
        taps = [tap for tap in entity.taps if tap.dead_letter == self._dead_letter]
        return 200, {"taps": [self._view(tap, states) for tap in taps]}

    async def _delete(self, body: RequestBody) -> Reply:
        await self._change(body.text("name"), TapChange(delete=True))
        return 200, {}

    async def _own(self, body: RequestBody) -> Reply:
        name = body.text("name")
        reader = body.text("reader") if body.has("reader") else ""
        change = TapChange(owner=body.text("owner"), take_over=body.flag("take-over"), reader=reader)
        return await self._view_of(self._named(await self._change(name, change), name))

    async def _change(self, name: str, change: TapChange) -> EntityView:
        return await self._peer.service.broker.change_tap(self._path, name, self._dead_letter, change)

    async def _entity(self) -> EntityView:
        """The entity as it is now. One that was re-created under the same name is another one."""
        entity = await self._peer.service.broker.entity(self._path)
        if entity.fragments != self._fragments:
            raise EntityNotFound(self._path)
        return entity

    def _named(self, entity: EntityView, name: str) -> TapDescription:
        for tap in entity.taps:
            if tap.dead_letter == self._dead_letter and key_of(tap.name) == key_of(name):
                return tap
        raise TapNotFound(entity.path, name)

    async def _view_of(self, tap: TapDescription) -> Reply:
        return 200, self._view(tap, await self._states())

    def _view(self, tap: TapDescription, states: list[TapStates | None]) -> dict[str, object]:
        shown = [self._fragment_view(tap, index, states[index]) for index in range(len(states))]
        return {
            "name": tap.name,
            "entity": self._path,
            "incarnation": self._incarnation,
            "dead-letter": tap.dead_letter,
            "events": tap.events,
            "consumes": tap.consumes,
            "owner": tap.owner,
            "reader": tap.reader or reader_of(tap.owner),
            "max-age": tap.max_age,
            "max-size": tap.max_size,
            "lease": tap.lease,
            "created": tap.created,
            "truncated": any(fragment["truncated"] for fragment in shown),
            "fragments": shown,
        }

    def _fragment_view(self, tap: TapDescription, index: int, states: TapStates | None) -> dict[str, object]:
        state, event_end = NO_STATE, 0
        if states is not None:
            state = next((known for known in states.taps if known.id == tap.id), NO_STATE)
            event_end = states.event_end
        return {
            "index": index,
            "position": state.position,
            "lost": state.lost,
            "end": state.end,
            "event-position": state.event_position,
            "event-lost": state.event_lost,
            "event-end": event_end,
            "kept": state.kept,
            "kept-bytes": state.kept_bytes,
            "truncated": state.truncated,
            "available": states is not None,
        }

    @property
    def _incarnation(self) -> str:
        """Identifies an entity among those that had its name: fragment ids are given once."""
        return str(self._fragments[0])

    # ---- where taps stand ----

    async def _states(self) -> list[TapStates | None]:
        """The states of taps in each fragment; None where its store is unavailable."""
        ids, origin = self._fragments, self._peer.origin
        return await self._of_available(
            TapStates, lambda index, request: ShowTaps(ids[index], origin, request)
        )

    async def _ends(self, body: RequestBody) -> Reply:
        await self._entity()
        states = dict(enumerate(await self._states()))
        here = {index: state for index, state in states.items() if state is not None}
        return 200, {
            "entity": self._path,
            "incarnation": self._incarnation,
            "fragments": len(self._fragments),
            "ends": {index: state.end for index, state in here.items()},
            "dead-ends": {index: state.dead_end for index, state in here.items()},
            "event-ends": {index: state.event_end for index, state in here.items()},
        }

    async def _find_time(self, body: RequestBody) -> Reply:
        time = max(0, body.integer("time"))
        ids, origin = self._fragments, self._peer.origin
        found = await self._of_available(
            PositionFound, lambda index, request: FindTime(ids[index], origin, request, self._sub, time)
        )
        return 200, {"positions": {index: one.position for index, one in enumerate(found) if one is not None}}

    async def _advance(self, body: RequestBody) -> Reply:
        tap = self._named(await self._entity(), body.text("name"))
        owner, stream = body.text("owner"), self._stream(body)
        positions = self._positions(body)
        ids, origin = self._fragments, self._peer.origin
        await self._all(
            positions,
            lambda index, request: AdvanceTap(
                ids[index], origin, request, tap.id, stream, positions[index], owner
            ),
        )
        return 200, {}

    async def _resume(self, body: RequestBody) -> Reply:
        tap = self._named(await self._entity(), body.text("name"))
        owner = body.text("owner")
        ids, origin = self._fragments, self._peer.origin
        await self._all(
            range(len(ids)), lambda index, request: ResumeTap(ids[index], origin, request, tap.id, owner)
        )
        return await self._view_of(tap)

    def _positions(self, body: RequestBody) -> dict[int, int]:
        found: dict[int, int] = {}
        for index, position in body.mapping("positions").items():
            if not isinstance(index, int) or not 0 <= index < len(self._fragments):
                raise ArgumentOutOfRange(
                    f"'positions' names the fragment {index!r}; '{self._path}' has 0 to {len(self._fragments) - 1}."
                )
            if not isinstance(position, int) or not 0 <= position <= NUMBER_MASK:
                raise ArgumentOutOfRange(
                    f"'positions' has {position!r} for the fragment {index}; a position is a number within the fragment."
                )
            found[int(index)] = int(position)
        return found

    def _stream(self, body: RequestBody) -> int:
        name = body.text("stream") if body.get("stream") is not None else "messages"
        if name not in STREAMS:
            raise ArgumentError(f"'stream' is '{name}'; it is one of {', '.join(STREAMS)}.")
        return STREAMS[name]

    # ---- reading ----

    async def _read(self, body: RequestBody) -> Reply:
        limits = self._peer.service.limits
        index = body.integer("fragment") if body.has("fragment") else 0
        if not 0 <= index < len(self._fragments):
            raise ArgumentOutOfRange(
                f"'fragment' is {index}; '{self._path}' has 0 to {len(self._fragments) - 1}."
            )
        after, upto = body.integer("after"), body.integer("upto")
        if not 0 <= after <= NUMBER_MASK or not 0 <= upto <= NUMBER_MASK:
            raise ArgumentOutOfRange(
                f"'after' is {after} and 'upto' {upto}; they are numbers within a fragment."
            )
        count = body.integer("count") if body.has("count") else limits.max_tap_page_count
        size = body.integer("max-bytes") if body.has("max-bytes") else limits.max_tap_page_bytes
        if count < 1 or size < 1:
            raise ArgumentOutOfRange(f"'count' is {count} and 'max-bytes' {size}; both are at least 1.")
        entity = await self._entity()
        name = body.text("name") if body.get("name") is not None else ""
        tap = self._named(entity, name).id if name else 0
        stream = self._stream(body)
        if stream == EVENTS and not tap:
            raise InvalidOperation("Events are recorded for taps: 'name' says for which.")
        selector = selector_of(body)
        if stream == EVENTS and selector is not None:
            raise InvalidOperation("'select' is for messages; events are read as they are.")
        peer = self._peer
        fragment = self._fragments[index]
        count, size = min(count, limits.max_tap_page_count), min(size, limits.max_tap_page_bytes)
        page = await peer.pages.take(
            lambda: peer.ask(
                lambda request: ReadTap(
                    fragment, peer.origin, request, tap, self._sub, stream, after, upto, count, size
                )
            )
        )
        if isinstance(page, EventPage):
            return 200, {"rows": encode_events(page.events), "count": len(page.events), "upto": page.upto}
        assert isinstance(page, TapPage)
        scanned = len(page.heads) // HEAD
        if selector is None:
            rows = BinaryParts(encode_messages(page.heads, page.contents, page.overlays))
            return 200, {"rows": rows, "count": scanned, "upto": page.upto}
        selector.select(page.heads, page.contents, page.overlays)
        overlays = page.overlays if selector.application else {}
        rows = BinaryParts(encode_messages(selector.heads(), selector.contents(), overlays))
        return 200, {"rows": rows, "count": int(selector.count), "upto": page.upto, "scanned": scanned}

    # ---- writers ----

    async def _commit_writes(self, body: RequestBody) -> Reply:
        if self._dead_letter:
            raise InvalidOperation("Nobody writes to a dead-letter queue.")
        if self._subscription:
            raise InvalidOperation(f"Nobody writes to the subscription '{self._path}', but to its topic.")
        writer = writer_of(body.get("writer"), body.get("batch"))
        ids, origin = self._fragments, self._peer.origin
        await self._all(
            range(len(ids)),
            lambda index, request: CommitWrites(ids[index], origin, request, writer.name, writer.batch),
        )
        return 200, {}

    # ---- asking several fragments ----

    async def _of_available(self, kind: type[E], build: Build) -> list[E | None]:
        """The answers of all fragments, in their order; None for one whose store is unavailable."""
        answers: list[E | None] = []
        for answer in await self._ask(range(len(self._fragments)), build):
            if isinstance(answer, ServerBusy):
                answers.append(None)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                assert isinstance(answer, kind)
                answers.append(answer)
        return answers

    async def _all(self, indexes: Iterable[int], build: Build) -> None:
        """Have every one of these fragments do it. Raises the error of the first one that did not."""
        for answer in await self._ask(indexes, build):
            if isinstance(answer, BaseException):
                raise answer

    async def _ask(self, indexes: Iterable[int], build: Build) -> list[Effect | BaseException]:
        asked = [self._peer.ask(partial(build, index)) for index in indexes]
        return await asyncio.gather(*asked, return_exceptions=True)
