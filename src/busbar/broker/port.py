"""The port of fragments in this process: commands go to the hosts, effects to the connections that asked.

Rules:
1. A sink is called once for each batch of effects, with its own effects in their order; what it raises hurts no other.
2. When an origin is gone, its consumers leave the fragments they asked for messages from, and messages that were on
   their way to it are released at once, so that another consumer gets them without waiting for a lock to end.
3. A command for a fragment that nobody hosts is refused as an unknown entity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from busbar.broker.catalogue import Catalogue
from busbar.broker.host import StoreHost
from busbar.model.commands import RELEASE, Command, Demand, Leave, Settle
from busbar.model.effects import Delivered, Effect
from busbar.model.port import EffectSink, EntityView

_log = logging.getLogger(__name__)


class LocalPort:
    """A FragmentPort over the host of this process. `emit` is what the host performs effects with."""

    def __init__(self) -> None:
        self._sinks: dict[int, EffectSink] = {}
        self._consuming: dict[int, set[int]] = {}  # by origin: fragments it asked for messages
        self._last_origin = 0
        self._host: StoreHost | None = None
        self._find: Callable[[str], EntityView] | None = None

    def serve(self, host: StoreHost, catalogue: Catalogue) -> None:
        """Where commands go and entities are found."""
        self._host = host
        self._find = catalogue.find

    def connect(self, sink: EffectSink) -> int:
        self._last_origin += 1
        self._sinks[self._last_origin] = sink
        self._consuming[self._last_origin] = set()
        return self._last_origin

    def disconnect(self, origin: int) -> None:
        if self._sinks.pop(origin, None) is None:
            return
        fragments = self._consuming.pop(origin, None)
        if fragments:
            self.submit([Leave(fragment, origin, 0) for fragment in sorted(fragments)])

    def submit(self, commands: list[Command]) -> None:
        assert self._host is not None, "serve() comes before any command"
        for command in commands:
            if type(command) is Demand:
                fragments = self._consuming.get(command.origin)
                if fragments is None:
                    # Its origin is gone: nobody would ever take the consumer away again.
                    commands = [other for other in commands if other is not command]
                else:
                    fragments.add(command.fragment)
        self._host.submit(commands)

    async def entity(self, path: str) -> EntityView:
        assert self._find is not None, "serve() comes before any question"
        return self._find(path)

    def emit(self, effects: list[Effect]) -> None:
        """Perform effects: hand each origin its own, in one batch."""
        by_origin: dict[int, list[Effect]] = {}
        for effect in effects:
            batch = by_origin.get(effect.origin)
            if batch is None:
                by_origin[effect.origin] = [effect]
            else:
                batch.append(effect)
        for origin, batch in by_origin.items():
            sink = self._sinks.get(origin)
            if sink is None:
                releases = releases_of(batch)
                if releases:
                    self.submit(releases)
                continue
            try:
                sink(batch)
            except Exception:
                _log.exception("connection %d failed on %d effects", origin, len(batch))


def releases_of(effects: list[Effect]) -> list[Command]:
    """Rule 2: what gives messages back that nobody is there to receive. What was received and deleted is gone: at most
    once is what that mode promises."""
    return [
        Settle(
            effect.fragment,
            0,
            0,
            RELEASE,
            [record.n for record in effect.records],
            [effect.nonce] * len(effect.records),
            None,
            False,
        )
        for effect in effects
        if type(effect) is Delivered and effect.until
    ]
