"""Archives and dead-letter queues are sent to an entity: each message once, as it was, in order."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from busbar.client import OutgoingMessage, encode
from busbar.jobs.capture import capture
from busbar.jobs.replay import ReplayProgress, ReplayReport, main, replay
from busbar.jobs.replay_source import ReplayError
from tests.spark.conftest import PATIENCE, SOURCES, JobMaster, Namespace
from tests.spark.letters import bury, decoded, make, numbered, take

COUNT = 2400
"""More than one task sends."""


def run(namespace: Namespace, source: object, target: str, **options: object) -> ReplayReport:
    options.setdefault("session", namespace.spark)
    return replay(str(source), target, connection=namespace.server.connection_string, wait=20, **options)  # type: ignore[arg-type]


def descriptions(namespace: Namespace) -> set[str]:
    """The descriptions of the last jobs, as Spark's UI shows them."""
    java: Any = namespace.spark.sparkContext._jsc
    jobs = java.sc().statusStore().jobsList(None)
    found = (jobs.apply(number).description() for number in range(jobs.size()))
    return {str(each.get()) for each in found if each.isDefined()}


def held(namespace: Namespace, queue: str) -> int:
    """How many messages have ever come into a queue."""
    return sum(namespace.taps(queue).ends().ends.values())


@pytest.mark.req("D4")
def test_an_archive_comes_back_once_in_order_and_as_it_was(
    namespace: Namespace, wide: str, tmp_path: Path
) -> None:
    connection = namespace.server.connection_string
    with namespace.factory.sender(wide) as sender:
        sender.send([encode(message) for message in numbered(COUNT)])
    archive = tmp_path / "archive"
    capture(
        [wide],
        archive,
        connection=connection,
        available_now=True,
        session=namespace.spark,
        options={"startingPosition": "earliest"},
    )
    target = f"{wide}-target"
    make(namespace, target)

    plan = run(
        namespace,
        archive,
        target,
        where="session_id = 's1'",
        dry_run=True,
        sample=3,
        edits=["subject=upper(subject)"],
    )
    assert (plan.found, plan.sent, plan.entities) == (COUNT // 3, 0, {wide: COUNT // 3})
    assert plan.first is not None and plan.first <= str(plan.last)
    assert [row["edits"] for row in plan.sample] == [{"subject": "A SUBJECT"}] * 3
    assert held(namespace, target) == 0
    # Times beside the condition. What is not found is explained by what there is.
    past = run(namespace, archive, target, until="2020-01-01", dry_run=True)
    assert past.found == 0 and len(past.there) <= 2
    assert re.fullmatch(r"reads 0 of [\d,]+ files, 0\.0 of [\d.]+ MB", past.read)
    assert all(re.fullmatch(rf"{wide}: \S+Z to \S+Z, [\d,]+ messages", line) for line in past.there)
    assert run(namespace, archive, target, since="2020-01-01", dry_run=True, sample=0).found == COUNT

    steps: list[ReplayProgress] = []
    report = run(namespace, archive, target, on_progress=steps.append)
    assert (report.found, report.sent, report.refused) == (COUNT, COUNT, 0)
    assert steps[-1].sent == steps[-1].total == COUNT
    assert (report.added, report.known, report.unsure) == (COUNT, 0, 0)
    read = re.fullmatch(r"reads (\d+) of (\d+) files, [\d.]+ of [\d.]+ MB", report.read)
    assert read is not None and read[1] == read[2] != "0"
    assert f"busbar replay: {archive} → {target}" in descriptions(namespace)
    counts = [step.sent for step in steps]
    assert counts == sorted(counts), "progress goes forward"
    # Once more, and with other partitions: everything is known.
    namespace.spark.conf.set("spark.sql.files.maxPartitionBytes", "4k")
    again = run(namespace, archive, target)
    assert (again.sent, again.added, again.known) == (COUNT, 0, COUNT)
    namespace.spark.conf.unset("spark.sql.files.maxPartitionBytes")
    taken = take(namespace, target, COUNT)
    seen: dict[object, list[object]] = {}
    for received, message in zip(taken, decoded(taken), strict=True):
        number = message.application_properties["number"]
        seen.setdefault(message.group_id, []).append(number)
        assert message.data == f"body {number}".encode() * 3
        assert (message.subject, message.content_type) == ("a subject", None)
        assert message.application_properties.keys() == {"number", "original-message-id"}
        assert message.application_properties["original-message-id"] == f"id {number}"
        assert str(message.message_id).startswith(f"{wide}:")
        # It lives anew as long as it did.
        assert (
            received.payload[:4] == b"\x00\x53\x70\xc0"
            and (3_600_000).to_bytes(4, "big") in received.payload[:20]
        )
    assert seen == {f"s{turn}": list(range(turn, COUNT, 3)) for turn in range(3)}
    assert len({message.message_id for message in decoded(taken)}) == COUNT

    # What is filtered and edited is another replay. This one keeps the ids, and is done for good when it is repeated.
    edits = {
        "session_id": "concat(session_id, '!')",
        "properties.number": "cast(properties['number'].long + 1 as int)",
        "properties.from": "entity",
        "time_to_live": "null",
        "body": "concat('edited ', cast(body as string))",
    }
    options = {"where": "properties['number'].long < 10", "edits": edits, "order": "all", "ids": "message"}
    assert run(namespace, archive, target, **options, rate=100).sent == 10
    assert run(namespace, archive, target, **options, forget=True).sent == 10
    with pytest.raises(ReplayError, match="finished for good"):
        run(namespace, archive, target, **options)
    messages = decoded(take(namespace, target, 10))
    edited = {str(message.message_id): message for message in messages}
    assert edited.keys() == {f"id {number}" for number in range(10)}
    assert edited["id 3"].data == b"edited " + b"body 3" * 3
    assert edited["id 3"].application_properties == {"number": 4, "from": wide}
    assert [m.message_id for m in messages if m.group_id == "s0!"] == ["id 0", "id 3", "id 6", "id 9"]


@pytest.mark.req("D4")
def test_a_dead_letter_queue_is_replayed_and_stays(namespace: Namespace, queue: str) -> None:
    target = f"{queue}-target"
    make(namespace, target, requires_session=True)
    messages = numbered(20)
    messages[4].session_id = None
    bury(namespace, queue, messages)
    source = f"{queue}/$DeadLetterQueue"
    report = run(namespace, source, target, where="dead_letter_reason = 'broken'", order="none")
    assert (report.found, report.sent, report.refused) == (20, 19, 1)
    assert report.examples[0].startswith(f"{queue}:5:") and "session" in report.examples[0].lower()
    assert held(namespace, target) == 19
    assert len(take(namespace, queue, 20, "deadletter")) == 20

    for options, words in (
        ({"where": "nothing = 1"}, "an expression cannot be understood.*nothing"),
        ({"where": "subject ="}, "an expression cannot be understood"),
        ({"order": "random"}, "the order is 'random'"),
    ):
        with pytest.raises(ReplayError, match=words):
            run(namespace, source, target, **options)
    with pytest.raises(ReplayError, match="neither a directory nor a dead-letter queue"):
        run(namespace, "nowhere", target)
    bury(namespace, queue, [OutgoingMessage(b"x", message_id="same", session_id="s")] * 2)
    with pytest.raises(ReplayError, match="2 messages have the id 'same'"):
        run(namespace, source, target, ids="message")
    with pytest.raises(ReplayError, match=r"no-such-queue.*is not there"):
        run(namespace, source, "no-such-queue")
    assert held(namespace, target) == 19


@pytest.mark.req("D4")
def test_a_kill_in_the_middle_and_a_second_run_make_each_message_once(
    namespace: Namespace,
    queue: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    job_master: JobMaster,
) -> None:
    target = f"{queue}-target"
    make(namespace, target)
    count = 600
    with namespace.factory.sender(queue) as sender:
        sender.send([encode(message) for message in numbered(count)])
    namespace.read(queue).write.parquet(str(tmp_path / "parquet"))
    command = [sys.executable, "-m", "busbar", "replay", str(tmp_path / "parquet"), target, "-o", "json"]
    environment = {
        **os.environ,
        **job_master.variables(tmp_path),
        "PYTHONPATH": str(SOURCES),
        "BUSBAR_CONNECTION_STRING": namespace.server.connection_string,
    }
    process = subprocess.Popen(
        [*command, "--master", job_master.address, "--rate", "60"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + PATIENCE
        while not 50 < held(namespace, target) < count:
            assert process.poll() is None and time.monotonic() < until, process.poll()
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    between = held(namespace, target)
    assert 50 < between < count
    # The same again, as spark-submit would start it.
    assert main([str(tmp_path / "parquet"), target, "--connection-file", str(namespace.secret)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["found"], report["sent"], report["entities"]) == (count, count, {queue: count})
    assert report["added"] + report["known"] == count and report["known"] >= between and not report["unsure"]
    messages = decoded(take(namespace, target, count))
    numbers: list[Any] = [message.application_properties["number"] for message in messages]
    assert sorted(numbers) == list(range(count))
    assert len({message.message_id for message in messages}) == count
    assert all(m.data == f"body {n}".encode() * 3 for n, m in zip(numbers, messages, strict=True))
    for turn in range(3):
        assert [n for n in numbers if n % 3 == turn] == list(range(turn, count, 3))
