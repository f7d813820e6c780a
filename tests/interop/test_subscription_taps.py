"""Taps on subscriptions, and writers to topics: each subscription remembers for its own taps, and gets nothing twice."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message

from busbar.cli.main import run
from busbar.model.effects import COMPLETED, DEAD_LETTERED
from busbar.model.message import ACTIVE, DEAD, KEPT
from harness.serving import PATIENCE, Busbar, config_text
from harness.waiting import eventually
from tests.interop.plain_amqp import PlainAmqp
from tests.interop.taps import Refused, Taps, body_of, write

SUBSCRIPTIONS = ("audit", "billing")
TOPICS: dict[str, dict[str, object]] = {
    **{f"t{n}": {} for n in range(6)},
    **{f"w{n}": {"EnablePartitioning": True} for n in range(3)},
}
LIMITS = {**PATIENCE, "min_lock_duration": 100}


def config(topics: Mapping[str, Mapping[str, object]] = TOPICS) -> str:
    document = json.loads(config_text({}, LIMITS))
    document["UserConfig"]["Namespaces"][0]["Topics"] = [
        {
            "Name": name,
            "Properties": dict(properties),
            "Subscriptions": [{"Name": one} for one in SUBSCRIPTIONS],
        }
        for name, properties in topics.items()
    ]
    return json.dumps(document)


pytestmark = [pytest.mark.timeout(60), pytest.mark.server(config=config(), checked=True)]


@pytest.fixture
def client(server: Busbar) -> Iterator[PlainAmqp]:
    connection = PlainAmqp(server.port, server.key)
    yield connection
    connection.close()


_given = {"t": itertools.count(), "w": itertools.count()}


@pytest.fixture(params=("t", "w"), ids=("regular", "partitioned"))
def topic(request: pytest.FixtureRequest) -> str:
    """One that no other test has used."""
    return f"{request.param}{next(_given[request.param])}"


class Tapped:
    """A subscription and its taps."""

    def __init__(self, client: PlainAmqp, topic: str, name: str) -> None:
        self.client = client
        self.path = f"{topic}/Subscriptions/{name}"
        self.taps = Taps(client, self.path)
        self.dead = Taps(client, f"{topic}/subscriptions/{name.upper()}", dead_letter=True)

    def settle(self, count: int, outcome: int = Delivery.ACCEPTED) -> None:
        receiver = self.client.receiver(self.path, count)
        taken = [self.client.take(receiver) for _ in range(count)]
        for _message, delivery in taken:
            assert self.client.settle(delivery, outcome) == outcome
        receiver.close()

    def lanes(self, name: str | None) -> dict[str, int]:
        """What lies behind a tap that has passed nothing, with the state of each."""
        return {
            body_of(row).decode(): row.lane
            for index, end in self.taps.ends().items()
            for row in self.taps.rows(name, 0, end, index)
        }

    def bodies(self, name: str | None = None) -> list[str]:
        ends = self.taps.ends()
        rows = [row for index, end in ends.items() for row in self.taps.rows(name, 0, end, index)]
        return sorted(body_of(row).decode() for row in rows)


def send(client: PlainAmqp, topic: str, *bodies: str) -> None:
    client.send(topic, *[Message(id=body[:20], body=body.encode(), inferred=True) for body in bodies])


def kept(tapped: Tapped, name: str) -> int:
    return sum(fragment["kept"] for fragment in tapped.taps("show-tap", name=name)["fragments"])


def test_a_subscription_keeps_for_its_own_tap(client: PlainAmqp, topic: str) -> None:
    audit, billing = (Tapped(client, topic, name) for name in SUBSCRIPTIONS)
    made = audit.taps("create-tap", name="archive", from_earliest=True, owner="me")
    assert made["entity"] == audit.path
    assert len(made["fragments"]) == (1 if topic.startswith("t") else 16)
    assert made["incarnation"] != billing.taps("ends")["incarnation"]
    sent = {f"m{n}" for n in range(12)}
    send(client, topic, *sent)
    audit.settle(12)
    billing.settle(12)
    assert audit.lanes("archive") == dict.fromkeys(sent, KEPT)
    assert (audit.lanes(None), billing.lanes(None)) == ({}, {})
    assert billing.taps("list-taps")["taps"] == []
    send(client, topic, "later")
    assert audit.lanes("archive") == {**dict.fromkeys(sent, KEPT), "later": ACTIVE}
    ends = audit.taps.ends()
    audit.taps("advance-tap", name="ARCHIVE", owner="me", positions=ends)
    eventually(lambda: kept(audit, "archive") == 0)
    index = max(ends, key=lambda each: ends[each])
    with pytest.raises(Refused, match="busbar:tap-passed"):
        audit.taps.rows("archive", 0, ends[index], index)


def test_a_tap_of_a_subscription_is_truncated_alone(client: PlainAmqp) -> None:
    topic = f"t{next(_given['t'])}"
    audit, billing = (Tapped(client, topic, name) for name in SUBSCRIPTIONS)
    for tapped in (audit, billing):
        tapped.taps("create-tap", name="small", owner="me", max_size=1_500 if tapped is audit else 0)
    for n in range(12):
        send(client, topic, f"{n:02}" + "x" * 200)
    for tapped in (audit, billing):
        tapped.settle(12)
    eventually(lambda: bool(audit.taps("show-tap", name="small")["truncated"]))
    with pytest.raises(Refused, match="busbar:tap-truncated"):
        audit.taps.rows("small", 0, 12)
    assert not billing.taps("show-tap", name="small")["truncated"]
    assert len(billing.taps.rows("small", 0, 12)) == 12


def test_events_and_dead_letters_of_a_subscription(client: PlainAmqp, topic: str) -> None:
    audit, billing = (Tapped(client, topic, name) for name in SUBSCRIPTIONS)
    made = audit.dead("create-tap", name="failures", owner="me")
    assert made["dead-letter"] and made["entity"] == audit.path, "as the broker spells it"
    audit.taps("create-tap", name="history", events=True)
    send(client, topic, "a", "b", "c")
    audit.settle(1)
    audit.settle(2, Delivery.REJECTED)
    billing.settle(3)
    fragments = range(len(made["fragments"]))
    events = [event.outcome for index in fragments for event in audit.taps.events("history", 0, index)]
    assert sorted(events) == sorted([COMPLETED, DEAD_LETTERED, DEAD_LETTERED])
    ends = audit.dead("ends")["dead-ends"]
    assert sum(ends.values()) == 2 and sum(billing.dead("ends")["dead-ends"].values()) == 0
    rows = [row for index, end in ends.items() for row in audit.dead.rows("failures", 0, end, index)]
    assert [row.lane for row in rows] == [DEAD, DEAD]
    receiver = client.receiver(f"{audit.path}/$DeadLetterQueue", 2)
    for _ in range(2):
        assert client.settle(client.take(receiver)[1], Delivery.ACCEPTED) == Delivery.ACCEPTED
    receiver.close()
    again = [row for index, end in ends.items() for row in audit.dead.rows("failures", 0, end, index)]
    assert [(row.n, row.lane) for row in again] == [(row.n, KEPT) for row in rows]


def test_a_tap_consumes_one_subscription_and_leaves_the_others(client: PlainAmqp) -> None:
    topic = f"t{next(_given['t'])}"
    audit, billing = (Tapped(client, topic, name) for name in SUBSCRIPTIONS)
    audit.taps("create-tap", name="eater", consumes=True, owner="me", lease=60_000)
    send(client, topic, "a", "b")
    assert audit.bodies("eater") == ["a", "b"]
    receiver = client.receiver(audit.path, 5)
    client.listen(0.2)
    assert not receiver.fetcher.has_message, "while the lease runs nobody else receives"
    billing.settle(2)
    audit.taps("advance-tap", name="eater", owner="me", positions={0: 2})
    eventually(lambda: audit.bodies() == [])
    audit.taps("delete-tap", name="eater")
    send(client, topic, "c")
    message, _delivery = client.take(receiver)
    assert message.body == b"c"


def test_a_batch_that_is_written_again_reaches_no_subscription_twice(client: PlainAmqp, topic: str) -> None:
    audit, billing = (Tapped(client, topic, name) for name in SUBSCRIPTIONS)
    writers = Taps(client, topic)
    ids = [f"m{n}" for n in range(30)]
    assert write(client, topic, "job", 1, ids) == []
    audit.settle(30)  # what was received is still known
    assert write(client, topic, "job", 1, [*reversed(ids), "late"]) == []
    writers("commit-writes", writer="job", batch=2)
    assert set(write(client, topic, "job", 1, ids)) == {"busbar:batch-over"}, "a zombie"
    assert audit.bodies() == ["late"]
    assert billing.bodies() == sorted([*ids, "late"])
    assert sum(audit.taps.ends().values()) == sum(billing.taps.ends().values()) == 31
    with pytest.raises(Refused, match="but to its topic") as refused:
        audit.taps("commit-writes", writer="job", batch=3)
    assert refused.value.status == 400
    for operation in ("create-tap", "list-taps", "ends", "read-tap"):
        with pytest.raises(Refused, match="are with its subscriptions") as refused:
            writers(operation, name="t")
        assert refused.value.status == 400


def test_taps_and_writers_survive_kill_nine(tmp_path: Path) -> None:
    server = Busbar(tmp_path / "data", config({"t": {}})).start()
    try:
        client = PlainAmqp(server.port, server.key)
        audit, ids = Tapped(client, "t", "audit"), [f"m{n}" for n in range(20)]
        audit.taps("create-tap", name="archive", owner="me")
        assert write(client, "t", "job", 1, ids) == []
        audit.settle(20)
        audit.taps("advance-tap", name="archive", owner="me", positions={0: 5})
        server.kill()
        server.start()
        client = PlainAmqp(server.port, server.key)
        audit, billing = (Tapped(client, "t", name) for name in SUBSCRIPTIONS)
        assert audit.taps("show-tap", name="archive")["fragments"][0]["position"] == 5
        assert [body_of(row).decode() for row in audit.taps.rows("archive", 5, 20)] == ids[5:]
        assert write(client, "t", "job", 1, [*ids, "late"]) == []
        assert (audit.bodies(), billing.bodies()) == (["late"], sorted([*ids, "late"]))
        client.close()
    finally:
        server.stop()


# ---- as a command ----


def shown(server: Busbar, *arguments: str) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["tap", *arguments, "--data", str(server.data), "-o", "json"]) == 0
    return json.loads(out.getvalue())


def test_the_command(server: Busbar, client: PlainAmqp, capsys: pytest.CaptureFixture[str]) -> None:
    topic = f"t{next(_given['t'])}"
    path = f"{topic}/Subscriptions/audit"
    made = shown(server, "create", f"{topic}/subscriptions/AUDIT", "archive", "--from-earliest")
    assert (made["entity"], made["deadLetter"]) == (path, False)
    failures = shown(server, "create", f"{path}/$DeadLetterQueue", "failures")
    assert (failures["entity"], failures["deadLetter"]) == (path, True)
    send(client, topic, "a", "b")
    assert shown(server, "advance", path, "archive", "--to-end", "--yes")["fragments"][0]["position"] == 2
    assert [tap["name"] for tap in shown(server, "list", path)] == ["archive"]
    assert [tap["name"] for tap in shown(server, "list", f"{path}/$deadletterqueue")] == ["failures"]
    assert shown(server, "list", f"{topic}/Subscriptions/billing") == []
    assert run(["tap", "show", f"{path}/$DeadLetterQueue", "failures", "--data", str(server.data)]) == 0
    assert f"{path}/$DeadLetterQueue" in capsys.readouterr().out
    for arguments, code, said in (
        ((topic, "t"), 4, "are with its subscriptions"),
        ((f"{topic}/Subscriptions/nobody", "t"), 3, "nobody"),
    ):
        assert run(["tap", "create", *arguments, "--data", str(server.data)]) == code
        assert said in capsys.readouterr().err
