"""Serves the metrics that Prometheus scrapes:

    GET   /metrics[?prefix=orders/]     text format 0.0.4

1. Metrics name entities, so they need the Listen right on the whole namespace. A scrape uses basic authentication with the
   name and a key of an authorization rule, which Prometheus supports, or a token.
2. Nothing is counted for metrics while messages flow: a scrape reads the counters that are kept anyway. One scrape is
   answered at a time.
3. A scrape has at most `max_metrics_samples` samples of entities and their taps (model/limits.py). Queues come in the order
   of names, then topics, each with its subscriptions. From the first entity that does not fit, entities are omitted;
   `busbar_entities_omitted` is their number. `prefix` selects entities by the beginning of their names.
4. If the store of a fragment is unavailable, the fragment has no samples of taps, and counts of its entity are those of the
   other fragments. Then `busbar_entity_available` is 0.

The format is a line for each number, and no object here lives between scrapes. So a client library would have nothing to do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Final

from aiohttp import web

from busbar.clock import wall_clock
from busbar.gateway.http.authorization import authorize
from busbar.gateway.http.connection import HttpConnection
from busbar.gateway.http.errors import error_response
from busbar.gateway.http.runtime_origin import HttpOrigin
from busbar.gateway.services import GatewayServices
from busbar.model.api import EntityView, RuntimeProperties, TransferReport
from busbar.model.commands import ShowTaps
from busbar.model.effects import TapState, TapStates
from busbar.model.entities import EntityKind
from busbar.model.errors import EntityNotFound, ServerBusy, Unauthorized
from busbar.model.node_views import NodeView, StoreFigures, summed
from busbar.model.sas import LISTEN

PATH: Final = "metrics"
LISTED_AT_ONCE: Final = 1_000
ASKED_AT_ONCE: Final = 100
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CHALLENGE: Final = 'Basic realm="Busbar", charset="UTF-8"'

FAMILIES: Final = {
    "busbar_store_up": ("gauge", "1 while a messaging store is open, 0 while it is unavailable."),
    "busbar_takeovers_total": ("counter", "Claims of a store because its owner had ended."),
    "busbar_fenced_total": (
        "counter",
        "How often an owner found that another process had claimed its store.",
    ),
    "busbar_reclaims_total": (
        "counter",
        "How often an owner lost its connection to a store and claimed the store again.",
    ),
    "busbar_resolved_total": (
        "counter",
        "Commits of unknown outcome by what was found out, and acknowledged ones that a store has lost.",
    ),
    "busbar_connections": ("gauge", "Client connections of a process that serves clients."),
    "busbar_catalogue_lag_changes": (
        "gauge",
        "Changes of the catalogue that a process does not have yet.",
    ),
    "busbar_entities": ("gauge", "Queues, topics and subscriptions that the scrape is about."),
    "busbar_entities_omitted": (
        "gauge",
        "Those of them that have no samples, because there would be too many.",
    ),
    "busbar_entity_available": (
        "gauge",
        "0 while a fragment of the entity is unavailable: counts are of the others.",
    ),
    "busbar_messages": ("gauge", "Messages of an entity by state; locked ones are active."),
    "busbar_transfers_total": (
        "counter",
        "Messages that were forwarded to other entities, since the brokers started.",
    ),
    "busbar_transfer_held": (
        "gauge",
        "Fragments of an entity whose messages for a target are held, by reason.",
    ),
    "busbar_transfer_oldest_seconds": (
        "gauge",
        "Age of the oldest message of an entity that is on its way to a target.",
    ),
    "busbar_transactions_open": ("gauge", "Transactions of a broker process that are not over."),
    "busbar_transactions_total": ("counter", "Transactions of a broker process that are over, by outcome."),
    "busbar_size_bytes": ("gauge", "Bytes that count towards an entity's quota."),
    "busbar_tap_lag_messages": (
        "gauge",
        "Positions behind the tap's, up to the end: at most so many messages.",
    ),
    "busbar_tap_kept_messages": ("gauge", "Messages kept for taps that this one has not passed, at most."),
    "busbar_tap_kept_bytes": ("gauge", "Their bytes."),
    "busbar_tap_truncated": ("gauge", "1 after a limit of the tap was reached, until it is resumed."),
    "busbar_tap_truncations_total": ("counter", "Limits of the tap reached since its fragment was opened."),
}

Sample = tuple[str, dict[str, str], int]
"""A family, labels, and a number."""


class MetricsPage:
    """The text of a scrape: the samples of a family together, after its description. A family without samples is omitted."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {name: [] for name in FAMILIES}

    def add(self, name: str, labels: Mapping[str, str], value: int) -> None:
        self._lines[name].append(f"{name}{_labels(labels)} {value}\n")

    def text(self) -> str:
        return "".join(
            f"# HELP {name} {FAMILIES[name][1]}\n# TYPE {name} {FAMILIES[name][0]}\n{''.join(lines)}"
            for name, lines in self._lines.items()
            if lines
        )


class Metrics:
    def __init__(self, services: GatewayServices) -> None:
        self._services = services
        self._turn = asyncio.Lock()

    def asked_for(self, request: web.Request, path: str) -> bool:
        """Whether the request is a scrape. A queue may have this name, too: its management requests have an api-version, or
        other methods."""
        return path.lower() == PATH and request.method == "GET" and "api-version" not in request.query

    async def handle(self, request: web.Request) -> web.Response:
        try:
            await _authorize(request, self._services)
        except Unauthorized as error:
            refused = error_response(error, self._services.tracking)
            refused.headers["WWW-Authenticate"] = CHALLENGE
            return refused
        connection = request.protocol
        assert isinstance(connection, HttpConnection)
        async with self._turn:
            origin = connection.origin(self._services)
            page = await self._page(origin, request.query.get("prefix", ""))
        return web.Response(body=page.text().encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _page(self, origin: HttpOrigin, prefix: str) -> MetricsPage:
        port = self._services.broker
        page = MetricsPage()
        nodes = await port.nodes()
        for store in await port.stores():
            page.add("busbar_store_up", {"store": store.name}, int(store.state == "open"))
            _add_figures(page, summed(nodes, store.name))
        _add_nodes(page, nodes)
        _add_transactions(page, self._services)
        chosen: list[EntityView] = []
        found = 0
        room = self._services.limits.max_metrics_samples
        async for entity in self._entities():
            if not entity.path.lower().startswith(prefix.lower()):
                continue
            found += 1
            room -= _most_samples(entity)
            if room >= 0:
                chosen.append(entity)
        page.add("busbar_entities", {}, found)
        page.add("busbar_entities_omitted", {}, found - len(chosen))
        for first in range(0, len(chosen), ASKED_AT_ONCE):
            # Concurrently, because each may have to wait for a commit.
            some = chosen[first : first + ASKED_AT_ONCE]
            runtimes = await port.runtimes([entity.path for entity in some])
            there = [(entity, now) for entity, now in zip(some, runtimes, strict=True) if now is not None]
            for samples in await asyncio.gather(*(_of_entity(origin, entity, now) for entity, now in there)):
                for sample in samples:
                    page.add(*sample)
        _add_transfers(page, await port.transfers(), {entity.path for entity in chosen}, wall_clock())
        return page

    async def _entities(self) -> AsyncIterator[EntityView]:
        async for queue in self._list_entities(EntityKind.QUEUE):
            yield queue
        async for topic in self._list_entities(EntityKind.TOPIC):
            yield topic
            with contextlib.suppress(EntityNotFound):  # it was deleted in between
                async for subscription in self._list_entities(EntityKind.SUBSCRIPTION, topic.path):
                    yield subscription

    async def _list_entities(self, kind: EntityKind, parent: str = "") -> AsyncIterator[EntityView]:
        skip = 0
        while listed := await self._services.broker.list(kind, parent, skip, LISTED_AT_ONCE):
            skip += len(listed)
            for entity in listed:
                yield entity


def _add_figures(page: MetricsPage, figures: StoreFigures) -> None:
    store = {"store": figures.store}
    page.add("busbar_takeovers_total", store, figures.takeovers)
    page.add("busbar_fenced_total", store, figures.fenced)
    page.add("busbar_reclaims_total", store, figures.reclaims)
    outcomes = {"made": figures.made, "repeated": figures.repeated, "lost": figures.lost}
    for outcome, count in outcomes.items():
        page.add("busbar_resolved_total", {**store, "outcome": outcome}, count)


def _add_nodes(page: MetricsPage, nodes: Sequence[NodeView]) -> None:
    """The processes that answer."""
    newest = max((node.catalogue_version for node in nodes), default=0)
    for node in nodes:
        if node.state == "up":
            labels = {"broker": node.name}
            page.add("busbar_connections", labels, node.connections)
            page.add("busbar_catalogue_lag_changes", labels, newest - node.catalogue_version)


def _add_transactions(page: MetricsPage, services: GatewayServices) -> None:
    """The transactions of this gateway. If there are several, each has samples of its own."""
    labels = {"broker": services.broker_name} if services.broker_name else {}
    page.add("busbar_transactions_open", labels, services.transactions.open)
    for outcome, count in services.transactions.ended.items():
        page.add("busbar_transactions_total", {**labels, "outcome": outcome.value}, count)


def _add_transfers(page: MetricsPage, report: TransferReport, chosen: Collection[str], now: int) -> None:
    """What is forwarded by the entities of the scrape. One sample stands for all fragments of source and target."""
    page.add("busbar_transfers_total", {}, report.moved)
    held: Counter[tuple[str, str, str]] = Counter()
    oldest: dict[tuple[str, str], int] = {}
    for view in report.transfers:
        if view.source not in chosen or not view.target:
            continue
        if view.state == "held":
            held[view.source, view.target, view.cause] += 1
        if view.oldest:
            way = (view.source, view.target)
            oldest[way] = min(oldest.get(way, view.oldest), view.oldest)
    for (source, target, reason), count in held.items():
        page.add("busbar_transfer_held", {"entity": source, "target": target, "reason": reason}, count)
    for (source, target), time in oldest.items():
        page.add(
            "busbar_transfer_oldest_seconds",
            {"entity": source, "target": target},
            max(0, now - time) // 1000,
        )


async def _of_entity(origin: HttpOrigin, entity: EntityView, now: RuntimeProperties) -> list[Sample]:
    labels = {"entity": entity.path}
    counts = {
        "active": now.active,
        "dead_letter": now.dead_letter,
        "scheduled": now.scheduled,
        "deferred": now.deferred,
        "transfer": now.transfer,
        "transfer_dead_letter": now.transfer_dead_letter,
    }
    samples: list[Sample] = [
        ("busbar_messages", {**labels, "state": state}, count) for state, count in counts.items()
    ]
    samples.append(("busbar_size_bytes", labels, now.size))
    samples.append(("busbar_entity_available", labels, int(now.available)))
    if entity.taps:
        for index, fragment in enumerate(entity.fragments):
            samples += _of_taps(entity, index, await _states(origin, fragment))
    return samples


async def _authorize(request: web.Request, services: GatewayServices) -> None:
    """Require the Listen right on the namespace, by basic authentication or by a token."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        await authorize(request, LISTEN, "", services)
        return
    try:
        name, _, key = base64.b64decode(given.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise Unauthorized("InvalidToken: The basic authentication cannot be read.") from None
    if LISTEN not in services.authority.verify_password(name, key).rights:
        raise Unauthorized(f"Unauthorized access: the rule '{name}' lacks the claim '{LISTEN}'.")


async def _states(origin: HttpOrigin, fragment: int) -> Sequence[TapState]:
    """The states of an entity's taps: none while it is unavailable."""
    try:
        answer = await origin.ask(_show(fragment))
    except (ServerBusy, EntityNotFound):
        return ()
    assert isinstance(answer, TapStates)
    return answer.taps


def _show(fragment: int) -> Callable[[int, int], ShowTaps]:
    return lambda origin, request: ShowTaps(fragment, origin, request)


def _of_taps(entity: EntityView, index: int, states: Sequence[TapState]) -> list[Sample]:
    samples: list[Sample] = []
    for state in states:
        tap = next((tap for tap in entity.taps if tap.id == state.id), None)
        if tap is None:
            continue  # it was deleted, and the fragment is not updated yet
        labels = {
            "entity": entity.path,
            "sub_queue": "dead_letter" if tap.dead_letter else "main",
            "tap": tap.name,
            "fragment": str(index),
        }
        samples.append(("busbar_tap_lag_messages", labels, max(0, state.end - state.position)))
        samples.append(("busbar_tap_kept_messages", labels, state.kept))
        samples.append(("busbar_tap_kept_bytes", labels, state.kept_bytes))
        samples.append(("busbar_tap_truncated", labels, int(state.truncated)))
        samples.append(("busbar_tap_truncations_total", labels, state.truncations))
    return samples


def _most_samples(entity: EntityView) -> int:
    return 8 + 5 * len(entity.taps) * len(entity.fragments)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
