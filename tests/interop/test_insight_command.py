"""`busbar insight` before Spark runs: it keeps reports, reports what it waits for, and leaves nothing behind on a signal."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from busbar.client import OutgoingMessage, encode
from busbar.client.blocking import connect
from busbar.client.blocking_administration import BlockingAdministrationClient
from busbar.jobs.insight_figures import EntityCounts
from harness.serving import PATIENCE, Busbar
from tests.interop.test_job_commands import LISTENER, nowhere, run, running

pytest.importorskip("pyspark")

QUEUES: dict[str, dict[str, object]] = {"orders": {}, "counted": {}}

pytestmark = [pytest.mark.timeout(120), pytest.mark.server(QUEUES, PATIENCE, rules=[LISTENER])]


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands run in a directory of their own, and may set the variable for Spark's workers."""
    monkeypatch.setenv("BUSBAR_CONNECTION_STRING", "")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_reports_that_it_waits_for_its_broker_and_ends_on_a_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    with running(tmp_path, nowhere(), "insight", "orders") as command:
        command.wait_for("waiting for the broker at 127.0.0.1")
        assert command.end(number) == 128 + number
        assert "Traceback" not in command.errors and len(command.errors.splitlines()) <= 3, command.errors
        assert not (tmp_path / "insight.html").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_watch_that_a_signal_ends_leaves_no_tap(
    server: Busbar, number: signal.Signals, tmp_path: Path
) -> None:
    with running(tmp_path, server.connection_string, "insight", "orders", "--watch", "5m") as command:
        command.wait_for("watching for 300 s")
        with connect(server.connection_string) as factory:
            assert len(factory.taps("orders").list()) == 1
            assert command.end(number) == 128 + number
            assert factory.taps("orders").list() == ()
        assert "Traceback" not in command.errors and len(command.errors.splitlines()) <= 4, command.errors


def test_a_report_that_exists_is_kept_and_found_before_anything_else(server: Busbar, tmp_path: Path) -> None:
    week = tmp_path / "week.html"
    week.write_text("last week")
    code, printed, errors = run(server.connection_string, "insight", "orders", "--report", str(week))
    assert (code, printed) == (2, "")
    assert errors == [f"busbar: --report {week} exists. Name another file, or overwrite it with --overwrite."]
    assert week.read_text() == "last week"
    with connect(server.connection_string) as factory:
        assert factory.taps("orders").list() == (), "no tap was made"


def test_failures_are_one_line(server: Busbar) -> None:
    code, _, errors = run(server.connection_string, "insight", "nowhere")
    assert code == 3 and len(errors) == 1 and "nowhere" in errors[0], errors
    code, _, errors = run(server.connection_string, "insight", "orders", "--watch", "soon")
    assert code == 2 and len(errors) == 1 and "--watch" in errors[0], errors
    code, _, errors = run(nowhere(), "insight", "orders", "--wait", "1s")
    assert code == 1 and "Traceback" not in " ".join(errors) and "waited 1s" in errors[-1], errors


def waiting_and_dead(counts: EntityCounts | None) -> tuple[int, int]:
    assert counts is not None
    return counts.waiting, counts.dead_letters


def test_counts_are_those_of_the_queue_the_subscription_and_their_dead_letters(server: Busbar) -> None:
    from busbar.jobs import insight_sources as sources
    from busbar.spark.secrets import Secret

    secret = Secret(literal=server.connection_string)
    with BlockingAdministrationClient.from_connection_string(server.connection_string) as admin:
        admin.create_topic("news")
        admin.create_subscription("news", "all")
    messages = [encode(OutgoingMessage(body=b"%d" % number)) for number in range(10)]
    with connect(server.connection_string) as factory:
        for entity in ("counted", "news"):
            with factory.sender(entity) as sender:
                sender.send(messages)
        with factory.receiver("counted", credit=6) as receiver:
            taken = receiver.receive(6, 10)
            while len(taken) < 6:
                taken += receiver.receive(6 - len(taken), 10)
            receiver.dead_letter(taken[:2], "spoiled")
            receiver.complete(taken[2:5])
            receiver.defer(taken[5:])
    looked = sources.look(secret, "counted", "insight")
    assert waiting_and_dead(looked.counts) == (5, 2), "a deferred message is in the queue"
    assert looked.fresh and looked.remarks == ()
    assert waiting_and_dead(sources.counts_of(secret, "counted", True)) == (2, 0)
    assert waiting_and_dead(sources.counts_of(secret, "news/Subscriptions/all", False)) == (10, 0)

    # Without the right to see the counts, the report is made without them, and states it.
    listening = server.connection_string.replace("RootManageSharedAccessKey", "listener")
    listening = listening.replace(server.key, str(LISTENER["PrimaryKey"]))
    looked = sources.look(Secret(literal=listening), "counted", "insight")
    assert looked.counts is None and not looked.fresh
    (remark,) = looked.subject.coverage.remarks
    assert remark.startswith("The counts of the entity could not be read: ")
