"""`busbar serve` as a process: what it prints where, how it ends, and what it refuses."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from busbar import __version__
from busbar.app.addresses import is_loopback
from busbar.app.config import ConfigError
from busbar.app.server import ServeConfig

ROOT = Path(__file__).resolve().parents[3]
READY = re.compile(
    r"ready Endpoint=sb://127\.0\.0\.1:(?P<port>\d+);SharedAccessKeyName=(?P<name>[^;]+);"
    r"SharedAccessKey=(?P<key>[^;]+);UseDevelopmentEmulator=true;\n"
)


def busbar(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "busbar", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


def ends(*arguments: str) -> tuple[int, str, str]:
    process = busbar(*arguments)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], re.Match[str]]]:
    process = busbar("serve", "--port", "0", "--http-port", "0", *arguments)
    assert process.stdout is not None
    line = process.stdout.readline()
    ready = READY.fullmatch(line)
    try:
        if ready is None:
            process.kill()
            pytest.fail(f"not ready: {line!r} {process.communicate()[1]}")
        yield process, ready
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_serve_stop_and_serve_again(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path)) as (process, ready):
        assert ready["name"] == "RootManageSharedAccessKey"
        assert len(base64.b64decode(ready["key"])) == 32
        socket.create_connection(("127.0.0.1", int(ready["port"])), 5).close()

        status, out, err = ends("serve", "--data", str(tmp_path), "--port", "0", "--http-port", "0")
        assert status == 1
        assert out == ""
        assert f"process {process.pid}" in err
        assert str(tmp_path) in err
        assert "Traceback" not in err

        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0
        assert out == "", "the ready line stands alone"
        assert "ServiceBusClient.from_connection_string" in err
        assert "Traceback" not in err
        health = re.search(r"health: (http://\S+)", err)
        assert health is not None
    with serving("--data", str(tmp_path)) as (process, second):
        assert second["key"] == ready["key"], "the key is kept"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_health_answers_while_serving(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        http_port = free.getsockname()[1]
    with (
        serving("--data", str(tmp_path), "--http-port", str(http_port)),
        urllib.request.urlopen(f"http://127.0.0.1:{http_port}/health", timeout=5) as answer,
    ):
        assert answer.status == 200


def test_keys_can_be_given_or_be_the_well_known_one(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path), "--key-name", "mine", "--key", "secret") as (_, ready):
        assert (ready["name"], ready["key"]) == ("mine", "secret")
    with serving("--data", str(tmp_path), "--dev") as (_, ready):
        assert ready["key"] == "SAS_KEY_VALUE"
    assert not (tmp_path / "sas.key").exists()


def test_warnings_name_what_is_not_served_and_what_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    file.write_text(
        """{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [
            {"Name": "s", "Properties": {"RequiresSession": true, "Nonsense": 1}}, {"Name": "plain"},
            {"Name": "quick", "Properties": {"EnableExpress": true}},
            {"Name": "f", "Properties": {"ForwardTo": "plain"}}],
            "Topics": [{"Name": "t", "Properties": {"EnableExpress": true}, "Subscriptions": [
                {"Name": "plain"}, {"Name": "on", "Properties": {"ForwardTo": "plain"}}]}]}]}}"""
    )
    with serving("--data", str(tmp_path / "d"), "--config", str(file)) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert "forwarding" not in err
    assert "EnableExpress" not in err
    assert "topics" not in err
    assert "Properties.Nonsense is not known here" in err
    assert "sessions" not in err

    file.write_text(file.read_text().replace('"RequiresSession": true', '"RequiresSession": false'))
    status, _, err = ends("serve", "--data", str(tmp_path / "d"), "--config", str(file), "--port", "0")
    assert status == 2
    assert "RequiresSession is true since its creation" in err

    dead = '{"Name": "d", "Properties": {"ForwardDeadLetteredMessagesTo": "plain"}}'
    file.write_text(file.read_text().replace('{"Name": "plain"},', f'{{"Name": "plain"}}, {dead},', 1))
    with serving("--data", str(tmp_path / "new"), "--config", str(file)) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert "ForwardDeadLetteredMessagesTo" not in err

    file.write_text(
        file.read_text().replace('"ForwardDeadLetteredMessagesTo": "plain"', '"ForwardTo": "none"', 1)
    )
    status, _, err = ends("serve", "--data", str(tmp_path / "newer"), "--config", str(file), "--port", "0")
    assert status == 2
    assert "ForwardTo is 'none'; there is no queue or topic of that name" in err


def test_usage_and_configuration_errors_are_one_line_and_code_2(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    data = str(tmp_path / "d")
    for arguments, words in (
        (["--config", str(bad)], "bad.json: this is not JSON"),
        (["--config", str(tmp_path / "none.json")], "cannot be read"),
        (["--dev", "--host", "0.0.0.0"], "--dev uses a key that everyone knows"),
    ):
        status, out, err = ends("serve", "--data", data, *arguments)
        assert status == 2, err
        assert out == ""
        assert words in err
        assert err.count("\n") == 1
    assert ends("serve", "--port", "x")[0] == 2


def test_a_port_that_is_taken_is_said_plainly(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, out, err = ends("serve", "--data", str(tmp_path), "--port", str(port), "--http-port", "0")
    assert status == 1
    assert out == ""
    assert f"Cannot listen on 127.0.0.1:{port}" in err
    assert "Traceback" not in err


def test_version() -> None:
    assert ends("--version") == (0, f"busbar {__version__}\n", "")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("::", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_dev_and_a_key_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="--dev brings its own"):
        ServeConfig(dev=True, key="k")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_nobody_reads_standard_error_any_more(tmp_path: Path, number: signal.Signals) -> None:
    """The log's pipe may end first, as when a terminal or a whole group of processes does."""
    with serving("--data", str(tmp_path / "data")) as (process, _):
        assert process.stderr is not None
        process.stderr.close()
        process.stderr = None
        process.send_signal(number)
        assert process.wait(20) == 0
