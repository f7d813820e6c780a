"""Names made to harm, as addresses of AMQP links and as arguments of commands. (Over HTTP: test_hostile_http.py.)"""

from __future__ import annotations

import contextlib
import io
import os
from unittest import mock

import pytest

from busbar.cli.main import run
from harness.serving import Busbar
from tests.robustness.bystander import Bystander
from tests.robustness.test_hostile_http import BAD_NAMES, files_of
from tests.robustness.wire import ATTACH, DETACH, RECEIVER, SENDER, connected, logged_in, sas_token

pytestmark = pytest.mark.req("U20")

REFUSALS = {"amqp:not-found", "com.microsoft:argument-error", "com.microsoft:argument-out-of-range"}


def test_addresses_that_mean_something_elsewhere(server: Busbar, bystander: Bystander) -> None:
    """Each is refused on its own: the connection and its other links stay."""
    before = files_of(server)
    with logged_in(server.port) as wire:
        handle = 0
        for name in BAD_NAMES:
            for address in (name, f"{name}/$management", f"amqps://localhost/{name}"):
                if name == "$cbs" and address != f"{name}/$management":
                    continue  # that is no entity's name, but the node of tokens
                for role in (SENDER, RECEIVER):
                    refusal = wire.attach(handle, role, address)
                    assert refusal.code == DETACH, address
                    assert refusal.condition in REFUSALS, (address, refusal)
                    handle = (handle + 1) % 200
        assert wire.attach(250, SENDER, "q").code == ATTACH
    assert files_of(server) == before


@pytest.mark.parametrize(
    "address",
    [
        "q/../other",
        "q/%2e%2e/other",
        "q%2f..%2fother",
        "q/./../other",
        "q/$management/../../other",
        "q//../other",
    ],
)
def test_a_detour_does_not_leave_the_queue_of_a_token(
    server: Busbar, bystander: Bystander, address: str
) -> None:
    """Names are compared as they stand: nothing above a queue is reached through it."""
    with connected(server.port) as wire:
        assert wire.put_token(sas_token("sb://localhost/q"), "sb://localhost/q") == 202
        refusal = wire.attach(0, SENDER, address)
        assert refusal.code == DETACH
        assert refusal.condition in {*REFUSALS, "amqp:unauthorized-access"}
        assert wire.put_token(
            sas_token("sb://localhost/q"), f"sb://localhost/{address}", handles=(102, 103)
        ) in (
            202,  # the token covers what begins with its path; no such entity exists
            401,
        )
        assert wire.attach(1, SENDER, "other").condition == "amqp:unauthorized-access"


def busbar(server: Busbar, *arguments: str) -> tuple[int, str, str]:
    """The command, in this process: it is started often."""
    out, err = io.StringIO(), io.StringIO()
    environment = {**os.environ, "BUSBAR_CONNECTION_STRING": server.connection_string}
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run([*arguments])
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if "\0" not in name])
def test_arguments_that_mean_something_elsewhere(server: Busbar, bystander: Bystander, name: str) -> None:
    """One line says what is wrong; nothing of the name can act on the terminal."""
    before = files_of(server)
    for arguments in (
        ("queue", "create", "--", name),
        ("queue", "show", "--", name),
        ("queue", "delete", "--yes", "--", name),
        ("topic", "create", "--", name),
        ("subscription", "create", "--topic-name", name, "--", name),
    ):
        code, out, err = busbar(server, *arguments)
        assert code in (1, 2, 3, 4), (arguments, code, err)
        assert out == ""
        assert "Traceback" not in err
        assert not [char for char in err if char != "\n" and (char < " " or char in "\x7f\u202e\ufeff")], (
            repr(err)
        )
    assert files_of(server) == before
