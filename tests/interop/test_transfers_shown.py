"""What operators see of messages on their way to other entities: counts, `busbar transfers`, metrics, the terminal."""

from __future__ import annotations

import asyncio
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
from busbar.client import MessagingFactory, OutgoingMessage, encode
from busbar.model.partitioning import FRAGMENTS, index_of_key
from harness.serving import Busbar
from harness.waiting import until
from tests.interop.forwarding import Forwarding, bodies, reason

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
    assert re.search(rf"{source} +0 +{target} +0 +ForwardTo +{waiting} .* held .* full", table), table
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


async def test_what_waits_is_counted_for_each_target_and_each_kind_of_move(here: Forwarding) -> None:
    server = here.server
    letters, first, second = (
        here.queue(word, MaxSizeInMegabytes=1) for word in ("letters", "first", "second")
    )
    source = here.queue("source", ForwardDeadLetteredMessagesTo=letters)
    big = "x" * 200_000
    for target in (letters, first, second):
        await here.send(target, *[big] * 5, message_id="filler")
    for target, count in ((first, 1), (second, 3)):
        sender = await here.factory.sender(target, via=source)
        await sender.send([encode(OutgoingMessage(big.encode())) for _ in range(count)])
    await here.send(source, big, big, message_id="bad")
    receiver = await here.factory.receiver(source)
    for _ in range(2):
        await receiver.dead_letter(await receiver.receive(1, 10), "Bad", "")
    await receiver.close()

    def shown() -> dict[str, tuple[str, int, str, str]]:
        return {
            view["target"]: (view["by"], view["waiting"], view["state"], view["cause"])
            for view in transfers(server, source)
        }

    expected = {
        letters: ("ForwardDeadLetteredMessagesTo", 2, "held", "full"),
        first: ("via", 1, "held", "full"),
        second: ("via", 3, "held", "full"),
    }
    await until(lambda: shown() == expected, lambda: str(shown()), pause=0.1)
    assert here.counts(source)["Transfer"] == 6
    table = cli(server, "transfers")
    assert re.search(rf"{source} +0 +{letters} +0 +DeadLetters +2 ", table), table
    assert re.search(rf"{source} +0 +{second} +0 +via +3 ", table), table
    await here.take(second, 8)
    await until(lambda: second not in shown(), pause=0.1)
    assert shown() == {target: view for target, view in expected.items() if target != second}


async def test_what_waits_for_a_partitioned_target_is_counted_for_each_fragment(here: Forwarding) -> None:
    target = here.queue("target", MaxSizeInMegabytes=1, EnablePartitioning=True)
    source = here.queue("source")
    places = {index_of_key(key, FRAGMENTS): key for key in map(str, range(200))}
    keys = {index: places[index] for index in (3, 7)}
    for key in keys.values():  # each fragment has the whole size
        await here.send(target, *["x" * 200_000] * 5, message_id="filler", partition_key=key)
    sender = await here.factory.sender(target, via=source)
    for index, key in keys.items():
        made = OutgoingMessage(b"x" * 200_000, partition_key=key)
        await sender.send([encode(made) for _ in range(index)])
    await until(
        lambda: (
            {view["targetIndex"]: view["waiting"] for view in transfers(here.server, source)} == {3: 3, 7: 7}
        ),
        lambda: str(transfers(here.server, source)),
        pause=0.1,
    )


async def fail_via(here: Forwarding, source: str, *texts: str) -> str:
    """Let messages that are sent via an entity fail: their target is deleted before the commit. Returns its name."""
    gone = here.queue("gone")
    sender = await here.factory.sender(gone)
    tx = here.factory.transaction(via=source)
    await tx.begin()
    await sender.send(
        [encode(OutgoingMessage(text.encode(), message_id=text)) for text in texts], transaction=tx
    )
    here.delete(gone)
    await tx.commit()
    await here.until(source, "TransferDeadLetter", len(texts))
    return gone


@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_failed_transfers_are_peeked_and_sent_again_by_commands(here: Forwarding, kind: str) -> None:
    server = here.server
    source = here.queue("source") if kind == "queue" else here.topic()
    other = here.queue("other")
    gone = await fail_via(here, source, "one", "two", "three")
    path = f"{source}/$Transfer/$DeadLetterQueue"

    peeked = json.loads(await asyncio.to_thread(cli, server, "peek", path, "-o", "json"))
    assert [view["body"] for view in peeked] == ["one", "two", "three"]
    assert {view["properties"]["DeadLetterReason"] for view in peeked} == {"MessagingEntityNotFoundException"}
    assert all(gone in view["properties"]["DeadLetterErrorDescription"] for view in peeked)
    table = await asyncio.to_thread(cli, server, "peek", path, "--max", "1")
    assert "MessagingEntityNotFoundException" in table and "one" in table and "two" not in table
    number = str(peeked[1]["sequenceNumber"])
    rest = json.loads(await asyncio.to_thread(cli, server, "peek", path, "--from", number, "-o", "json"))
    assert [view["body"] for view in rest] == ["two", "three"]
    assert here.counts(source)["TransferDeadLetter"] == 3, "peeking changes nothing"

    with pytest.raises(AssertionError):  # without a target
        await asyncio.to_thread(cli, server, "redrive", path)
    tried = json.loads(
        await asyncio.to_thread(cli, server, "redrive", path, "--to", other, "--dry-run", "-o", "json")
    )
    assert (tried["there"], tried["moved"]) == (3, 0)
    assert tried["reasons"] == {"MessagingEntityNotFoundException": 3}
    assert [each["messageId"] for each in tried["sample"]] == ["one", "two", "three"]
    done = json.loads(
        await asyncio.to_thread(cli, server, "redrive", path, "--to", other, "--max", "2", "-o", "json")
    )
    assert (done["found"], done["moved"], done["refused"]) == (2, 2, 0)
    got = await here.take(other, 2)
    assert bodies(got) == ["one", "two"] and reason(got[0]) == "None", "without the reason of its failure"
    assert here.counts(source)["TransferDeadLetter"] == 1
    await asyncio.to_thread(cli, server, "redrive", path, "--to", other)
    assert bodies(await here.take(other, 1)) == ["three"]
    await here.until(source, "TransferDeadLetter", 0)
