from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from busbar.app.data_directory import DataDirectory
from busbar.app.endpoint_file import RunningEndpoint, read_endpoint, remove_endpoint, write_endpoint
from busbar.cli.endpoint import VARIABLE, ConnectionOptions, ManagementEndpoint, find_target, where
from busbar.cli.failure import CommandFailure, ExitCode

KEYS = "SharedAccessKeyName=Root;SharedAccessKey=se/cret+key="


def found(text: str, data: Path = Path("nowhere")) -> ManagementEndpoint:
    return find_target(ConnectionOptions(text, data, None), {})


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("Endpoint=sb://localhost:5672;UseDevelopmentEmulator=true;", "http://localhost:5672"),
        ("Endpoint=sb://localhost;UseDevelopmentEmulator=true", "http://localhost:5300"),
        ("Endpoint=sb://ns.servicebus.windows.net/", "https://ns.servicebus.windows.net:443"),
        ("Endpoint=sb://127.0.0.1:5671", "https://127.0.0.1:5671"),
        ("endpoint=http://box:80/", "http://box:80"),
        ("Endpoint=https://box:80/;UseDevelopmentEmulator=true", "https://box:80"),
        ("Endpoint=sb://[::1]:5672;UseDevelopmentEmulator=TRUE", "http://[::1]:5672"),
    ],
)
def test_connection_strings_say_where_and_how(endpoint: str, address: str) -> None:
    target = found(f"{endpoint};{KEYS}")
    assert target.url == address
    assert (target.key_name, target.key) == ("Root", "se/cret+key=")
    assert "se/cret" not in repr(target)
    assert find_target(ConnectionOptions(target.connection_string, Path("nowhere"), None), {}) == target


def test_other_parts_of_a_connection_string() -> None:
    target = found(
        "Endpoint=sb://h;SharedAccessSignature=SharedAccessSignature sr=x&sig=y%3d&se=1&skn=n;EntityPath=a/b"
    )
    assert target.token == "SharedAccessSignature sr=x&sig=y%3d&se=1&skn=n"
    assert target.entity_path == "a/b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("se/cret", "a part without '='"),
        (KEYS, "has no Endpoint="),
        ("Endpoint=sb://h;SharedAccessKeyName=Root", "needs SharedAccessKeyName and SharedAccessKey"),
        (f"Endpoint=sb://h:70000;{KEYS}", "70000 is not a port"),
        (f"Endpoint=ftp://h;{KEYS}", "is not an address"),
        (f"Endpoint=sb://h/path;{KEYS}", "is not an address"),
        (f"Endpoint=sb://u:p@h;{KEYS}", "is not an address"),
        (f"Endpoint=sb://h SharedAccessKey=se/cret;{KEYS}", "is not an address"),
    ],
)
def test_wrong_connection_strings_are_explained_without_their_secrets(text: str, words: str) -> None:
    with pytest.raises(CommandFailure, match=words) as failure:
        found(text)
    assert failure.value.code == ExitCode.USAGE
    assert "se/cret" not in failure.value.text


def test_the_option_wins_over_the_variable_and_this_over_the_directory(
    tmp_path: Path, directory: DataDirectory
) -> None:
    write_endpoint(tmp_path, endpoint(directory, "127.0.0.1"))
    variable = {VARIABLE: f"Endpoint=sb://from-variable;{KEYS}"}
    option = f"Endpoint=sb://from-option;{KEYS}"
    assert find_target(ConnectionOptions(option, tmp_path, None), variable).host == "from-option"
    assert find_target(ConnectionOptions(None, tmp_path, None), variable).host == "from-variable"
    assert find_target(ConnectionOptions(None, tmp_path, None), {}).host == "127.0.0.1"
    assert find_target(where(None, tmp_path, None), variable).host == "127.0.0.1", "typed"
    assert find_target(where(option, tmp_path, None), variable).host == "from-option"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    """One that is served."""
    claimed = DataDirectory(tmp_path)
    yield claimed
    claimed.release()


def endpoint(
    directory: DataDirectory, host: str, pid: int | None = None, ca: str | None = None
) -> RunningEndpoint:
    whose = (directory.instance, *directory.identity)
    return RunningEndpoint(host, 5672, 5300, 5671, pid or os.getpid(), "Root", "secret", ca, *whose)


def test_the_endpoint_file_is_for_its_owner_alone_and_is_replaced(
    tmp_path: Path, directory: DataDirectory
) -> None:
    leftover = tmp_path / "endpoint.json.new"
    leftover.write_text("half")
    leftover.chmod(0o666)
    write_endpoint(tmp_path, endpoint(directory, "127.0.0.1"))
    file = tmp_path / "endpoint.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_endpoint(tmp_path) == endpoint(directory, "127.0.0.1")
    assert "secret" not in repr(read_endpoint(tmp_path))
    write_endpoint(tmp_path, endpoint(directory, "[::1]"))
    assert find_target(ConnectionOptions(None, tmp_path, None), {}).url == "http://[::1]:5672"
    remove_endpoint(tmp_path)
    remove_endpoint(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["busbar.lock"]
    assert read_endpoint(tmp_path) is None


def test_tls_and_its_authority_where_the_network_could_listen(
    tmp_path: Path, directory: DataDirectory
) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    write_endpoint(tmp_path, endpoint(directory, "10.1.2.3", ca=str(ca)))
    target = find_target(ConnectionOptions(None, tmp_path, None), {})
    assert target.url == "https://10.1.2.3:5671"
    assert target.authorities == (ca,)
    own = tmp_path / "own.pem"
    with pytest.raises(CommandFailure, match="there is no such file"):
        find_target(ConnectionOptions(None, tmp_path, own), {})
    own.touch()
    assert find_target(ConnectionOptions(None, tmp_path, own), {}).authorities == (own, ca)


def test_the_data_directory_s_authority_is_for_this_machine_only(tmp_path: Path) -> None:
    ca = tmp_path / "tls" / "ca.pem"
    ca.parent.mkdir()
    ca.touch()
    assert found(f"Endpoint=sb://localhost:5671;{KEYS}", tmp_path).authorities == (ca,)
    assert found(f"Endpoint=sb://elsewhere.example;{KEYS}", tmp_path).authorities == ()


def test_nothing_to_talk_to(tmp_path: Path) -> None:
    with pytest.raises(CommandFailure, match=f"start one with `busbar serve --data {tmp_path}`") as failure:
        find_target(ConnectionOptions(None, tmp_path, None), {})
    assert failure.value.code == ExitCode.OTHER
    for text in ("{}", "[1]", "{", '{"host": 1}'):
        (tmp_path / "endpoint.json").write_text(text)
        with pytest.raises(CommandFailure, match="cannot be read"):
            find_target(ConnectionOptions(None, tmp_path, None), {})


def test_a_process_that_ended_is_named(tmp_path: Path, directory: DataDirectory) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_endpoint(tmp_path, endpoint(directory, "127.0.0.1", ended.pid))
    directory.release()
    with pytest.raises(CommandFailure, match=f"process {ended.pid} has ended"):
        find_target(ConnectionOptions(None, tmp_path, None), {})


def test_an_endpoint_that_the_holder_of_the_lock_did_not_write_is_none(
    tmp_path: Path, directory: DataDirectory
) -> None:
    own = endpoint(directory, "127.0.0.1")
    for other in (
        replace(own, instance="another"),
        replace(own, instance=""),
        replace(own, device=own.device + 1),
        replace(own, inode=own.inode + 1),
    ):
        write_endpoint(tmp_path, other)
        with pytest.raises(CommandFailure, match="no Busbar is serving"):
            find_target(ConnectionOptions(None, tmp_path, None), {})
    write_endpoint(tmp_path, own)
    assert find_target(ConnectionOptions(None, tmp_path, None), {}).port == 5672
