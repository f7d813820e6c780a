"""Dead letters go back to their entity: once, in order, and deleted only when the target has them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from busbar.jobs.redrive import RedriveError, RedriveProgress, RedriveReport, redrive
from tests.spark.conftest import PATIENCE, SOURCES, Namespace, received
from tests.spark.letters import bury, decoded, make, numbered, take


def run(namespace: Namespace, entity: str, **options: object) -> RedriveReport:
    return redrive(entity, connection=namespace.server.connection_string, **options)  # type: ignore[arg-type]


@pytest.mark.req("D4")
def test_dead_letters_go_back_as_they_were(namespace: Namespace, queue: str) -> None:
    bury(namespace, queue, numbered(50))
    steps: list[RedriveProgress] = []
    report = run(namespace, queue, on_progress=steps.append)
    assert (report.there, report.found, report.moved, report.refused, report.left) == (50, 50, 50, 0, 0)
    assert steps[-1].moved == steps[-1].total == 50
    assert take(namespace, queue, 0, "deadletter") == []
    taken = take(namespace, queue, 50)
    messages = decoded(taken)
    assert [message.application_properties["number"] for message in messages] == list(range(50))
    for number, message in enumerate(messages):
        assert message.data == f"body {number}".encode() * 3
        assert (message.group_id, message.subject) == (f"s{number % 3}", "a subject")
        # Nothing says any more that it was dead; under which id it went, and where it came from.
        assert message.application_properties.keys() == {"number", "original-message-id"}
        assert message.application_properties["original-message-id"] == f"id {number}"
        assert str(message.message_id).startswith(f"{queue}:{number + 1}:")
    assert taken[0].delivery_count == 0
    again = run(namespace, queue)
    assert (again.there, again.moved) == (0, 0)


@pytest.mark.req("D4")
def test_a_partitioned_queue_keeps_the_order_of_its_sessions(namespace: Namespace, wide: str) -> None:
    bury(namespace, wide, numbered(300))
    assert run(namespace, wide).moved == 300
    seen: dict[object, list[object]] = {}
    for message in decoded(take(namespace, wide, 300)):
        seen.setdefault(message.group_id, []).append(message.application_properties["number"])
    assert seen == {f"s{turn}": list(range(turn, 300, 3)) for turn in range(3)}


@pytest.mark.req("D4")
def test_what_was_not_selected_stays_and_is_not_locked(namespace: Namespace, queue: str) -> None:
    bury(namespace, queue, numbered(30), ["odd", "even", "other"])
    plan = run(namespace, queue, reasons=["odd"], dry_run=True)
    assert (plan.there, plan.found, plan.moved) == (30, 10, 0)
    assert plan.reasons == {"odd": 10}
    assert [row["reason"] for row in plan.sample] == ["odd"] * 5
    assert run(namespace, queue, reasons=["odd", "other"], most=4).moved == 4
    report = run(namespace, queue, reasons=["odd"])
    assert (report.there, report.found) == (26, report.moved)
    # They can be received at once, and nobody counts that they were held.
    with namespace.factory.receiver(queue, sub_queue="deadletter") as receiver:
        left = received(receiver, 26 - report.moved)
        assert {message.delivery_count for message in left} == {0}


@pytest.mark.req("D4")
def test_elsewhere_with_a_condition_and_edits(namespace: Namespace, queue: str) -> None:
    other = f"{queue}-repair"
    make(namespace, other)
    bury(namespace, queue, numbered(20))
    options = {
        "target": other,
        "where": "properties['number'].long >= 15 and dead_letter_reason = 'broken'",
        "edits": {
            "subject": "concat('again: ', subject)",
            "properties.number": "null",
            "body": "upper(cast(body as string))",
        },
        "session": namespace.spark,
    }
    plan = run(namespace, queue, dry_run=True, sample=3, **options)
    assert [row["messageId"] for row in plan.sample] == ["id 15", "id 16", "id 17"], (
        "of those that were chosen"
    )
    assert plan.sample[0]["edits"] == {
        "subject": "again: a subject",
        "properties.number": None,
        "body": "BODY 15BODY 15BODY 15",
    }
    report = run(namespace, queue, **options)
    assert (report.there, report.found, report.moved) == (20, 5, 5)
    messages = decoded(take(namespace, other, 5))
    assert [message.data for message in messages] == [
        f"BODY {number}".encode() * 3 for number in range(15, 20)
    ]
    assert {message.subject for message in messages} == {"again: a subject"}
    assert {tuple(message.application_properties) for message in messages} == {("original-message-id",)}
    with pytest.raises(RedriveError, match="an expression cannot be understood"):
        run(namespace, queue, where="no_such_column = 1", session=namespace.spark)
    assert run(namespace, queue, dry_run=True).there == 15


@pytest.mark.req("D4")
def test_what_the_target_does_not_take_stays(namespace: Namespace, queue: str) -> None:
    sessions = f"{queue}-sessions"
    make(namespace, sessions, requires_session=True)
    messages = numbered(6)
    messages[2].session_id = None
    bury(namespace, queue, messages)
    report = run(namespace, queue, target=sessions)
    assert (report.moved, report.refused, report.left) == (5, 1, 0)
    assert "session" in report.examples[0].lower() and f"{queue}:3:" in report.examples[0]
    assert decoded(take(namespace, queue, 1, "deadletter"))[0].message_id == "id 2"


@pytest.mark.req("D4")
def test_a_kill_between_accept_and_delete_makes_no_second_copy(namespace: Namespace, queue: str) -> None:
    queue = f"{queue}-locks"
    make(namespace, queue, lock_duration="PT5S")  # whoever was killed has them locked for so long
    bury(namespace, queue, numbered(500))
    command = [sys.executable, "-m", "busbar", "redrive", queue, "--rate", "1000", "-o", "json"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "BUSBAR_CONNECTION_STRING": namespace.server.connection_string,
    }
    killed = subprocess.run(
        command,
        env={**environment, "BUSBAR_FAULT_POINT": "before-delete:2"},
        timeout=PATIENCE,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL
    command[2:4] = ["busbar.jobs.redrive"]  # the entry for spark-submit
    finished = subprocess.run(command[:-2], env=environment, timeout=PATIENCE, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert 0 < report["moved"] < 500 and report["left"] == 0  # the first chunk was deleted before the kill
    messages = decoded(take(namespace, queue, 500))
    assert [message.application_properties["number"] for message in messages] == list(range(500))
    assert len({message.message_id for message in messages}) == 500
    assert all(message.data == f"body {number}".encode() * 3 for number, message in enumerate(messages))


@pytest.mark.req("D4")
def test_a_queue_made_anew_is_another_source(namespace: Namespace, queue: str) -> None:
    target = f"{queue}-target"
    make(namespace, target)
    bury(namespace, queue, numbered(3))
    assert run(namespace, queue, target=target).moved == 3
    namespace.remake(queue)
    bury(namespace, queue, numbered(3))
    assert run(namespace, queue, target=target).moved == 3
    take(namespace, target, 6)
