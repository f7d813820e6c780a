"""Commands that destroy need a word from somebody, an intact store is not reset, and what was set aside can be put back."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from typing import Any

import pytest

from busbar.catalogue.placement import place
from busbar.cli.main import run
from harness.serving import Busbar

STORES = ["store-0", "store-1", "store-2", "store-3"]
OUT = "store-2"
FIRST, SECOND, THIRD = [name for name in map("r{}".format, range(99)) if place(name, 1, STORES) == (OUT,)][:3]

pytestmark = [pytest.mark.timeout(120), pytest.mark.server({FIRST: {}})]


def busbar(server: Busbar, *arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*arguments, "--data", str(server.data)])
    return code, out.getvalue(), err.getvalue()


def done(server: Busbar, *arguments: str) -> str:
    code, out, err = busbar(server, *arguments)
    assert code == 0, err
    return out


def received(server: Busbar, queue: str, count: int) -> list[tuple[str, int]]:
    """Bodies and sequence numbers; all of them are completed."""
    found: list[Any] = json.loads(done(server, "receive", queue, "--max", str(count), "-o", "json"))
    return [(one["body"], one["brokerProperties"]["SequenceNumber"]) for one in found]


def test_nobody_is_no_consent_and_an_intact_store_is_not_reset(own_server: Busbar) -> None:
    done(own_server, "send", FIRST, "precious")
    done(own_server, "stores", "offline", OUT)
    for arguments in (
        ("stores", "reset", OUT),
        ("queue", "delete", FIRST),
        ("stores", "reset", OUT, "--force"),
    ):
        refused = subprocess.run(
            [sys.executable, "-m", "busbar", *arguments, "--data", str(own_server.data)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert refused.returncode == 2 and "--yes" in refused.stderr, refused.stderr
    code, _, err = busbar(own_server, "stores", "reset", OUT, "--yes")
    assert code == 4 and "intact" in err and "--force" in err
    done(own_server, "stores", "online", OUT)
    assert [body for body, _ in received(own_server, FIRST, 1)] == ["precious"]


def test_what_was_set_aside_is_put_back(own_server: Busbar) -> None:
    for number in range(3):
        done(own_server, "send", FIRST, f"old {number}")
    done(own_server, "queue", "create", SECOND)
    done(own_server, "send", SECOND, "of a queue that goes")
    done(own_server, "tap", "create", FIRST, "tap")
    done(own_server, "tap", "delete", FIRST, "tap", "--yes")
    done(own_server, "stores", "offline", OUT)
    done(own_server, "stores", "reset", OUT, "--force", "--yes")
    # The namespace goes on: numbers are given, queues come and go.
    done(own_server, "queue", "create", THIRD)
    done(own_server, "queue", "delete", SECOND, "--yes")
    for queue in (FIRST, THIRD):
        done(own_server, "send", queue, "meanwhile")
    code, _, err = busbar(own_server, "stores", "restore", OUT)
    assert code == 1 and "Another Busbar" in err
    own_server.stop()
    code, _, err = busbar(own_server, "stores", "restore", OUT)
    assert code == 4 and "holds 2 messages" in err, "nothing is overwritten"
    own_server.start()
    given = received(own_server, FIRST, 1) + received(own_server, THIRD, 1)
    own_server.stop()
    assert busbar(own_server, "stores", "restore", OUT, "--file", "other")[0] == 4
    assert busbar(own_server, "stores", "restore", "store-1")[0] == 4, "nothing was set aside of it"
    assert f"is {OUT} again, with 3 messages" in done(own_server, "stores", "restore", OUT)

    own_server.start()
    assert "warning: the store" not in own_server.error_text
    assert {view["state"] for view in json.loads(done(own_server, "stores", "list", "-o", "json"))} == {
        "open"
    }
    assert busbar(own_server, "queue", "show", SECOND)[0] == 3, "what was deleted since stays deleted"
    for queue in (FIRST, THIRD):
        done(own_server, "send", queue, "new")
    back, third = received(own_server, FIRST, 4), received(own_server, THIRD, 1)
    assert [body for body, _ in back] == ["old 0", "old 1", "old 2", "new"]
    assert back[-1][1] > given[0][1] and third[0][1] > given[1][1], "no number is given twice"
    # The one that was in its place was set aside in turn.
    own_server.stop()
    assert "with 0 messages" in done(own_server, "stores", "restore", OUT)
    own_server.start()
    assert json.loads(done(own_server, "queue", "show", FIRST, "-o", "json"))["messageCount"] == 0
