"""Commands without a broker: what they accept, refuse and explain."""

from __future__ import annotations

import io
import json
import re
import socket
import time
from pathlib import Path
from threading import Thread

import pytest

from busbar.cli.endpoint import VARIABLE
from busbar.cli.entity_commands import confirm
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.groups import GROUPS
from busbar.cli.main import run
from busbar.cli.output import label, print_table, printable, size_text
from busbar.gateway.authority import Authority
from busbar.model.errors import Unauthorized
from busbar.model.sas import SasRule, sign

CONNECTION = (
    "Endpoint=sb://localhost:5;SharedAccessKeyName=Root;SharedAccessKey=k;UseDevelopmentEmulator=true"
)
RULE = ["r", "--topic", "t", "--subscription", "s"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["queue", "create", "q", "--lock-duration", "soon"], "'soon' is not a duration like 30s"),
        (["queue", "create", "q", "--enable-session", "maybe"], "'maybe' is neither true nor false"),
        (["queue", "create", "q", "--max-size", "1.5"], "'1.5' is not a whole number"),
        (["queue", "create", "q", "--status", "Gone"], "'Gone' is not one of Active, Disabled"),
        (["queue", "create", "q", "--bogus", "1"], "No such option: --bogus"),
        (["queue", "create"], "which queue? Give its name."),
        (["queue", "create", "a", "--name", "b"], "two names: a and --name b"),
        (["queue", "create", "a//b"], "'a//b' cannot be the name of a queue"),
        (["queue", "show", "../x"], "'../x' cannot be the name of a queue"),
        (["queue", "update", "q"], "nothing to change"),
        (["queue", "frobnicate"], "No such command 'frobnicate'"),
        (["queue", "list", "-o", "xml"], "xml"),
        (["subscription", "create", "s"], "Missing option '--topic'"),
        (["subscription", "show", "--topic", "t", "a/b"], "it has a '/'"),
        (["rule", "create", "r", "--topic", "t"], "Missing option '--subscription'"),
        (
            ["rule", "create", *RULE, "--correlation-filter", "x"],
            "--correlation-filter 'x' is not KEY=VALUE",
        ),
        (
            ["rule", "create", *RULE, "--filter-sql-expression", "a=1", "--label", "l"],
            "a rule has one filter",
        ),
        (["rule", "update", *RULE], "nothing to change"),
        (["sas", "create-token", "--expiry", "unlimited"], "--expiry: a limit is needed here"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], words: str, capsys: Capture) -> None:
    assert run([*arguments, *(["--connection-string", CONNECTION] if "create" in arguments else [])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.startswith("busbar: ")
    assert err.count("\n") == 1


def test_nobody_is_there(capsys: Capture) -> None:
    assert run(["queue", "list"]) == 1
    assert "start one with `busbar serve`" in capsys.readouterr().err
    assert run(["queue", "list", "--connection-string", CONNECTION]) == 1
    err = capsys.readouterr().err
    assert err.startswith(
        "busbar: no Busbar answers at http://localhost:5 (Connection refused); start one with"
    )
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"AMQP\x00\x01\x00\x00", "no Busbar answers at http://127.0.0.1:{} (what does is not HTTP); start"),
        (
            b"",
            "no Busbar answers at http://127.0.0.1:{} (the connection was closed before the end of the answer)",
        ),
        (
            b"HTTP/1.1 200 OK\r\n\r\n<html>",
            "what answers at http://127.0.0.1:{} is not a Busbar: the response",
        ),
        (b"HTTP/1.1 418 X\r\n\r\n", "the list of queues was refused: I'm a Teapot"),
        (b"HTTP/1.1 503 X\r\n\r\n<Error><Detail>Later.</Detail></Error>", "the broker failed (503): Later."),
    ],
    ids=["amqp", "nothing", "html", "teapot", "busy"],
)
def test_something_else_is_there(answer: bytes, words: str, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        code = run(
            ["queue", "list", "--connection-string", CONNECTION.replace("localhost:5", f"127.0.0.1:{port}")]
        )
        thread.join()
    err = capsys.readouterr().err
    assert err.startswith(f"busbar: {words.format(port)}"), err
    assert (code, err.count("\n")) == (4 if "refused" in words else 1, 1)


@pytest.mark.parametrize("noun", ["queue", "topic", "subscription", "rule"])
def test_help_has_the_flags_in_full_and_examples(noun: str, capsys: Capture) -> None:
    for verb in ("create", "show", "list", "update", "delete"):
        assert run([noun, verb, "--help"]) == 0
        out = capsys.readouterr().out
        assert f"busbar {noun} {verb}" in out.split("Examples:")[1]
        assert "--connection-string" in out
        assert "…" not in out
    assert run([noun]) == 2
    assert re.search(r"create +Create a", capsys.readouterr().err)


@pytest.mark.parametrize("name", GROUPS)
def test_the_root_lists_every_group_and_builds_the_one_that_is_named(name: str, capsys: Capture) -> None:
    assert run(["--help"]) == 0
    assert re.search(rf"{name} +{GROUPS[name]}\n", capsys.readouterr().out)
    assert run([name, "--help"]) == 0
    assert "Commands:\n" in capsys.readouterr().out


def test_a_mistake_of_ours_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("busbar.cli.namespace.find_target", broken)
    assert run(["namespace", "show"]) == 1
    assert capsys.readouterr().err == "busbar: unexpected failure: KeyError: 'x'\n"


def test_flags_that_cannot_change_are_not_offered_by_update(capsys: Capture) -> None:
    run(["queue", "create", "--help"])
    assert "--enable-partitioning" in capsys.readouterr().out
    run(["queue", "update", "--help"])
    assert "--enable-partitioning" not in capsys.readouterr().out


def test_tokens_are_what_the_broker_takes(capsys: Capture) -> None:
    rule = SasRule("Root", ("k",), frozenset(("Send",)))
    now = int(time.time())
    assert (
        run(
            ["sas", "create-token", "--resource", "a/b", "--expiry", "20m", "--connection-string", CONNECTION]
        )
        == 0
    )
    token = capsys.readouterr().out.strip()
    grant = Authority([rule]).verify_token(token, "", now * 1000)
    assert grant.path == "a/b"
    assert now + 1199 <= grant.expires // 1000 <= now + 1210

    arguments = ["sas", "create-token", "--rule", "other", "--key", "k2", "-o", "json"]
    assert run([*arguments, "--connection-string", CONNECTION]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["resource"] == "sb://localhost:5/"
    other = SasRule("other", ("k2",), frozenset(("Listen",)))
    assert Authority([other]).verify_token(shown["token"], "", now * 1000).path == ""
    with pytest.raises(Unauthorized):
        Authority([rule]).verify_token(shown["token"], "", now * 1000)

    assert run(["sas", "create-token", "--rule", "unknown", "--connection-string", CONNECTION]) == 3
    assert "give it with --key" in capsys.readouterr().err


def test_names_of_rules_may_have_any_character() -> None:
    rule = SasRule("a b&c=/ü", ("k",), frozenset(("Send",)))
    token = sign("sb://h/q", rule.name, "k", 4_000_000_000)
    assert Authority([rule]).verify_token(token, "", 0).path == "q"


def test_keys_are_printed_on_demand(capsys: Capture) -> None:
    assert run(["namespace", "keys", "--connection-string", CONNECTION, "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["primaryKey"] == "k"
    assert run(["namespace", "keys", "--connection-string", shown["primaryConnectionString"]]) == 0
    assert shown["primaryConnectionString"] in capsys.readouterr().out


def test_confirmation(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    class Terminal:
        def __init__(self, answer: str) -> None:
            self._answer = answer

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return self._answer

    for answer in ("y\n", "YES\n"):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        confirm("Delete it?", yes=False)
    assert capsys.readouterr().err == "Delete it? [y/N] " * 2
    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        with pytest.raises(CommandFailure, match="nothing was deleted"):
            confirm("Delete it?", yes=False)
        confirm("Delete it?", yes=True)


def test_a_row_is_a_line_and_markup_is_text(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [("x" * 200, "1"), ("[red]a\x1b[31m", "2"), ("two\nlines", "3")]
    print_table(("Name", "Messages"), rows, "none")
    out = capsys.readouterr().out
    assert "x" * 200 in out, "not cut where no terminal is"
    assert len(out.splitlines()) == 5
    assert "[red]a\\x1b[31m" in out
    print_table(("Name",), [], "There are none.")
    assert capsys.readouterr() == ("", "There are none.\n")


def test_words_for_people() -> None:
    assert label("lockDuration") == "Lock duration"
    assert [size_text(n) for n in (0, 1023, 1024, 1536, 200 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "200 MiB",
        "3.0 TiB",
    ]
    assert printable("a\tb\x1b\n") == "a\\tb\\x1b\n"


def test_nobody_there_is_no_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    for nobody in (None, io.StringIO("y\n")):
        monkeypatch.setattr("sys.stdin", nobody)
        with pytest.raises(CommandFailure, match="say it with --yes") as failure:
            confirm("Delete it?", yes=False)
        assert failure.value.code == ExitCode.USAGE
        confirm("Delete it?", yes=True)
