"""The history of messages from several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from busbar.cluster.channel import ChannelClosed
from busbar.cluster.history_gathering import gather_history
from busbar.model.history import ClientName, HistoryStep

STEP = HistoryStep(1_000, "q", "sent", "m", 1, 1)


class Process:
    """A process with steps, and with clients whose names are its own name and their numbers."""

    def __init__(self, name: str, *steps: HistoryStep, ended: bool = False) -> None:
        self._name = name
        self._steps = steps
        self._ended = ended
        self.asked: list[tuple[int, int]] = []

    async def history(self, message_id: str) -> Sequence[HistoryStep]:
        if self._ended:
            raise ChannelClosed
        assert message_id == "m"
        return self._steps

    async def client_names(self, clients: Sequence[tuple[int, int]]) -> Sequence[ClientName | None]:
        if self._ended:
            raise ChannelClosed
        self.asked += clients
        return [ClientName(self._name, str(origin), str(consumer)) for origin, consumer in clients]


async def test_a_client_is_named_by_its_own_gateway() -> None:
    here = Process(
        "here", replace(STEP, origin=5), replace(STEP, gateway="there", origin=6, consumer=2), STEP
    )
    there = Process("there", replace(STEP, origin=5), replace(STEP, origin=5))
    found = await gather_history("m", {"here": here, "there": there})
    assert [(step.gateway, step.client) for step in found] == [
        ("here", ClientName("here", "5", "0")),
        ("there", ClientName("there", "6", "2")),
        ("here", None),
        ("there", ClientName("there", "5", "0")),
        ("there", ClientName("there", "5", "0")),
    ]
    assert (here.asked, there.asked) == ([(5, 0)], [(5, 0), (6, 2)])


async def test_a_process_that_has_ended_is_left_out() -> None:
    here = Process(
        "here", replace(STEP, gateway="there", origin=6), replace(STEP, gateway="before", origin=1)
    )
    found = await gather_history("m", {"here": here, "there": Process("there", STEP, ended=True)})
    assert [(step.gateway, step.client) for step in found] == [("there", None), ("before", None)]
