"""The messaging stores of a namespace: which host serves which fragment, and what operators see and ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from busbar.broker.dispatcher import FragmentRoutes
from busbar.broker.host_api import Rows, StoreHost, StoreState
from busbar.broker.refusals import OFFLINE
from busbar.catalogue.change import BrokerUpdate, EntityChange, StoreChange, apply_to_store
from busbar.catalogue.sizes import Sizes
from busbar.model.api import StoreView
from busbar.model.errors import ArgumentError, BusbarError, InvalidOperation
from busbar.store.contract import StoreError

FORCED_RESET = "forced-reset"
SETTLING_SECONDS = 5.0
"""How long an operator's command waits for its effect."""


class ChangeCarrier(Protocol):
    """Brings a change of the catalogue to stores and gateways."""

    async def carry_out(
        self, version: int, stores: Mapping[StoreHost, StoreChange], entities: Sequence[EntityChange]
    ) -> dict[str, Exception]:
        """Bring the change with that number to all of them. Returns the stores that failed, by name, with the reason."""


class HostCarrier:
    """A ChangeCarrier that calls each store by itself. It leaves gateways to the watchers of the catalogue."""

    async def carry_out(
        self, version: int, stores: Mapping[StoreHost, StoreChange], entities: Sequence[EntityChange]
    ) -> dict[str, Exception]:
        outcomes = await asyncio.gather(
            *[apply_to_store(host, change) for host, change in stores.items()], return_exceptions=True
        )
        failed: dict[str, Exception] = {}
        for host, outcome in zip(stores, outcomes, strict=True):
            if isinstance(outcome, BusbarError | StoreError):
                failed[host.name] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
        return failed


class StoreSet:
    def __init__(
        self, hosts: Iterable[StoreHost], make_host: Callable[[str], StoreHost] | None = None
    ) -> None:
        """`hosts` are those of the stores that are there; `make_host` makes one for a store that joins, or is missing."""
        self.hosts: list[StoreHost] = list(hosts)
        self.needs_one = True
        """False only while an operator resets a store of a namespace that has lost all of them."""
        self._make_host = make_host
        self.routes: FragmentRoutes[StoreHost] = FragmentRoutes()
        self.carrier: ChangeCarrier = HostCarrier()
        """What brings changes of the catalogue to the stores."""
        self._sizes = Sizes()

    # ---- which there are ----

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.hosts]

    def host(self, name: str) -> StoreHost:
        return next(host for host in self.hosts if host.name == name)

    def unavailable(self) -> set[str]:
        return {host.name for host in self.hosts if not host.is_open}

    def add(self, name: str) -> StoreHost:
        """Add a host for one more store, which is not opened yet."""
        assert self._make_host is not None, "there is no make_host"
        host = self._make_host(name)
        self.hosts.append(host)
        return host

    async def remove(self, host: StoreHost) -> None:
        """Remove the host of a store that is not of this namespace."""
        self.hosts.remove(host)
        await host.close()

    def sort_by(self, names: Sequence[str]) -> None:
        """Sort hosts in the order of the namespace's list, which decides where fragments are placed."""
        self.hosts.sort(key=lambda host: names.index(host.name))

    def clock(self) -> int:
        """The time in ms since 1970."""
        return self.hosts[0].clock()

    # ---- changes of the catalogue ----

    async def apply(
        self,
        version: int,
        definitions: Mapping[str, Rows],
        update: BrokerUpdate,
        deleted: Mapping[int, str],
    ) -> dict[str, Exception]:
        """Carry out the change with that number, which is made. Returns the stores that failed, with the reason.

        `definitions` are the rows for each store, and `update` is what brokers do besides. `deleted` are the fragments that
        are of no entity any more, with their stores.

        In an unavailable store nothing is written. Its fragments in memory get their settings, or are retired."""
        changes = {host: self._part(host, definitions, update, deleted) for host in self.hosts}
        return await self.carrier.carry_out(
            version,
            {host: change for host, change in changes.items() if change.concerns_store},
            update.entities,
        )

    def _part(
        self,
        host: StoreHost,
        definitions: Mapping[str, Rows],
        update: BrokerUpdate,
        deleted: Mapping[int, str],
    ) -> StoreChange:
        name = host.name
        changed = update.changed.get(name, {})
        if host.is_open:
            return StoreChange(definitions.get(name, {}), update.new.get(name, {}), changed)
        return StoreChange({}, {}, changed, sorted(f for f, store in deleted.items() if store == name))

    # ---- fragments ----

    def assign(self, fragments: Iterable[int], stores: Iterable[str]) -> None:
        """Note which store each fragment lives in."""
        hosts = {host.name: host for host in self.hosts}
        self.routes.assign(fragments, [hosts[name] for name in stores])

    def last_used(self, fragment: int) -> int:
        host = self.routes.sink_of(fragment)
        return 0 if host is None else host.last_used(fragment)

    async def refresh_last_used(self, fragments: Iterable[int]) -> None:
        """Bring `last_used` of these fragments up to date with the broker processes. Raises a BusbarError."""
        groups = self.by_host(fragments)
        await asyncio.gather(*[host.refresh_last_used(group) for host, group in groups.items()])

    def by_host(self, fragments: Iterable[int]) -> dict[StoreHost, list[int]]:
        """Groups fragments by the hosts of their stores."""
        groups: dict[StoreHost, list[int]] = {}
        for fragment in fragments:
            host = self.routes.sink_of(fragment)
            if host is not None:
                groups.setdefault(host, []).append(fragment)
        return groups

    # ---- the end ----

    async def close(self, drain: float) -> bool:
        """Finish what is under way, save the locks, close the files. False if not all of it was finished in time."""
        for host in self.hosts:
            host.stop_timers()
        drained = await asyncio.gather(*[host.drain(drain) for host in self.hosts])
        await asyncio.gather(*[host.close() for host in self.hosts])
        return all(drained)

    # ---- operators ----

    async def views(self) -> list[StoreView]:
        sizes = await self._sizes.of({host.name: host.place for host in self.hosts})
        return [self._view(host, sizes.get(host.name, 0)) for host in self.hosts]

    def _view(self, host: StoreHost, size: int) -> StoreView:
        loss, place = host.loss, host.place
        return StoreView(
            name=host.name,
            url=place.url if place is not None else "",
            state="open" if host.is_open else "unavailable",
            since=host.since,
            reason=host.reason,
            fragments=self.routes.count(host),
            size=size,
            lost_at=loss.at if loss is not None else 0,
            lost_messages=loss.messages if loss is not None else 0,
            lost_size=loss.size if loss is not None else 0,
            broker=host.broker,
            status=self._sizes.status.get(host.name, ""),
            free=self._sizes.free.get(host.name, -1),
        )

    async def change(self, name: str, to: str) -> StoreView:
        host = next((host for host in self.hosts if host.name == name), None)
        if host is None:
            raise ArgumentError(f"There is no store '{name}'; there are {', '.join(self.names)}.")
        if to == "offline":
            await host.take_offline()
        elif to == "online":
            host.bring_online()
            await _until_open(host)
        elif to in ("reset", FORCED_RESET):
            if host.is_open or host.place is None:
                raise InvalidOperation(
                    f"The store '{name}' is in use; only one that is unavailable can be reset."
                )
            if host.reason == OFFLINE and to != FORCED_RESET:
                raise InvalidOperation(
                    f"The store '{name}' was {OFFLINE}, and as far as is known it is intact. Bring it online; if that "
                    "fails it can be reset. With --force it is reset as it is."
                )
            host.reset()
            await _until_open(host)
        else:
            raise ArgumentError(f"A store can be set offline, online or reset, not '{to}'.")
        return await self.view(name)

    async def view(self, name: str) -> StoreView:
        host = self.host(name)
        sizes = await self._sizes.of({name: host.place})
        return self._view(host, sizes[name])


async def _until_open(host: StoreHost) -> None:
    """Wait until the store is open, but not longer than SETTLING_SECONDS. Its state has the reason if it is not."""
    deadline = asyncio.get_running_loop().time() + SETTLING_SECONDS
    while host.state is StoreState.UNAVAILABLE and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
