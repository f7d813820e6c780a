"""A change of the catalogue with several brokers is one exchange with each of them."""

from __future__ import annotations

from pathlib import Path

from busbar.model.entities import QueueDescription
from tests.unit.cluster.real_brokers import real_brokers


async def test_count(tmp_path: Path) -> None:
    async with real_brokers(tmp_path / "data") as here:
        for partitioned in (False, True):
            name = f"q{partitioned}"
            queue = QueueDescription(enable_partitioning=partitioned)
            with here.counted() as counts:
                await here.port.create(name, queue)
            print("create", counts)
            with here.counted() as counts:
                await here.port.update(
                    name, QueueDescription(enable_partitioning=partitioned, max_delivery_count=3)
                )
            print("update", counts)
            with here.counted() as counts:
                await here.port.delete(name)
            print("delete", counts)
