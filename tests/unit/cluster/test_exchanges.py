"""How often processes have to wait for each other: a list costs one exchange, however long it is."""

from __future__ import annotations

from busbar.cluster.channel import Channel
from busbar.model.entities import EntityKind, QueueDescription
from tests.conformance.ports import other_process

ENTITIES = 100


async def test_a_page_of_a_list_is_one_call() -> None:
    async with other_process() as (port, _kill):
        for number in range(ENTITIES):
            await port.create(f"listed/{number:03}", QueueDescription())
        to_controller = getattr(port._controller, "_channel", None)
        assert isinstance(to_controller, Channel)
        before = to_controller._last_call
        page = await port.page(EntityKind.QUEUE, "", 0, ENTITIES)
        assert len(page.entities) == len(page.runtimes) == ENTITIES and page.has_more
        assert to_controller._last_call - before == 1
        assert len(await port.runtimes([view.path for view in page.entities])) == ENTITIES
        assert to_controller._last_call - before == 2
