"""The certificates of an instance: made once, made again when they no longer serve."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from busbar.app.certificates import (
    CertificateError,
    TlsFiles,
    given_files,
    own_files,
    server_context,
    tls_directory,
)
from tests.authorities import unconstrained_authority


def names(files: TlsFiles) -> set[str]:
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in found}


def contents(data: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in tls_directory(data).iterdir()}


def test_a_first_start_makes_all_of_it(tmp_path: Path) -> None:
    files = own_files(tmp_path, ["bus.example", "10.1.2.3", "fd00::1"])
    assert names(files) == {"localhost", "127.0.0.1", "::1", "bus.example", "10.1.2.3", "fd00::1"}
    assert files.key.stat().st_mode & 0o777 == 0o600
    assert tls_directory(tmp_path).stat().st_mode & 0o777 == 0o700
    server_context(files)


def test_a_second_start_keeps_it(tmp_path: Path) -> None:
    own_files(tmp_path, ["a.example"])
    before = contents(tmp_path)
    own_files(tmp_path, ["a.example"])
    own_files(tmp_path, [])
    assert contents(tmp_path) == before


def permitted(data: Path) -> set[str]:
    ca = x509.load_pem_x509_certificate((tls_directory(data) / "ca.pem").read_bytes())
    found = ca.extensions.get_extension_for_class(x509.NameConstraints)
    assert found.critical and not found.value.excluded_subtrees
    return {str(tree.value) for tree in found.value.permitted_subtrees or ()}


def test_the_authority_is_bound_to_the_names_that_are_served(tmp_path: Path) -> None:
    own_files(tmp_path, ["bus.example", "*.wild.example", "10.1.2.3", "fd00::1", "127.0.0.9"], found=["here"])
    assert permitted(tmp_path) == {
        *("127.0.0.0/8", "::1/128", "localhost", "bus.example", "wild.example"),
        *("10.1.2.3/32", "fd00::1/128", "here"),
    }


def test_a_name_below_a_permitted_one_makes_a_new_certificate_of_the_same_authority(tmp_path: Path) -> None:
    own_files(tmp_path, ["b.example"])
    before = contents(tmp_path)
    files = own_files(tmp_path, ["eu.B.example", "127.0.0.7"])
    after = contents(tmp_path)
    assert names(files) >= {"eu.B.example", "127.0.0.7"}
    assert after["ca.pem"] == before["ca.pem"] and after["server.pem"] != before["server.pem"]


@pytest.mark.parametrize("name", ["c.example", "notb.example", "10.1.2.4", "fd00::2"])
def test_a_name_that_the_authority_may_not_sign_for_is_refused(tmp_path: Path, name: str) -> None:
    own_files(tmp_path, ["b.example", "10.1.2.3"])
    before = contents(tmp_path)
    with pytest.raises(CertificateError) as raised:
        own_files(tmp_path, [name])
    for told in (name, str(tls_directory(tmp_path)), "b.example", "10.1.2.3/32", "busbar trust"):
        assert told in str(raised.value)
    assert contents(tmp_path) == before


def test_a_name_that_this_machine_merely_has_is_left_out(tmp_path: Path) -> None:
    """A laptop in another network goes on to serve."""
    own_files(tmp_path, [], found=["10.1.2.3", "here"])
    files = own_files(tmp_path, [], found=["10.9.9.9", "here"])
    assert files.left_out == ("10.9.9.9",)
    assert names(files) >= {"localhost", "here"} and "10.9.9.9" not in names(files)


def test_an_authority_of_an_earlier_version_signs_for_any_name(tmp_path: Path) -> None:
    directory = tls_directory(tmp_path)
    unconstrained_authority(directory)
    before = contents(tmp_path)
    files = own_files(tmp_path, ["any.example"], found=["here"])
    assert names(files) >= {"any.example", "here"} and files.left_out == ()
    assert {name: contents(tmp_path)[name] for name in before} == before


@pytest.mark.parametrize(("days", "kept"), [(700, True), (740, False), (900, False)])
def test_it_is_renewed_before_it_ends(tmp_path: Path, days: int, kept: bool) -> None:
    own_files(tmp_path, [])
    before = contents(tmp_path)
    own_files(tmp_path, [], datetime.now(UTC) + timedelta(days=days))
    assert (contents(tmp_path)["server.pem"] == before["server.pem"]) is kept


@pytest.mark.parametrize("damage", ["server.pem", "server-key.pem"])
def test_an_interrupted_or_damaged_start_is_mended(tmp_path: Path, damage: str) -> None:
    own_files(tmp_path, [])
    other = tmp_path / "other"
    own_files(other, [])
    (tls_directory(tmp_path) / damage).write_bytes((tls_directory(other) / damage).read_bytes())
    server_context(own_files(tmp_path, []))
    (tls_directory(tmp_path) / damage).write_bytes(b"torn")
    server_context(own_files(tmp_path, []))


def test_an_authority_without_its_key_is_not_replaced_silently(tmp_path: Path) -> None:
    own_files(tmp_path, [])
    (tls_directory(tmp_path) / "ca-key.pem").unlink()
    with pytest.raises(CertificateError, match="clients must then be told"):
        own_files(tmp_path, [])


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="belong together"):
        given_files(tmp_path / "a.pem", None)
    given = given_files(tmp_path / "a.pem", tmp_path / "b.pem")
    assert given is not None
    with pytest.raises(CertificateError, match=r"a\.pem"):
        server_context(given)
    with pytest.raises(CertificateError, match="neither a host name"):
        own_files(tmp_path, ["bücher" * 40])
