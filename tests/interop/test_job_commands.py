"""The commands of jobs before Spark runs: what they wait for, how signals end them, and what they check first."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from busbar.cli import main
from busbar.client import OutgoingMessage, encode
from busbar.client.blocking import connect
from harness.lateness import Lateness
from harness.serving import PATIENCE, Busbar, config_text
from harness.terminal import TerminalProgram

pytest.importorskip("pyspark")

LISTENER = {"Name": "listener", "Rights": ["Listen"], "PrimaryKey": "bGlzdGVu"}
QUEUES: dict[str, dict[str, object]] = {"orders": {}, "other": {}, "barred": {}}

pytestmark = [pytest.mark.timeout(120), pytest.mark.server(QUEUES, PATIENCE, rules=[LISTENER])]

ENDS_WITHIN = 2.0
QUICK_START = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1"


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def nowhere() -> str:
    """The connection string of a broker that does not run."""
    return (
        f"Endpoint=sb://127.0.0.1:{unused_port()}/;SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
    )


class Command:
    """A running `busbar` command; its standard error is a file, so that it can be read meanwhile."""

    def __init__(self, directory: Path, connection: str, *arguments: str) -> None:
        self._errors = directory / "errors.txt"
        with open(self._errors, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "busbar", *arguments, "--connection-string", connection],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=os.environ | {"TMPDIR": str(directory)},
            )

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def wait_for(self, words: str) -> None:
        until = time.monotonic() + 60
        while words not in self.errors:
            assert self.process.poll() is None and time.monotonic() < until, self.errors
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the whole process group for Ctrl-C, as a terminal does, else to the process. It ends in time;
        returns the exit code."""
        with Lateness(self.process.pid) as lateness:
            began = time.monotonic()
            if number is signal.SIGINT:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)
            code = self.process.wait(60)
            seconds = time.monotonic() - began
        assert seconds < lateness.allowed(ENDS_WITHIN), self.errors
        return code

    def members(self) -> list[int]:
        """The processes of its session that live."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self.process.pid and fields[0] != "Z":
                    found.append(int(entry.name))
        return found

    def lines(self) -> list[str]:
        """Their command lines."""
        found = []
        for member in self.members():
            with contextlib.suppress(OSError):  # it has ended
                found.append(Path(f"/proc/{member}/cmdline").read_bytes().decode())
        return found


@contextmanager
def running(directory: Path, connection: str, *arguments: str) -> Iterator[Command]:
    command = Command(directory, connection, *arguments)
    try:
        yield command
    finally:
        for pid in command.members():
            os.kill(pid, signal.SIGKILL)
        command.process.communicate()


def run(connection: str, *arguments: str) -> tuple[int, str, list[str]]:
    """A command in this process to its end: exit code, and what it printed without the line that names the namespace."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.run([*arguments, "--connection-string", connection])
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("namespace: ")]
    return code, out.getvalue(), lines


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands run in a directory of their own, and may set the variable for Spark's workers."""
    monkeypatch.setenv("BUSBAR_CONNECTION_STRING", "")
    monkeypatch.chdir(tmp_path)


JOBS = {
    "capture": ("capture", "orders", "--output", "archive"),
    "capture now": ("capture", "orders", "--output", "archive", "--available-now"),
    "replay": ("replay", "orders/$DeadLetterQueue", "other"),
    "redrive": ("redrive", "orders"),
}


@pytest.mark.parametrize(
    ("job", "number"),
    [
        ("capture", signal.SIGTERM),
        ("capture", signal.SIGINT),
        ("capture now", signal.SIGTERM),
        ("replay", signal.SIGINT),
        ("redrive", signal.SIGTERM),
    ],
)
def test_a_job_that_waits_for_its_broker_reports_it_and_ends_on_a_signal(
    job: str, number: signal.Signals, tmp_path: Path
) -> None:
    connection = nowhere()
    with running(tmp_path, connection, *JOBS[job]) as command:
        command.wait_for("waiting for the broker at 127.0.0.1:")
        assert f"for up to {'1m' if job == 'redrive' else '5m'}" in command.errors
        before = command.errors
        code = command.end(number)
        after = command.errors.removeprefix(before)
    assert code == (0 if job == "capture" else 128 + number)
    (line,) = after.splitlines()
    assert line.startswith(
        f"busbar: {job.split()[0]} stopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["errors.txt"], "nothing is half done"


@pytest.mark.parametrize("job", JOBS)
def test_a_broker_that_never_answers_is_one_line(job: str) -> None:
    code, printed, lines = run(nowhere(), *JOBS[job], "--wait", "1s")
    assert (code, printed) == (1, "")
    waiting, failure = lines
    assert "waiting for the broker at" in waiting and waiting.rstrip(" …").endswith("for up to 1s")
    assert re.fullmatch(r"busbar: .* cannot be reached: .* The job has waited 1s for it\.", failure)


def test_a_job_goes_on_when_its_broker_comes(tmp_path: Path) -> None:
    broker = Busbar(tmp_path / "data", config_text({"orders": {}}))
    broker.port = unused_port()
    connection = (
        f"Endpoint=sb://127.0.0.1:{broker.port}/;SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={broker.key};UseDevelopmentEmulator=true"
    )
    with running(tmp_path, connection, "redrive", "orders", "-o", "json") as command:
        command.wait_for("waiting for the broker at")
        broker.start()
        try:
            printed = command.process.communicate(timeout=60)[0]
        finally:
            assert broker.stop() == 0
        assert command.process.returncode == 0, command.errors
        assert re.search(r"the broker at .* answers after \d+ s", command.errors)
    assert json.loads(printed)["there"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_job_while_spark_starts(
    server: Busbar, number: signal.Signals, tmp_path: Path
) -> None:
    with running(tmp_path, server.connection_string, *JOBS["capture now"]) as command:
        command.wait_for("starting Spark")
        until = time.monotonic() + 60
        while not any(QUICK_START in line for line in command.lines()):  # Java, or the script that starts it
            assert time.monotonic() < until, "a short job starts Java without its second compiler"
            time.sleep(0.02)
        before = command.errors
        code = command.end(number)
        (line,) = command.errors.removeprefix(before).splitlines()
        assert code == 128 + number and "capture stopped by" in line
        until = time.monotonic() + 60
        while command.members():
            assert time.monotonic() < until, "Java is left behind"
            time.sleep(0.05)
    with connect(server.connection_string) as factory:
        (tap,) = factory.taps("orders").list()
        assert tap.reader == f"capture job to {tmp_path / 'archive'} on {os.uname().nodename}"
        factory.taps("orders").delete(tap.name)


def test_a_redrive_on_a_narrow_terminal_shows_a_bar_that_ctrl_c_takes_away(
    server: Busbar, tmp_path: Path
) -> None:
    count = 400
    with connect(server.connection_string) as factory:
        with factory.sender("barred") as sender:
            sender.send([encode(OutgoingMessage(b"%d" % number)) for number in range(count)])
        receiver = factory.receiver("barred", credit=count)
        dead = 0
        while dead < count:
            received = receiver.receive(count, 10)
            receiver.dead_letter(received, "spoiled")
            dead += len(received)
    command = [sys.executable, "-m", "busbar", "redrive", "barred", "--to", "other", "--rate", "20"]
    environment = os.environ | {"BUSBAR_CONNECTION_STRING": server.connection_string}
    with TerminalProgram(command, columns=44, directory=tmp_path, environment=environment) as program:
        program.wait_for(f" of {count} moved")
        with Lateness(program.pid) as lateness:
            began = time.monotonic()
            program.press_ctrl_c()
            assert program.end() == 130
            seconds = time.monotonic() - began
        assert seconds < lateness.allowed(ENDS_WITHIN)
    shown = re.sub(r"\x1b\[[\d;]*m", "", program.raw)
    assert re.search(rf"\S{{10}} +\d+ of {count} moved 0:00:\d\d(?!\d)", shown), shown
    left = " ".join(program.screen.text.split())
    assert re.search(r"CONNECTION_STRING\) busbar: redrive stopped by Ctrl-C; [^:]+\.$", left), (
        "the bar is gone"
    )
    assert program.screen.has_cursor and "Traceback" not in shown


# ---- what is checked before Spark starts ---------------------------------------------------------


def with_listen(server: Busbar) -> str:
    """A connection string that gives the right to receive only."""
    return server.connection_string.replace("RootManageSharedAccessKey", "listener").replace(
        server.key, str(LISTENER["PrimaryKey"])
    )


def fails(connection: str, *arguments: str) -> tuple[int, str]:
    """The exit code, and the one line of the failure."""
    code, printed, lines = run(connection, *arguments)
    assert printed == "" and not any("Spark" in line for line in lines)
    return code, lines[-1]


def test_a_target_that_is_missing(server: Busbar) -> None:
    source = "orders/$DeadLetterQueue"
    code, line = fails(server.connection_string, "replay", source, "no-such-queue")
    assert code == 3 and line.startswith("busbar: the target 'no-such-queue' is not there")
    code, line = fails(
        server.connection_string, "redrive", "orders", "--to", "no-such-queue", "--where", "true"
    )
    assert code == 3 and line.startswith("busbar: the target 'no-such-queue' is not there")


def test_a_right_that_is_missing(server: Busbar) -> None:
    source = "orders/$DeadLetterQueue"
    code, line = fails(with_listen(server), "replay", source, "other")
    assert code == 4 and "does not give the right to send to 'other'" in line
    code, line = fails(with_listen(server), "capture", "orders", "--output", "archive")
    assert code == 4 and "Manage" in line


def test_a_source_that_is_missing(server: Busbar, tmp_path: Path) -> None:
    connection = server.connection_string
    code, line = fails(connection, "replay", "nowhere", "other")
    assert code == 3 and "neither a directory nor a dead-letter queue" in line
    code, line = fails(connection, "replay", "nowhere/$DeadLetterQueue", "other")
    assert code == 3 and "nowhere" in line
    (tmp_path / "empty").mkdir()
    code, line = fails(connection, "replay", "empty", "other")
    assert code == 3 and "neither an archive nor a directory with Parquet files" in line
    code, line = fails(connection, "capture", "nowhere", "--output", "archive")
    assert code == 3 and "'nowhere'" in line and "BUSBAR_" not in line


def test_values_in_a_wrong_form(server: Busbar, tmp_path: Path) -> None:
    connection = server.connection_string
    capture = ("capture", "orders", "--output", "archive")
    code, line = fails(connection, *capture, "--interval", "5 bananas")
    assert (code, line) == (
        2,
        "busbar: --interval is '5 bananas'; it is a duration like 200ms, 10s, 1m or 1h.",
    )
    replay = ("replay", "orders/$DeadLetterQueue", "other")
    code, line = fails(connection, *replay, "--from", "yesterday")
    assert code == 2 and "2026-01-31T12:00:00Z" in line
    code, line = fails(connection, *replay, "--from", "2026-02-01", "--to", "2026-01-31")
    assert code == 2 and "is not behind the beginning" in line
    code, line = fails(connection, *replay, "--set", "nothing=1")
    assert code == 2 and line.startswith("busbar: --set: ")
    assert not (tmp_path / "archive").exists()
