"""`busbar doctor`, `busbar top` and `busbar completion` as operators use them: piped, on a terminal, in a shell."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from busbar.cli.main import run
from harness.serving import Busbar
from harness.terminal import TerminalProgram

pytestmark = [pytest.mark.timeout(60), pytest.mark.server({"busy": {}, "idle": {}})]


def busbar(*arguments: str, code: int = 0) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run([*arguments]) == code, out.getvalue() + err.getvalue()
    return out.getvalue(), err.getvalue()


def test_doctor(server: Busbar, tmp_path: Path) -> None:
    data = ("--data", str(server.data))
    found: list[dict[str, Any]] = json.loads(busbar("doctor", "-o", "json", *data)[0])
    states = {one["check"]: one["state"] for one in found}
    assert states.keys() >= {"python", "compiled", "open files", "data", "space", "disk", "certificate"}
    assert states.keys() >= {"namespace", "clock", "processes", "stores"} and "bad" not in states.values()
    table = busbar("doctor", *data)[0]
    assert "compiled" in table and "certificate" in table

    found = json.loads(busbar("doctor", "-o", "json", "--data", str(tmp_path))[0])
    states = {one["check"]: one["state"] for one in found}
    assert states["namespace"] == "warn" and "port 5672" in states, "nothing serves this directory"
    tmp_path.chmod(0o777)
    out, _ = busbar("doctor", "--data", str(tmp_path), code=1)
    assert "chmod" in out


def test_doctor_names_a_store_that_is_away(server: Busbar) -> None:
    data = ("--data", str(server.data))
    busbar("stores", "offline", "store-0", *data)
    try:
        out, _ = busbar("doctor", *data, code=1)
        assert "unavailable: store-0" in out
    finally:
        busbar("stores", "online", "store-0", *data)


def test_top_piped(server: Busbar) -> None:
    data = ("--data", str(server.data))
    for _ in range(3):
        busbar("send", "busy", "x", *data)
    out, _ = busbar("top", "-o", "json", "--sort", "backlog", "--interval", "0.2", *data)
    first, second = json.loads(out)
    assert (first["entity"], first["messages"], first["deadLetters"]) == ("busy", 3, 0)
    assert first["inPerSecond"] == 0 and second["entity"] == "idle"
    out, err = busbar("top", "-n", "2", "--interval", "0.2", "--top", "1", *data)
    assert out.count("Entity") == 2 and "1 of 2 entities" in err and "\x1b" not in out
    assert "it is one of" in busbar("top", "--sort", "size", *data, code=2)[1]


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(busbar("completion", "bash")[0])

    def completed(*words: str) -> set[str]:
        quoted = " ".join(f"'{word}'" for word in ("busbar", *words))
        program = (
            f'. "{script}"; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _busbar; echo "${{COMPREPLY[@]}}"'
        )
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, timeout=20)
        assert not done.stderr
        return set(done.stdout.split())

    assert completed("que") == {"queue"}
    assert {"create", "auth-rule", "list"} <= completed("queue", "")
    assert "--lock-duration" in completed("queue", "create", "orders", "--lo")
    assert completed("namespace", "auth-rule", "ren") == {"renew"}
    assert "--dry-run" in completed("apply", "file", "--")
    assert completed("sas", "") >= {"create-token"}, "a group of one command"
    assert "none of bash" in busbar("completion", "csh", code=2)[1]


ZSH = """
compadd() {{ shift; for word in "$@"; do print -- "$word"; done }}
_files() {{ print a-file }}
compdef() {{ }}
source "{script}"
words=({words}); CURRENT=$#words; _busbar
"""
FISH = "cd '{place}'; source '{script}'; complete -C \"{line}\""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_complete_commands_options_and_files(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(busbar("completion", shell)[0])
    place = tmp_path / "place"
    place.mkdir()
    (place / "a-file").touch()

    def completed(*words: str) -> set[str]:
        quoted = " ".join(f"'{word}'" for word in ("busbar", *words))
        line = " ".join(("busbar", *words))
        form = ZSH if shell == "zsh" else FISH
        program = form.format(script=script, words=quoted, line=line, place=place)
        command = ["zsh", "-f", "-c", program] if shell == "zsh" else ["fish", "--no-config", "-c", program]
        home = os.environ | {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20, env=home)
        assert not done.stderr
        return set(done.stdout.split())

    assert "queue" in completed("")
    assert {"create", "auth-rule", "list"} <= completed("queue", "") and "a-file" not in completed(
        "queue", ""
    )
    assert "--lock-duration" in completed("queue", "create", "orders", "--lo")
    assert "renew" in completed("namespace", "auth-rule", "ren")
    assert completed("sas", "") >= {"create-token"}
    assert "a-file" in completed("apply", "")


def test_top_on_a_terminal_fits_80_columns(server: Busbar) -> None:
    command = [sys.executable, "-m", "busbar", "top", "--interval", "0.2", "--data", str(server.data)]
    with TerminalProgram(command, columns=80) as program:
        program.wait_for("busy")
        program.wait_for("idle")
        program.press_ctrl_c()
        assert program.end() == 0
    assert program.screen.wrapped == 0 and "Entity" in program.screen.text
