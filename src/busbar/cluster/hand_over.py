"""A broker process hands one of its stores over to another one: its part of it.

Rules:
1. The process reports `moving` to all others, applies no more commands, and releases the store when all that it applied is
   durable (broker/hand_over.py). If anything fails before that, the store stays, and all go on with it.
2. Every process leaves the store: it sends no more commands, and gets what its clients go on with at the next owner
   (peer_server.py, store_route.py). A process that is slow, or cannot be reached, keeps no other one waiting.
3. The controller makes the other process the owner after that. It claims the store like one of a process that has ended.
"""

from __future__ import annotations

from busbar.broker.dispatcher import BROKER_ORIGIN
from busbar.broker.store_host import LocalStoreHost
from busbar.cluster.peer_server import PeerServers
from busbar.cluster.store_route import StoreRoute
from busbar.model.commands import Command
from busbar.model.errors import ServerBusy


async def hand_over(
    host: LocalStoreHost, route: StoreRoute | None, served: PeerServers, gateway: str
) -> list[Command]:
    """Release a store, and give commands back to clients of this gateway and of all others. Returns the commands of the
    controller that were not applied. Raises ServerBusy if the store stays."""
    if route is None or not route.can_be_handed_over:
        raise ServerBusy(f"The store '{host.name}' cannot be handed over now: clients use its last owner.")
    served.begin_hand_over(host.name)
    try:
        commands = await host.hand_over(gateway)
        others = [one for one in commands if not _is_of_controller(one)]
        route.hand_over(served.give_back(host.name, others))
    finally:
        served.end_hand_over(host.name)
    return [one for one in commands if _is_of_controller(one)]


def _is_of_controller(command: Command) -> bool:
    """Whether the controller gets the answer. Other commands of the broker itself have none."""
    return command.origin == BROKER_ORIGIN and command.request > 0
