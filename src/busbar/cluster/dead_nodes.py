"""Finds nodes that have certainly ended, although no process reports it: all processes of a node were killed at once.

The sessions of their clients are free then. A node that is frozen, or cut off, keeps them: its clients may work on.

Rules:
1. A frozen process beats no more, but the kernel of its machine still accepts connections for it. If the machine is off, or
   cut off, connections are not answered. Only if no process has the port, the kernel refuses a connection.
2. A firewall can refuse connections, too, in front of a node that works. The brokers of such a node notice that they are cut
   off (isolation.py). They close the connections of their clients before they can be taken for ended.
3. So a node has ended if it has not beaten for a lease, and all its known addresses have refused connections for half of
   that. Only time between looks that follow each other counts, as for owners of stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

REFUSED = 0.5
"""For this part of a lease connections are refused."""
ISOLATED = 2 / 3
"""After this part of a lease without a beat, a node that is cut off closes the connections of its clients."""
LONGEST_PAUSE = 1 / 3
"""Of a lease: what counts between two looks."""
PROBE_SECONDS = 1.0


async def is_refused(address: str) -> bool:
    """Whether the kernel of that machine refuses connections at an address."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


class DeadNodes:
    def __init__(
        self,
        lease: float,
        clock: Callable[[], float],
        probe: Callable[[str], Awaitable[bool]] = is_refused,
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._probe = probe
        self._refused: dict[str, float] = {}
        self._looked = clock()

    async def look(self, silent: Mapping[str, tuple[float, Sequence[str]]]) -> list[str]:
        """Look at nodes that do not beat: for how many seconds, and where they were. Returns those that have ended."""
        refusals = await asyncio.gather(*[self._refuses_all(where) for _, where in silent.values()])
        now = self._clock()
        passed, self._looked = min(now - self._looked, LONGEST_PAUSE * self._lease), now
        before, self._refused = self._refused, {}
        for node, refuses in zip(silent, refusals, strict=True):
            if refuses:
                self._refused[node] = before.get(node, 0.0) + (passed if node in before else 0.0)
        return [
            node
            for node, seconds in self._refused.items()
            if silent[node][0] >= self._lease and seconds >= REFUSED * self._lease
        ]

    async def _refuses_all(self, addresses: Sequence[str]) -> bool:
        return all(await asyncio.gather(*[self._probe(address) for address in addresses]))
