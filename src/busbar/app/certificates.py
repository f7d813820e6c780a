"""The certificates of an instance: a CA of its own and a server certificate that it signed, made on the first start.

    DIR/tls/ca.pem          what clients are told to trust (`busbar trust`)
    DIR/tls/ca-key.pem      its key, readable by its owner alone
    DIR/tls/server.pem      the server certificate, followed by the CA's
    DIR/tls/server-key.pem  its key, readable by its owner alone

1. The CA is made once and kept: clients have been told to trust it.
2. The server certificate is made again when it lacks a name that is asked for, ends within 90 days, was signed by another
   CA, or does not belong to its key (a start was interrupted).
3. Every file is written beside its place and renamed: a crash leaves a whole file or none.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from busbar.app.durable_names import make_directory, move
from busbar.gateway.tls import ServerContext

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
CA_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=820)  # platforms refuse server certificates that live longer than 825 days
RENEW_BEFORE = timedelta(days=90)


class CertificateError(Exception):
    """TLS cannot be served as asked; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificate and key that the server shows are; `ca` is the file to trust, if it is ours."""

    certificate: Path
    key: Path
    ca: Path | None


def tls_directory(data: Path) -> Path:
    return data / "tls"


def given_files(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    """The user's own certificate; None if none was given."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise CertificateError("--tls-cert and --tls-key belong together; give both, or none.")
    return TlsFiles(certificate, key, None)


def own_files(data: Path, names: Iterable[str], now: datetime | None = None) -> TlsFiles:
    """The instance's own certificate for these names and the local ones, made now if need be."""
    now = now or datetime.now(UTC)
    directory = tls_directory(data)
    files = TlsFiles(directory / "server.pem", directory / "server-key.pem", directory / "ca.pem")
    wanted = [_general_name(name) for name in dict.fromkeys((*LOCAL_NAMES, *names))]
    try:
        make_directory(directory)
        ca, ca_key = _authority(directory, now)
        if not _usable(files, ca, wanted, now):
            _write_server(files, ca, ca_key, wanted, now)
    except OSError as error:
        raise CertificateError(f"The certificates in {directory} cannot be used: {error}") from None
    return files


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 or later, and nobody negotiates twice: a renegotiation costs the server far more than the client."""
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise CertificateError(
            f"The certificate {files.certificate} with the key {files.key} cannot be used: {error}. "
            "Both must be PEM files that belong together, the key without a password."
        ) from None
    return context


def _authority(directory: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_file, key_file = directory / "ca.pem", directory / "ca-key.pem"
    if certificate_file.exists():
        try:
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
            key = _read_key(key_file)
        except (OSError, ValueError) as error:
            raise CertificateError(
                f"The certificate authority in {directory} cannot be read: {error}. "
                "Restore it, or delete the directory to get a new one (clients must then be told to trust it)."
            ) from None
        if key.public_key() != certificate.public_key():
            raise CertificateError(
                f"In {directory}, ca-key.pem is not the key of ca.pem. Restore one of them."
            )
        return certificate, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Busbar"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Busbar local CA {secrets.token_hex(4)}"),
        ]
    )
    certificate = (
        _builder(name, name, key.public_key(), now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    # The key first: ca.pem is the mark that both are there.
    _write(key_file, _key_bytes(key), 0o600)
    _write(certificate_file, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate, key


def _write_server(
    files: TlsFiles,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    names: list[x509.GeneralName],
    now: datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Busbar"),
            x509.NameAttribute(NameOID.COMMON_NAME, "Busbar server"),
        ]
    )
    life = min(SERVER_LIFE, ca.not_valid_after_utc - now)
    certificate = (
        _builder(subject, ca.subject, key.public_key(), now, life)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    _write(files.key, _key_bytes(key), 0o600)
    _write(files.certificate, certificate.public_bytes(pem) + ca.public_bytes(pem), 0o644)


def _usable(files: TlsFiles, ca: x509.Certificate, wanted: list[x509.GeneralName], now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = _read_key(files.key)
        certificate.verify_directly_issued_by(ca)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return (
        certificate.public_key() == key.public_key()
        and certificate.not_valid_before_utc <= now
        and certificate.not_valid_after_utc - now > RENEW_BEFORE
        and set(wanted) <= set(names)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(name.encode("idna").decode("ascii") if not name.isascii() else name)
    except (ValueError, UnicodeError):
        raise CertificateError(f"--tls-name {name!r} is neither a host name nor an address.") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + life)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{file} is not an elliptic curve key")
    return key


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(file: Path, content: bytes, mode: int) -> None:
    fresh = file.with_name(file.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    move(fresh, file)
