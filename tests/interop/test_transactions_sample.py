"""The sample of transactions, as a user runs it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from busbar.client import MessagingFactory
from harness.serving import serving
from tests.interop.transactions import peeked

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(60)


async def test_receipts() -> None:
    config = (ROOT / "src" / "busbar" / "app" / "sample" / "Config.json").read_text("utf-8")
    with serving(config=config, checked=True) as server:
        sample = [
            sys.executable,
            str(ROOT / "samples" / "transactions" / "receipts.py"),
            server.connection_string,
        ]
        done = await asyncio.to_thread(
            lambda: subprocess.run(sample, capture_output=True, text=True, timeout=40, check=False)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines() == ["ann: done", "bob: rolled back", "cleo: done", "bob: done"]
        async with await MessagingFactory.connect(server.connection_string) as factory:
            assert await peeked(factory, "orders") == []
            expected = [f"receipt for {customer}" for customer in ("ann", "cleo", "bob")]
            for _ in range(100):
                found = await peeked(factory, "replies")
                if found == expected:
                    break
                await asyncio.sleep(0.05)
            assert found == expected, "one for each, and none of what was rolled back"
