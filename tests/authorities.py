"""Certificates that Busbar itself does not make: of earlier versions, and of who has stolen the key of an authority."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM


def unconstrained_authority(directory: Path) -> None:
    """ca.pem and ca-key.pem as Busbar 0.1 made them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Busbar local CA")
    basic = x509.BasicConstraints(ca=True, path_length=0)
    certificate = _builder(name, name, key).add_extension(basic, critical=True).sign(key, hashes.SHA256())
    directory.mkdir(mode=0o700, parents=True)
    _write_key(directory / "ca-key.pem", key)
    (directory / "ca.pem").write_bytes(certificate.public_bytes(PEM))


def forged(authority: Path, target: Path, name: str, *, in_subject_only: bool = False) -> tuple[Path, Path]:
    """A server certificate for any name, signed with the key in the directory `authority`; its file and its key's."""
    ca = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    ca_key = serialization.load_pem_private_key((authority / "ca-key.pem").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), ca.subject, key)
    if not in_subject_only:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(name)]), critical=False)
    certificate = builder.sign(ca_key, hashes.SHA256())
    target.mkdir(parents=True, exist_ok=True)
    files = target / "forged.pem", target / "forged-key.pem"
    files[0].write_bytes(certificate.public_bytes(PEM) + ca.public_bytes(PEM))
    _write_key(files[1], key)
    return files


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=30))
    )


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    encryption = serialization.NoEncryption()
    file.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, encryption))
    file.chmod(0o600)
