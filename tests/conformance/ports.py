"""Ports to try the suites on: those of this process stand in port_process.py; here is one whose namespace is in another."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from busbar.catalogue.change import EntityChange, StoreChange
from busbar.cluster import protocol
from busbar.cluster.calls import RemoteInterface
from busbar.cluster.channel import Channel
from busbar.cluster.cluster_broker import ClusterBroker
from busbar.cluster.store_route import StoreRoute
from tests.conformance.port_process import clock

ROOT = Path(__file__).resolve().parents[2]


class ToServing(Channel):
    """What a broker process without stores hears of the serving process."""

    def __init__(self, port: ClusterBroker) -> None:
        super().__init__()
        self._port = port

    def handle_frame(self, frame: protocol.StoreFrame) -> None:
        raise AssertionError(frame)

    def served(self, target: str) -> tuple[RemoteInterface[Any], object]:
        return (protocol.STORES, self) if target == protocol.ALL_STORES else (protocol.NODES, self._port)

    async def apply_change(
        self, version: int, stores: Mapping[str, StoreChange], entities: Sequence[EntityChange]
    ) -> dict[str, Exception]:
        assert not stores
        self._port.entities_changed(version, entities)
        return {}

    def closed(self) -> None:
        pass


def start_namespace(*descriptors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.port_process", *map(str, descriptors)],
        pass_fds=descriptors,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )


@asynccontextmanager
async def other_process() -> AsyncIterator[tuple[ClusterBroker, Callable[[], None]]]:
    """The port, and what kills the other process."""
    loop = asyncio.get_running_loop()
    (catalogue, far_catalogue), (fragments, far_fragments) = socket.socketpair(), socket.socketpair()
    with far_catalogue, far_fragments:
        process = start_namespace(far_catalogue.fileno(), far_fragments.fileno())
    port = ClusterBroker()
    to_serving = ToServing(port)
    port.configure(
        protocol.CONTROLLER.remote(to_serving),
        [StoreRoute("port", "broker-1", loop, clock, port.dispatch)],
        ["broker-1"],
    )
    to_peer = port.add_peer("broker-1")
    try:
        await loop.create_unix_connection(lambda: to_serving, sock=catalogue)
        await loop.create_unix_connection(lambda: to_peer, sock=fragments)
        await port.wait_for_peers(["broker-1"])
        yield port, process.kill
    finally:
        to_serving.close()
        await asyncio.to_thread(process.wait, 20)
        to_peer.close()
    assert process.returncode in (0, -9)
