"""`busbar backup` and `busbar restore`: stores in files, copied while clients send, receive and forward."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
from pathlib import Path

import pytest

from busbar.cli.main import run
from busbar.client import MessagingFactory, OutgoingMessage, encode
from harness.serving import Busbar, Properties, config_text
from harness.waiting import until

pytestmark = pytest.mark.timeout(120)
# The target is in another store than its source, for some of these: what is forwarded crosses stores.
QUEUES: dict[str, Properties] = {
    "p": {"EnablePartitioning": True},
    **{f"to{n}": {} for n in range(4)},
    **{f"from{n}": {"ForwardTo": f"to{n}"} for n in range(4)},
}


def busbar(*arguments: str, code: int = 0) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run([*arguments]) == code, err.getvalue()
    return out.getvalue(), err.getvalue()


async def load(server: Busbar, acknowledged: list[str]) -> None:
    """Send to a partitioned queue and to queues that forward. `acknowledged` gets what the broker has taken."""
    async with await MessagingFactory.connect(server.connection_string) as factory:
        senders = [await factory.sender(name) for name in ("p", *(f"from{n}" for n in range(4)))]
        for number in itertools.count():
            for index, sender in enumerate(senders):
                id = f"m{number}-{index}"
                await sender.send([encode(OutgoingMessage(b"x" * 500, message_id=id))])
                acknowledged.append(id)


async def received(server: Busbar, wanted: set[str]) -> set[str]:
    """Receive until all that is wanted has come, or for so long that it cannot come any more."""
    found: set[str] = set()
    deadline = asyncio.get_running_loop().time() + 30
    async with await MessagingFactory.connect(server.connection_string) as factory:
        receivers = [await factory.receiver(name) for name in ("p", *(f"to{n}" for n in range(4)))]
        while not wanted <= found and asyncio.get_running_loop().time() < deadline:
            for receiver in receivers:
                messages = await receiver.receive(500, 0.2)
                found |= {str(message.message_id) for message in messages}
                if messages:
                    await receiver.complete(messages)
    return found


@pytest.mark.parametrize("brokers", ["1", "2"])
async def test_nothing_that_was_acknowledged_before_is_missing(tmp_path: Path, brokers: str) -> None:
    data, copy, again = tmp_path / "data", tmp_path / "copy", tmp_path / "again"
    acknowledged: list[str] = []
    server = Busbar(data, config_text(QUEUES), arguments=("--brokers", brokers)).start()
    try:
        sending = asyncio.create_task(load(server, acknowledged))
        await until(lambda: sending.done() or len(acknowledged) > 300, seconds=60)
        before = set(acknowledged)
        out, err = await asyncio.to_thread(busbar, "backup", str(copy), "--data", str(data))
        count = len(acknowledged)
        await until(lambda: sending.done() or len(acknowledged) > count + 50, seconds=60)
        assert not sending.done(), "clients go on while a backup is made, and after it"
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert "verified" in out and "catalogue.db: " in err
    finally:
        server.kill()
    assert "exists" in busbar("backup", str(copy), "--data", str(data), code=2)[1]
    assert "is not empty" in busbar("restore", str(copy), "--data", str(data), code=4)[1]
    busbar("restore", str(copy), "--data", str(again))
    restored = Busbar(again, config_text(QUEUES), arguments=("--brokers", brokers)).start()
    try:
        found = await received(restored, before)
        assert before <= found, sorted(before - found)[:5]
        assert not restored.error_text.count("unavailable"), restored.error_text
    finally:
        assert restored.stop() == 0


def test_a_damaged_backup_is_refused(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    server = Busbar(data, config_text({"q": {}})).start()
    try:
        busbar("backup", str(copy), "--data", str(data))
    finally:
        server.kill()
    target = ("--data", str(tmp_path / "again"))
    assert "is not a backup" in busbar("restore", str(data), *target, code=4)[1]
    store = copy / "data" / "store-0.db"
    whole = store.read_bytes()
    store.write_bytes(whole[:-1] + b"x")
    assert "damaged" in busbar("restore", str(copy), *target, code=4)[1]
    store.unlink()
    assert "not complete" in busbar("restore", str(copy), *target, code=4)[1]
    store.write_bytes(whole)
    manifest = json.loads((copy / "backup.json").read_text())
    assert {"catalogue.db", "store-0.db", "stores.json"} - {*manifest["files"]} <= {"stores.json"}
    assert not (tmp_path / "again").exists() and not (tmp_path / "again.partial").exists()
    busbar("restore", str(copy), *target)
    assert "no Busbar is serving" in busbar("backup", str(tmp_path / "b"), *target, code=1)[1]
