"""The history of messages of a namespace in one process."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.broker.history import HistoryRecorder
from busbar.catalogue.local_broker import LocalBroker
from busbar.cluster.history_gathering import gather_history
from busbar.model.history import ClientName, HistoryStep


class ProcessHistory:
    """Records the history, and is asked for it as one of several processes would be."""

    def __init__(self, port: LocalBroker) -> None:
        self._port = port
        self._recorder = HistoryRecorder(port)
        self.switch = self._recorder.switch
        port.set_recording = self._recorder.set_recording
        port.report_history = lambda message_id: gather_history(message_id, {"": self})

    async def history(self, message_id: str) -> list[HistoryStep]:
        return self._recorder.steps_of(message_id)

    async def client_names(self, clients: Sequence[tuple[int, int]]) -> list[ClientName | None]:
        name = self._port.name_clients
        return [None] * len(clients) if name is None else [*name(clients)]
