"""Message sessions while a store is unavailable: their holders learn that they have lost, all others go on, and no lock
remains."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from typing import Any

import pytest
from proton import Message

from busbar.amqp.events import Delivery
from busbar.cli.main import run
from busbar.model.partitioning import index_of_key
from harness.amqp_driver import LinkRefused, LoadConnection, Receiver, connect, session_payload
from harness.serving import Busbar

LOCK = 1.5
OUT = "store-2"
QUEUE = {"RequiresSession": True, "EnablePartitioning": True, "LockDuration": f"PT{LOCK}S"}
LOST = "com.microsoft:session-lock-lost"

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.server({"q": QUEUE}, {"min_lock_duration": 100}),
]


async def busbar(server: Busbar, *arguments: str) -> Any:
    """What a command prints as JSON."""

    def ran() -> Any:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert run([*arguments, "--data", str(server.data), "-o", "json"]) == 0
        return json.loads(out.getvalue())

    return await asyncio.to_thread(ran)


class Holder:
    """Keeps what it gets, and looks at the delivery counts."""

    def __init__(self, client: LoadConnection, session: str | None) -> None:
        self.counts: list[int] = []
        self._client = client
        self._session = session
        self.receiver: Receiver

    async def accept(self) -> Holder:
        self.receiver = await self._client.receiver("q", session=self._session, wait=5_000, decide=self._keep)
        await asyncio.wait_for(self.receiver.until(lambda: bool(self.counts)), 5)
        return self

    def _keep(self, deliveries: list[Delivery]) -> list[tuple[list[int], bytes]]:
        for delivery in deliveries:
            message = Message()
            message.decode(bytes(delivery.payload))
            self.counts.append(message.delivery_count)
        return []


@pytest.mark.req("S9")
async def test_a_store_goes_out_while_sessions_are_held(own_server: Busbar) -> None:
    homes = [fragment["store"] for fragment in await busbar(own_server, "queue", "show", "q", "--fragments")]
    names = [f"s{n}" for n in range(99)]
    inside = [name for name in names if homes[index_of_key(name, 16)] == OUT][:2]
    outside = [name for name in names if homes[index_of_key(name, 16)] != OUT][:2]
    everything = [*inside, *outside]
    client, gone = await connect(own_server.port), await connect(own_server.port)
    sender = await client.sender("q", session_payload(lambda n: everything[n]))
    await sender.send(len(everything))
    assert not sender.refused
    first = await Holder(client, inside[0]).accept()
    await Holder(gone, inside[1]).accept()
    await busbar(own_server, "stores", "offline", OUT)

    # Whoever wants the next session is not kept waiting.
    others = [await asyncio.wait_for(Holder(client, None).accept(), 4) for _ in outside]
    assert sorted(other.receiver.session for other in others) == sorted(outside)
    # Who has gone leaves no lock; who stays learns that its time is over, though the fragment cannot say so.
    gone.abort()
    with pytest.raises(LinkRefused, match=LOST):
        await asyncio.wait_for(first.receiver.until(lambda: False), LOCK + 8)

    await busbar(own_server, "stores", "online", OUT)
    again = [await asyncio.wait_for(Holder(client, name).accept(), 4) for name in inside]
    assert again[0].counts == [1], "the lock ended by time"
    await client.close()
