"""`busbar insight` over a server with known traffic: every figure can be counted."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from busbar.cli.main import run as busbar
from busbar.client import OutgoingMessage, encode
from busbar.jobs import archive, insight_sources
from busbar.jobs import insight as insight_job
from busbar.jobs.capture import capture
from busbar.jobs.insight import Clients, EntitySettings, insight, render
from busbar.jobs.insight_figures import Backlog, EntityReport
from busbar.jobs.intervals import ValueRefused
from busbar.spark.secrets import Secret
from harness.waiting import eventually
from tests.spark.conftest import PATIENCE, Namespace, received

QUEUES: dict[str, dict[str, object]] = {
    "orders": {"EnablePartitioning": True, "RequiresDuplicateDetection": True},
    "quiet": {},
    "tight": {},
    "drained": {},
    "wide": {"EnablePartitioning": True},
    "archived": {"RequiresDuplicateDetection": True},
    "watched": {"LockDuration": "PT30S"},
}

# a report looks at everything several times, and the machine may be busy
pytestmark = [pytest.mark.timeout(600), pytest.mark.server(QUEUES)]


def trade(namespace: Namespace, queue: str) -> None:
    """300 messages, two thirds of them with one key, 10 of them twice. 90 are received and deleted; 10 are dead-lettered;
    200 are completed, 20 of these at the second attempt."""
    messages = [
        encode(
            OutgoingMessage(
                body=b"an order",
                message_id=f"order {number}",
                partition_key="hot" if number % 3 else f"key {number % 10}",
            )
        )
        for number in range(300)
    ]
    with namespace.factory.sender(queue) as sender:
        sender.send(messages[:90])
        with namespace.factory.receiver(queue, delete=True) as receiver:
            received(receiver, 90)
        sender.send(messages[90:])
        sender.send(messages[:10])
    with namespace.factory.receiver(queue, credit=300) as receiver:
        taken = received(receiver, 210)
        receiver.dead_letter(taken[:7], "spoiled", "it smells")
        receiver.dead_letter(taken[7:10], "unknown")
        receiver.complete(taken[10:190])
        receiver.abandon(taken[190:])
        receiver.complete(received(receiver, 20))


OUTCOMES = {
    "abandoned": 20,
    "completed": 200,
    "dead-lettered": 10,
    "duplicate-dropped": 10,
    "received-and-deleted": 90,
}


def figures_of_dead_letters(report: EntityReport) -> tuple[int, int, int | None]:
    """How many came into a dead-letter queue, were done with there, and are there."""
    return report.figures.sent.count, report.figures.done.count, report.figures.waiting


def check_drained(report: EntityReport) -> None:
    """The tap was made after all messages were done with. No end is recorded, and nothing is concluded from that."""
    figures = report.figures
    assert (figures.sent.count, figures.done.count, figures.coverage.events) == (200, 0, 0)
    assert (figures.fates.ended, figures.fates.waiting, figures.fates.unknown) == (0, 0, 200)
    assert figures.fates.states == {"dead-lettered": 10, "done": 190}
    assert figures.counts is not None
    assert (figures.counts.waiting, figures.counts.dead_letters) == (0, 10)
    assert (figures.waiting, figures.finished, figures.dead_letters.count) == (0, 190, 10)
    assert all(slot.done is None and slot.backlog is None for slot in figures.slots)
    assert figures.coverage.missing == 0 and figures.sent.busy_rate is not None, "nothing is missing between"
    text = " ".join(finding.text for finding in report.advice.findings)
    assert "When 200 of 200 messages ended is not known" in text
    assert "of all messages 190 were done and 10 were dead letters" in text
    assert "not done with" not in text and "keep up" not in text


@pytest.mark.req("D6", "B14")
def test_a_report_counts_what_happened_and_advises(namespace: Namespace, tmp_path: Path) -> None:
    taps = namespace.taps("orders")
    taps.create("insight", events=True, from_earliest=True, owner="me")
    namespace.taps("orders", "deadletter").create("insight", events=True, owner="me")
    trade(namespace, "orders")
    with namespace.factory.receiver("orders", sub_queue="deadletter") as receiver:
        receiver.complete(received(receiver, 3))
    namespace.send("quiet", [b"one", b"two", b"three"])
    # Another tap keeps what was done with before this report makes its own.
    namespace.taps("drained").create("archive", owner="other")
    namespace.send("drained", [b"%03d" % number for number in range(200)])
    with namespace.factory.receiver("drained", credit=200) as receiver:
        taken = received(receiver, 200)
        receiver.dead_letter(taken[:10], "spoiled")
        receiver.complete(taken[10:])
    # A tap that may keep next to nothing loses what it had not passed.
    namespace.taps("tight").create("insight", events=True, owner="me", max_size=2_000)
    namespace.send("tight", [b"%03d" % number + bytes(200) for number in range(50)])
    namespace.receive("tight", 50)

    report = insight(
        ["orders", "quiet", "/tight/", "drained", "orders/$DeadLetterQueue"],
        connection=Secret(file=str(namespace.secret)),
        clients=Clients(receivers=2, goal="throughput"),
        settings={"orders": EntitySettings(lock_seconds=30)},
        session=namespace.spark,
        advance=True,
    )
    orders, quiet, tight, drained, dead = report.entities
    figures = orders.figures
    assert (figures.sent.count, figures.done.count) == (300, 290)
    assert sum(figures.outcomes.values()) == sum(OUTCOMES.values())
    assert all(
        figures.outcomes[name] == OUTCOMES[name]
        for name in ("abandoned", "dead-lettered", "duplicate-dropped")
    )
    assert figures.redelivered == 20
    assert len(figures.fragments) == 16
    assert sum(each.sent for each in figures.fragments) == 300
    hot = max(figures.fragments, key=lambda each: each.sent)
    assert hot.sent >= 200 and hot.share == hot.sent / 300
    assert [(each.name, each.count) for each in figures.keys.top[:2]] == [("hot", 200), ("key 0", 10)]
    assert (figures.keys.count, figures.keys.distinct, len(figures.keys.top)) == (300, 11, 10)
    assert [(each.name, each.count) for each in figures.dead_letters.top] == [("spoiled", 7), ("unknown", 3)]
    assert (figures.duplicates.count, figures.duplicates.distinct) == (10, 10)
    assert sum(slot.sent or 0 for slot in figures.slots) == 300
    assert sum(slot.done or 0 for slot in figures.slots) == 290
    latency = figures.latency
    assert latency is not None and latency.count == 290
    assert 0 <= latency.p50 <= latency.p95 <= latency.p99 <= latency.most
    assert sum(each.count for each in latency.histogram) == 290
    assert figures.coverage.complete and figures.coverage.messages == 300
    assert sum(each.upto - each.after for each in figures.coverage.fragments) == 300
    # Locks of 30 s: half of 20 seconds' worth of what the receivers did.
    assert figures.done.busy_rate is not None
    assert orders.advice.prefetch == -(-figures.done.busy_rate * 10 // 1)
    assert orders.advice.scenario == "several high-throughput queues"
    # Everything is recorded: the backlog follows from the count, which is zero.
    assert (figures.fates.ended, figures.fates.waiting, figures.fates.unknown) == (300, 0, 0)
    assert figures.fates.states == {"dead-lettered": 7, "done": 293}, "three dead letters were completed"
    assert (figures.backlog, figures.waiting, figures.slots[-1].backlog) == (Backlog.COUNTED, 0, 0)
    assert any("'hot' alone has 67%" in each.text for each in orders.advice.findings)

    assert figures_of_dead_letters(dead) == (10, 3, 7)
    check_drained(drained)

    assert (quiet.figures.waiting, quiet.figures.fates.held) == (3, 3)
    assert quiet.figures.sent.count == 3 and quiet.figures.latency is None
    assert "made just now" in quiet.figures.coverage.remarks[0]
    assert namespace.taps("quiet").show("insight").events

    assert not tight.figures.coverage.complete
    assert tight.figures.coverage.fragments[0].lost > 0
    assert tight.figures.sent.count < 50
    assert any(each.grave and "truncated" in each.text for each in tight.advice.findings)
    assert not namespace.taps("tight").show("insight").truncated

    # The next report begins here.
    view = taps.show("insight")
    assert all(each.position == each.end and each.event_position == each.event_end for each in view.fragments)
    page = render(report)
    assert "spoiled" in page and page.count("<svg") >= 4


def test_fragments_that_cannot_be_reached_are_named(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insight_sources, "WAIT_SECONDS", 1.0)
    namespace.taps("wide").create("insight", events=True, owner="me")
    namespace.send("wide", [b"%d" % number for number in range(300)], keyed=True)
    namespace.receive("wide", 100)
    data = ["--data", str(namespace.server.data)]
    assert busbar(["stores", "offline", "store-2", *data]) == 0
    try:
        report = insight(["wide"], connection=Secret(file=str(namespace.secret)), session=namespace.spark)
    finally:
        assert busbar(["stores", "online", "store-2", *data]) == 0
    (wide,) = report.entities
    figures, coverage = wide.figures, wide.figures.coverage
    assert 0 < len(coverage.unavailable) < 16 and not coverage.complete
    assert {each.index for each in figures.fragments}.isdisjoint(coverage.unavailable)
    assert len(figures.fragments) + len(coverage.unavailable) == 16
    assert sum(each.upto for each in coverage.fragments) == figures.sent.count < 300
    assert 0 < figures.done.count <= 100 and figures.waiting is None
    (first, *others) = wide.advice.findings
    assert first.grave and "could not be reached" in first.text
    assert not any("keep up" in each.text or "even share" in each.text for each in others)


@pytest.mark.req("D6")
def test_archives_tell_the_same(namespace: Namespace, tmp_path: Path) -> None:
    messages, events = tmp_path / "messages", tmp_path / "events"

    def captured(stop: threading.Event) -> None:
        capture(
            ["archived"],
            messages,
            events=events,
            connection=Secret(file=str(namespace.secret)),
            available_now=True,
            session=namespace.spark,
            compacting=False,
            stop=stop,
        )

    over = threading.Event()
    over.set()
    captured(over)  # makes its taps, and no more
    trade(namespace, "archived")
    captured(threading.Event())
    report = insight(archives=[messages, events], session=namespace.spark)
    (archived,) = report.entities
    figures = archived.figures
    assert (figures.entity, figures.sent.count, figures.done.count) == ("archived", 300, 290)
    assert figures.outcomes == OUTCOMES
    assert figures.dead_letters.top[0].name == "spoiled"
    assert (figures.fates.ended, figures.fates.waiting, figures.fates.unknown) == (300, 0, 0)
    assert (figures.fates.states, figures.counts, figures.waiting) == (None, None, 0)
    (fragment,) = figures.coverage.fragments
    assert (fragment.after, fragment.upto, fragment.event_after, fragment.event_upto) == (0, 300, 0, 330)
    check_selection(namespace, messages, events)


def check_selection(namespace: Namespace, messages: Path, events: Path) -> None:
    """A report on the messages with one key that came in the second half of `trade`. It has all their events."""
    rows = {row["message_id"]: row for row in archive.dataset(messages).to_table().to_pylist()}
    since = rows["order 90"]["enqueued_time"]
    numbers = {
        row["sequence_number"]
        for row in rows.values()
        if row["partition_key"] == "hot" and row["enqueued_time"] >= since
    }
    assert len(numbers) == 140
    outcomes = Counter(
        row["outcome"]
        for row in archive.dataset(events).to_table().to_pylist()
        if row["sequence_number"] in numbers
    )
    report = insight(
        archives=[messages, events],
        where="partition_key = 'hot'",
        since=since.isoformat(),
        session=namespace.spark,
    )
    (selected,) = report.entities
    figures = selected.figures
    assert (figures.sent.count, figures.sent.first_time) == (140, int(since.timestamp() * 1000))
    assert figures.outcomes == outcomes and outcomes["abandoned"] > 0
    assert (figures.fates.ended, figures.fates.waiting, figures.fates.unknown) == (140, 0, 0)
    assert figures.latency is not None and figures.latency.count == outcomes["completed"]
    first, *_others = selected.advice.findings
    assert first.text.endswith(
        "with partition_key = 'hot', and on their events. Shares are not judged, and rates and "
        "advice are those of this part."
    )
    with pytest.raises(ValueRefused, match=r"the condition \(--where\) cannot be understood: .*nothing"):
        insight(archives=[messages, events], where="nothing = 1", session=namespace.spark)


@pytest.mark.req("D6")
def test_the_command_watches_and_leaves_nothing_behind(
    namespace: Namespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command finds the session of the tests; how it starts its own is shown for the other jobs."""
    monkeypatch.setenv("BUSBAR_CONNECTION_STRING", namespace.server.connection_string)
    assert namespace.spark.sparkContext is not None

    def trade_while_it_watches() -> None:
        eventually(lambda: namespace.taps("watched").list() != (), seconds=PATIENCE)
        namespace.send("watched", [b"%d" % number for number in range(41)])
        namespace.receive("watched", 41)

    trading = threading.Thread(target=trade_while_it_watches)

    def watch_until_it_is_over(seconds: float) -> None:
        time.sleep(seconds)
        trading.join(PATIENCE)  # on a busy machine it may take longer

    monkeypatch.setattr(insight_job, "pause", watch_until_it_is_over)
    trading.start()
    command = ["insight", "watched", "--watch", "1s", "--receivers", "1"]
    command += ["--where", "cast(body AS string) <> '40'"]
    # The workers of this session are older than the variable: they get the string as those of a cluster do.
    command += ["--master", "spark://session-of-the-tests"]
    code = busbar([*command, "-o", "json", "--report", str(tmp_path / "report.html")])
    printed, said = capsys.readouterr()
    assert code == 0, said
    assert said.startswith("watching for 1 s …\n")
    (entity,) = json.loads(printed)["entities"]
    assert (entity["figures"]["sent"]["count"], entity["figures"]["done"]["count"]) == (40, 40)
    assert entity["figures"]["coverage"]["condition"] == "cast(body AS string) <> '40'"
    settings = {each["name"]: each for each in entity["advice"]["settings"]}
    assert settings["EnableBatchedOperations"]["value"] == "false", "few messages: latency counts"
    assert "locks of 30 s" in settings["prefetch"]["why"]
    assert "</html>" in (tmp_path / "report.html").read_text()
    assert namespace.taps("watched").list() == ()


def test_what_the_command_cannot_do(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUSBAR_CONNECTION_STRING", namespace.server.connection_string)

    def run(*arguments: str) -> tuple[int, str]:
        code = busbar(["insight", *arguments])
        return code, capsys.readouterr().err

    assert run() == (2, "busbar: which entity? Name one, or an archive with --archive.\n")
    code, said = run("nowhere")
    assert code == 3 and "nowhere" in said and "Traceback" not in said
    for arguments, reason in (
        (["--from", "2026-01-31", "--to", "2026-01-31"], "is not behind the beginning"),
        (["--to", "noon"], "is 'noon'; it is a time like 2026-01-31"),
        (["--advance", "--where", "fragment = 0"], "does not advance the tap"),
        (["--watch", "1s", "--from", "2026-01-31"], "what is watched comes from now on"),
    ):
        code, said = run("quiet", *arguments)
        assert code == 2 and reason in said and said.count("\n") == 1
