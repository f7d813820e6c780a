"""What operators see of messages on their way to other entities: counts, `busbar transfers`, metrics, the terminal."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from busbar.cli.main import run
from busbar.client import MessagingFactory
from harness.serving import Busbar
from harness.waiting import until
from tests.interop.forwarding import Forwarding

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("server", ["1", "2"], indirect=True),
    pytest.mark.server(
        {}, {"transfer_patience": 600_000, "min_size_in_megabytes": 1, "size_increment": 1}, checked=True
    ),
]


@pytest_asyncio.fixture(loop_scope="session")
async def here(server: Busbar) -> AsyncIterator[Forwarding]:
    async with await MessagingFactory.connect(server.connection_string) as factory:
        yield Forwarding(server, factory)


def cli(server: Busbar, *arguments: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run([*arguments, "--data", str(server.data)]) == 0
    return out.getvalue()


def scrape(server: Busbar) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    secret = base64.b64encode(f"RootManageSharedAccessKey:{server.key}".encode()).decode()
    connection.request("GET", "/metrics", headers={"Authorization": f"Basic {secret}"})
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def transfers(server: Busbar, source: str) -> list[dict[str, Any]]:
    found = json.loads(cli(server, "transfers", "-o", "json"))
    return [view for view in found if view["source"] == source]


async def test_a_target_that_is_full_is_shown_everywhere(here: Forwarding) -> None:
    server = here.server
    target = here.queue("full", MaxSizeInMegabytes=1)
    source = here.queue("source", ForwardTo=target)
    for number in range(8):
        await here.send(source, "x" * 200_000, message_id=f"m{number}")
    await until(lambda: any(view["state"] == "held" for view in transfers(server, source)), pause=0.1)

    (view,) = transfers(server, source)
    waiting = here.counts(source)["Transfer"]
    assert waiting and (view["waiting"], view["target"], view["cause"]) == (waiting, target, "full")
    assert view["since"] and view["oldest"] <= view["since"]
    assert here.counts(source)["All"] == waiting

    table = cli(server, "transfers")
    assert re.search(rf"{source} +0 +{target} +{waiting} .* held .* full", table), table
    assert f"{source} to {target}: " in table
    fragments = json.loads(cli(server, "queue", "show", source, "--fragments", "-o", "json"))
    assert [fragment["transfer"] for fragment in fragments] == [waiting]
    shown = json.loads(cli(server, "queue", "show", source, "-o", "json"))
    assert shown["countDetails"]["transferMessageCount"] == waiting

    text = scrape(server)
    assert f'busbar_messages{{entity="{source}",state="transfer"}} {waiting}\n' in text
    assert f'busbar_transfer_held{{entity="{source}",target="{target}",reason="full"}} 1\n' in text
    assert re.search(rf'busbar_transfer_oldest_seconds{{entity="{source}",target="{target}"}} \d+\n', text)
    (moved,) = re.findall(r"busbar_transfers_total (\d+)\n", text)
    assert int(moved) >= 8 - waiting

    await here.take(target, 8)
    await until(lambda: transfers(server, source) == [], pause=0.1)
    assert f'busbar_transfer_held{{entity="{source}"' not in scrape(server)


async def test_failed_transfers_are_counted_and_received_over_http(here: Forwarding) -> None:
    itself = here.queue("itself")
    here.update(itself, ForwardDeadLetteredMessagesTo=itself)
    await here.send(itself, "bad")
    receiver = await here.factory.receiver(itself)
    for _ in range(5):
        await receiver.dead_letter(await receiver.receive(1, 10), "Bad", "")
    await receiver.close()
    await here.until(itself, "TransferDeadLetter", 1)
    assert f'busbar_messages{{entity="{itself}",state="transfer_dead_letter"}} 1\n' in scrape(here.server)
    received = cli(here.server, "receive", f"{itself}/$Transfer/$DeadLetterQueue")
    assert received.strip() == "bad"
    await here.until(itself, "All", 0)
