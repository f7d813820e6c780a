"""Starts the broker processes of a namespace again, one after the other, so that clients notice pauses and no errors.

Rules:
1. A broker that is to be restarted gets no more clients. It hands its stores over to the others (store_moves.py). Its
   gateway closes the connections of its clients, each after its last answer; they connect again, to others. Then the process
   ends and another one is started.
2. The next broker follows when the new process serves clients. If it does not within START_SECONDS, the restart ends there.
3. A store that cannot be handed over, since it is unavailable or another move of it is under way, is tried again for a
   while. After that it is claimed by others when the process has ended.
4. In the end stores are moved until load is even, without the pause that follows other changes of members.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from busbar.cluster.store_moves import StoreMoves
from busbar.model.errors import BusbarError, InvalidOperation

START_SECONDS = 60.0
TRIES = 20
TRY_SECONDS = 0.1

_log = logging.getLogger(__name__)


class RollingRestart:
    def __init__(self, brokers: Sequence[str], moves: StoreMoves) -> None:
        self.retire: Callable[[str], None] = lambda broker: None
        """Gives a broker no more clients and no more stores."""
        self.replace: Callable[[str], Awaitable[None]] | None = None
        """Closes the gateway of a broker and starts it again; returns when it serves clients. Raises TimeoutError."""
        self._brokers = brokers
        self._moves = moves
        self._under_way: asyncio.Task[None] | None = None

    async def start(self) -> Sequence[str]:
        """Begin; returns the brokers that are restarted, in their order. Raises InvalidOperation."""
        if self._under_way is not None and not self._under_way.done():
            raise InvalidOperation("The brokers are being restarted already.")
        if len(self._brokers) < 2:
            raise InvalidOperation("There is one broker, and none that could have its stores meanwhile.")
        self._under_way = asyncio.get_running_loop().create_task(self._run())
        return self._brokers

    async def stop(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    async def _run(self) -> None:
        assert self.replace is not None
        for broker in self._brokers:
            self.retire(broker)
            await self._hand_over_all(broker)
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self.replace(broker)
            except TimeoutError:
                _log.error(
                    "%s was restarted, and does not serve clients; the others are left as they are", broker
                )
                return
            _log.info("%s was restarted", broker)
        await self._moves.balance()

    async def _hand_over_all(self, broker: str) -> None:
        for left in range(TRIES, 0, -1):
            try:
                await self._moves.empty(broker)
                return
            except BusbarError as error:
                if left == 1:
                    _log.warning("not all stores of %s are handed over before its end: %s", broker, error)
                await asyncio.sleep(TRY_SECONDS)
