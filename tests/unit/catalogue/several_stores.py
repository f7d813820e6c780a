"""What tests of a namespace with several stores share."""

from __future__ import annotations

from busbar.model.commands import Send
from busbar.model.entities import QueueDescription
from harness.memory_fragment import MemoryFragment
from harness.memory_store import Disk
from tests.unit.broker.hosting import draft
from tests.unit.broker.namespaces import Disks, Namespace, started

QUEUE = QueueDescription()
PARTITIONED = QueueDescription(enable_partitioning=True)


def send(here: Namespace, fragment: int, request: int, count: int = 1) -> Send:
    return Send(fragment, here.origin, request, [draft()] * count, True)


async def partitioned_disks() -> Disks:
    """The disks of a namespace that was stopped, with a partitioned queue."""
    disks = Disks()
    async with started(disks) as here:
        await here.catalogue.create("q", PARTITIONED)
    return disks


def copy_of(disk: Disk) -> Disk:
    """The disk as it is now, if all its fragments are empty."""
    heads = {key: fragment.head.copy() for key, fragment in disk.fragments.items()}
    return Disk(
        {key: MemoryFragment(head) for key, head in heads.items()}, dict(disk.definitions), disk.epoch
    )
