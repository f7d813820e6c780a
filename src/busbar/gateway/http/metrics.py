"""Serves the metrics that Prometheus scrapes:

    GET   /metrics[?prefix=orders/]     text format 0.0.4

1. Metrics name entities, so they need the Listen right on the whole namespace. A scrape uses basic authentication with the
   name and a key of an authorization rule, which Prometheus supports, or a token.
2. A scrape reads counters that every process keeps (model/figures.py). One scrape is answered at a time.
3. A scrape has at most `max_metrics_samples` samples of entities and their taps (model/limits.py). Queues come in the order
   of names, then topics, each with its subscriptions. From the first entity that does not fit, entities are omitted;
   `busbar_entities_omitted` is their number. `prefix` selects entities by the beginning of their names.
4. If the store of a fragment is unavailable, the fragment has no samples of taps, and counts of its entity are those of the
   other fragments. Then `busbar_entity_available` is 0.
5. A counter belongs to one process and begins at 0 with it. If there are several processes, it names its own (`broker`). A
   sum over processes would go back when one of them ends, which Prometheus would take for a restart of all.
6. The first active message of an entity may not be in memory. Then it is looked for, but not more than PEEKED_AT_ONCE
   times in one scrape. Between two looks the last result is used.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from aiohttp import web

from busbar.clock import wall_clock
from busbar.gateway.http.authorization import authorize
from busbar.gateway.http.connection import HttpConnection
from busbar.gateway.http.entity_walk import entities_of
from busbar.gateway.http.errors import error_response
from busbar.gateway.http.metrics_entities import EntitySamples, most_samples
from busbar.gateway.http.metrics_text import CONTENT_TYPE, MetricsPage, Sample
from busbar.gateway.http.runtime_origin import HttpOrigin
from busbar.gateway.services import GatewayServices
from busbar.model.api import EntityView, RuntimeProperties, TransferReport
from busbar.model.commands import ShowTaps
from busbar.model.effects import TapState, TapStates
from busbar.model.errors import BusbarError, EntityNotFound, ServerBusy, Unauthorized
from busbar.model.figures import COMMIT_BOUNDS, DELIVERY_BOUNDS, ProcessFigures
from busbar.model.node_views import NodeView, StoreFigures, summed
from busbar.model.sas import LISTEN

PATH: Final = "metrics"
ASKED_AT_ONCE: Final = 100
PEEKED_AT_ONCE: Final = 50
GZIP: Final = re.compile(r"(?:^|,)\s*gzip\s*(?:$|,|;(?!\s*q=0(?:\.0*)?\s*(?:$|,)))", re.IGNORECASE)
"""A header Accept-Encoding with gzip, unless its weight is 0."""
CHALLENGE: Final = 'Basic realm="Busbar", charset="UTF-8"'


class Metrics:
    def __init__(self, services: GatewayServices) -> None:
        self._services = services
        self._turn = asyncio.Lock()
        self._samples = EntitySamples()
        self._oldest: dict[str, int] = {}
        """By entity: when its first message was enqueued, if that is not in memory. Those found last are at the end."""

    def asked_for(self, request: web.Request, path: str) -> bool:
        """Whether the request is a scrape. A queue may have this name, too: its management requests have an api-version, or
        other methods."""
        return path.lower() == PATH and request.method == "GET" and "api-version" not in request.query

    async def handle(self, request: web.Request) -> web.Response:
        try:
            await _authorize(request, self._services)
        except Unauthorized as error:
            self._services.refusals.add(error.condition)
            refused = error_response(error, self._services.tracking)
            refused.headers["WWW-Authenticate"] = CHALLENGE
            return refused
        connection = request.protocol
        assert isinstance(connection, HttpConnection)
        async with self._turn:
            origin = connection.origin(self._services)
            await self._look_for_oldest()
            page = await self._page(origin, request.query.get("prefix", ""))
        body, headers = page.text().encode(), {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
        if GZIP.search(request.headers.get("Accept-Encoding", "")):
            body = await asyncio.to_thread(_compressed, body)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    async def _page(self, origin: HttpOrigin, prefix: str) -> MetricsPage:
        port = self._services.broker
        page = MetricsPage()
        nodes, processes = await asyncio.gather(port.nodes(), port.figures())
        for store in await port.stores():
            page.add("busbar_store_up", {"store": store.name}, int(store.state == "open"))
            if store.free >= 0:
                page.add("busbar_store_free_bytes", {"store": store.name}, store.free)
            _add_figures(page, summed(nodes, store.name))
        _add_nodes(page, nodes)
        for process in processes:
            _add_process(page, process)
        _add_transactions(page, self._services)
        chosen: list[EntityView] = []
        found = 0
        lowered = prefix.lower()
        room = self._services.limits.max_metrics_samples
        async for entity in entities_of(port):
            if lowered and not entity.path.lower().startswith(lowered):
                continue
            found += 1
            room -= most_samples(entity, processes)
            if room >= 0:
                chosen.append(entity)
        page.add("busbar_entities", {}, found)
        page.add("busbar_entities_omitted", {}, found - len(chosen))
        lines = self._samples.of(page)
        for first in range(0, len(chosen), ASKED_AT_ONCE):
            # Concurrently, because each may have to wait for a commit.
            some = chosen[first : first + ASKED_AT_ONCE]
            runtimes = await port.runtimes([entity.path for entity in some])
            now = wall_clock()
            for entity, held in zip(some, runtimes, strict=True):
                if held is not None:
                    oldest = self._oldest_of(entity, held)
                    lines.add_held(entity, held, oldest, now)
                    lines.add_done(entity, processes)
            tapped = [entity for entity in some if entity.taps]
            for samples in await asyncio.gather(*(_of_taps_of(origin, entity) for entity in tapped)):
                for sample in samples:
                    page.add(*sample)
        _add_transfers(page, await port.transfers(), {entity.path for entity in chosen}, wall_clock())
        return page

    def _oldest_of(self, entity: EntityView, held: RuntimeProperties) -> int:
        """When the first active message was enqueued, as far as that is known. If it is in no memory, it is looked for."""
        if held.oldest or not held.active:
            self._oldest.pop(entity.path, None)
            return held.oldest
        return self._oldest.setdefault(entity.path, 0)

    async def _look_for_oldest(self) -> None:
        """Look for the first messages of some entities, by turns."""
        for path in [*self._oldest][:PEEKED_AT_ONCE]:
            del self._oldest[path]
            with contextlib.suppress(BusbarError):
                fragments = await self._services.broker.fragments(path)
                self._oldest[path] = min((one.oldest for one in fragments if one.oldest), default=0)


def _compressed(body: bytes) -> bytes:
    """The body as gzip. The first level makes a fifteenth of it, and takes a third of the time of the usual one."""
    packing = zlib.compressobj(1, wbits=31)
    return packing.compress(body) + packing.flush()


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


def _add_process(page: MetricsPage, process: ProcessFigures) -> None:
    """What a process has done as a whole."""
    labels = {"broker": process.name} if process.name else {}
    page.add("busbar_cpu_seconds_total", labels, process.cpu_us / 1_000_000)
    page.add("busbar_links", labels, process.gateway.links)
    for condition, count in process.gateway.refusals.items():
        page.add("busbar_refusals_total", {**labels, "condition": condition}, count)
    for reason, count in process.dead_letters.items():
        page.add("busbar_dead_letters_total", {**labels, "reason": reason}, count)
    page.add_histogram(
        "busbar_delivery_seconds", labels, DELIVERY_BOUNDS, process.gateway.deliveries, per_second=1_000
    )
    for store, times in process.commits.items():
        of_store = {"store": store, **labels}
        page.add_histogram("busbar_commit_seconds", of_store, COMMIT_BOUNDS, times, per_second=1_000_000)


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


async def _of_taps_of(origin: HttpOrigin, entity: EntityView) -> list[Sample]:
    samples: list[Sample] = []
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
