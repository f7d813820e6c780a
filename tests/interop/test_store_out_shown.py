"""A store that is unavailable does not look like an empty queue: lists, `busbar receive` and /health say what cannot be
reached."""

from __future__ import annotations

import contextlib
import io
import json
import time
import urllib.request
from typing import Any

import pytest

from busbar.catalogue.placement import place
from busbar.cli.main import run
from harness.serving import Busbar

STORES = ["store-0", "store-1", "store-2", "store-3"]
OUT = "store-2"
INSIDE = next(name for name in map("r{}".format, range(99)) if place(name, 1, STORES) == (OUT,))
OUTSIDE = next(name for name in map("r{}".format, range(99)) if place(name, 1, STORES) != (OUT,))
QUEUES = {"p": {"EnablePartitioning": True}, INSIDE: {}, OUTSIDE: {}}
LISTEN = "SharedAccessKeyName=listener;SharedAccessKey=bGlzdGVu;UseDevelopmentEmulator=true"

LISTENER = {"Name": "listener", "Rights": ["Listen"], "PrimaryKey": "bGlzdGVu"}
pytestmark = pytest.mark.server(QUEUES, rules=[LISTENER])
with_one_and_two_brokers = pytest.mark.parametrize("server", ["1", "2"], indirect=True)


def busbar(server: Busbar, *arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    where = () if "--connection-string" in arguments else ("--data", str(server.data))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*arguments, *where])
    return code, out.getvalue(), err.getvalue()


def health(server: Busbar) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=20) as answer:
        assert answer.status == 200
        return json.load(answer)


@pytest.fixture(scope="module", autouse=True)
def store_that_is_out(server: Busbar) -> None:
    assert busbar(server, "send", INSIDE, "waits")[0] == 0
    assert health(server) == {"status": "healthy", "message": "Busbar is ready."}
    assert busbar(server, "stores", "offline", OUT)[0] == 0


@with_one_and_two_brokers
def test_lists_say_limited_and_which_store_is_out(server: Busbar) -> None:
    code, out, err = busbar(server, "queue", "list")
    rows = {line.split()[0]: line.split()[1:4] for line in out.splitlines() if line.strip()}
    assert code == 0
    assert rows[INSIDE] == rows["p"] == ["Limited", "0+", "0+"]
    assert rows[OUTSIDE] == ["Active", "0", "0"]
    assert err.startswith(f"Limited: the store {OUT} is unavailable since ") and err.count("\n") == 1
    assert busbar(server, "queue", "show", INSIDE)[2] == err
    assert busbar(server, "queue", "show", OUTSIDE)[2] == ""


@pytest.mark.parametrize("server", ["1"], indirect=True)
def test_receive_does_not_say_that_there_is_nothing(server: Busbar) -> None:
    code, out, err = busbar(server, "receive", "p")
    assert (code, out) == (1, "")
    assert "Limited" in err and f"the store {OUT} is unavailable" in err and "no message" not in err
    assert busbar(server, "receive", OUTSIDE)[0] == 0
    # Whoever has a message is told that there may be more.
    assert busbar(server, "send", "p", "here")[0] == 0
    code, out, err = busbar(server, "receive", "p", "--max", "2")
    assert (code, out) == (0, "here\n") and f"{OUT} is unavailable" in err
    # A key that may not look at fragments learns as much as everyone.
    connection = f"Endpoint=sb://127.0.0.1:{server.port};{LISTEN}"
    code, _, err = busbar(server, "receive", INSIDE, "--connection-string", connection)
    assert code == 1 and f"{OUT} is unavailable, and may hold a part of it" in err


@with_one_and_two_brokers
def test_health_names_the_stores_that_are_out(server: Busbar) -> None:
    deadline = time.monotonic() + 10
    while (said := health(server))["status"] == "healthy" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (said["status"], said["stores"]) == ("limited", [OUT])
    assert OUT in said["message"]
