"""Who steals the key of an instance's certificate authority cannot pass for other sites at the clients that trust it."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.serving import Busbar, ServerDied
from tests.authorities import forged, unconstrained_authority

HERE = socket.gethostname()
OTHERS = ["www.other.example", "other.example", "example", "localhost.example", "10.9.9.9", "fd00::9"]


pytestmark = pytest.mark.server({}, arguments=("--tls-name", "bus.example"))


@contextmanager
def showing(certificate: Path, key: Path) -> Iterator[int]:
    """A TLS server of somebody else with this certificate; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                    with client, context.wrap_socket(client, server_side=True):
                        pass
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def visit(port: int, name: str, ca: Path) -> str:
    """Why OpenSSL does not trust the server on this port under this name; empty if it does."""
    trust = ssl.create_default_context(cafile=str(ca))
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        try:
            trust.wrap_socket(plain, server_hostname=name).close()
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
    return ""


def test_what_the_instance_serves_is_trusted(server: Busbar) -> None:
    for name in ("localhost", "127.0.0.1", "::1", HERE, "bus.example"):
        assert visit(server.port, name, server.data / "tls" / "ca.pem") == "", name


@pytest.mark.parametrize("name", OTHERS)
def test_a_certificate_for_another_name_is_not(server: Busbar, tmp_path: Path, name: str) -> None:
    tls = server.data / "tls"
    with showing(*forged(tls, tmp_path, name)) as port:
        assert "permitted subtree violation" in visit(port, name, tls / "ca.pem")


def test_nor_one_that_names_it_as_its_subject_only(server: Busbar, tmp_path: Path) -> None:
    tls = server.data / "tls"
    with showing(*forged(tls, tmp_path, "www.other.example", in_subject_only=True)) as port:
        assert "permitted subtree violation" in visit(port, "www.other.example", tls / "ca.pem")


def test_such_a_certificate_would_be_trusted_without_constraints(tmp_path: Path) -> None:
    """So it is the constraints that the tests above show."""
    tls = tmp_path / "tls"
    unconstrained_authority(tls)
    for name in OTHERS:
        with showing(*forged(tls, tmp_path, name)) as port:
            assert visit(port, name, tls / "ca.pem") == ""


@pytest.mark.parametrize(("name", "trusted"), [("localhost", True), ("www.other.example", False)])
def test_node_checks_it_too(server: Busbar, tmp_path: Path, name: str, trusted: bool) -> None:
    node = Path(sys.executable).with_name("node")
    if not node.exists():
        pytest.skip("there is no Node.js in this environment")
    tls = server.data / "tls"
    program = (
        "const [port, servername, ca] = process.argv.slice(1);"
        "require('tls').connect({port, servername, host: '127.0.0.1', ca: require('fs').readFileSync(ca)},"
        " () => { console.log('trusted'); process.exit(); }).on('error', (e) => console.log(e.message));"
    )
    with showing(*forged(tls, tmp_path, name)) as port:
        done = subprocess.run(
            [node, "-e", program, str(port), name, str(tls / "ca.pem")],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
    assert done.stdout.strip() == ("trusted" if trusted else "permitted subtree violation"), done.stdout


def test_a_new_name_is_refused_and_a_new_address_left_out(tmp_path: Path) -> None:
    """Both with what to do: the one was asked for, the other is what this machine happens to have."""
    data = tmp_path / "data"
    Busbar(data).start().stop()
    server = Busbar(data, arguments=("--tls-name", "new.example"))
    try:
        with pytest.raises(ServerDied) as raised:
            server.start()
    finally:
        server.stop()
    for told in ("exit code 2", "new.example", str(data / "tls"), "busbar trust"):
        assert told in str(raised.value)
    server = Busbar(data, arguments=("--host", "0.0.0.0")).start()
    try:
        assert visit(server.port, "localhost", data / "tls" / "ca.pem") == ""
        address = server.connection_string.partition("sb://")[2].partition(":")[0]
    finally:
        server.stop()
    if address == "localhost":
        pytest.skip("this machine has no address in a network")
    assert f"warning: clients that call this machine {address} cannot verify it" in server.error_text
    assert f"delete {data / 'tls'}" in server.error_text


def test_an_authority_of_an_earlier_version_goes_on_to_serve(tmp_path: Path) -> None:
    data = tmp_path / "data"
    unconstrained_authority(data / "tls")
    server = Busbar(data, arguments=("--tls-name", "new.example")).start()
    try:
        assert visit(server.port, "new.example", data / "tls" / "ca.pem") == ""
    finally:
        server.stop()
