"""The certificates of an instance: its own CA and a server certificate that the CA signed, created on the first start.

    DIR/tls/ca.pem          the CA that clients trust (`busbar trust`)
    DIR/tls/ca-key.pem      its key, readable by its owner only
    DIR/tls/server.pem      the server certificate, followed by the CA's
    DIR/tls/server-key.pem  its key, readable by its owner only

1. The CA is created once and kept, because clients were configured to trust it.
2. The CA may sign for the names that are served at its creation and names below them, and for no others (name constraints,
   RFC 5280 4.2.1.10). So a stolen key cannot be used for other sites at its clients. A CA of an earlier Busbar has no
   constraints and is kept as it is.
3. If a name is requested later and the CA may not sign for it, the start is refused: only the operator can decide when
   clients trust another CA. If this machine merely has an address or host name, it is left out of the certificate, with a
   warning.
4. The server certificate is created again if it lacks a requested name, expires within 90 days, or was signed by another CA.
   The same holds if it does not belong to its key, because a start was interrupted.
5. Every file is written under a temporary name and renamed: a crash leaves a whole file or none.
"""

from __future__ import annotations

import ipaddress
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

from busbar.app.private_files import PRIVATE, PUBLIC, write_file
from busbar.gateway.listening.tls import ServerContext
from busbar.store.durable_names import make_directory

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
CA_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=820)  # platforms refuse server certificates that live longer than 825 days
RENEW_BEFORE = timedelta(days=90)


class CertificateError(Exception):
    """TLS cannot be served as requested; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of the server's certificate and key; `ca` is the file to trust, if Busbar created it."""

    certificate: Path
    key: Path
    ca: Path | None
    left_out: tuple[str, ...] = ()
    """Names of this machine for which the CA may not sign."""


def tls_directory(data: Path) -> Path:
    return data / "tls"


def given_files(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    """The user's own certificate; None if there is none."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise CertificateError("--tls-cert and --tls-key belong together; give both, or none.")
    return TlsFiles(certificate, key, None)


def own_files(
    data: Path, asked: Iterable[str], now: datetime | None = None, found: Iterable[str] = ()
) -> TlsFiles:
    """The instance's own certificate, created now if necessary. It is for the local names, the requested ones, and those
    that this machine has."""
    now = now or datetime.now(UTC)
    directory = tls_directory(data)
    needed = {name: _general_name(name) for name in (*LOCAL_NAMES, *asked)}
    present = {name: _general_name(name) for name in found}
    try:
        make_directory(directory)
        ca, ca_key = _authority(directory, [*needed.values(), *present.values()], now)
        if refused := [name for name, value in needed.items() if not may_sign(ca, value)]:
            raise CertificateError(_not_permitted(directory, ca, refused))
        left_out = tuple(name for name, value in present.items() if not may_sign(ca, value))
        files = TlsFiles(
            directory / "server.pem", directory / "server-key.pem", directory / "ca.pem", left_out
        )
        wanted = [value for name, value in (needed | present).items() if name not in left_out]
        if not _usable(files, ca, wanted, now):
            _write_server(files, ca, ca_key, list(dict.fromkeys(wanted)), now)
    except OSError as error:
        raise CertificateError(f"The certificates in {directory} cannot be used: {error}") from None
    return files


def may_sign(ca: x509.Certificate, name: x509.GeneralName) -> bool:
    """Whether a certificate for this name, signed by this CA, is accepted."""
    permitted = _permitted_subtrees(ca)
    if permitted is None:
        return True
    return any(_is_below(name, tree) for tree in permitted)


def _is_below(name: x509.GeneralName, tree: x509.GeneralName) -> bool:
    if isinstance(name, x509.IPAddress) and isinstance(tree, x509.IPAddress):
        address, network = name.value, tree.value
        if isinstance(address, ipaddress.IPv4Address) and isinstance(network, ipaddress.IPv4Network):
            return address in network
        if isinstance(address, ipaddress.IPv6Address) and isinstance(network, ipaddress.IPv6Network):
            return address in network
        return False
    if isinstance(name, x509.DNSName) and isinstance(tree, x509.DNSName):
        return f".{name.value}".lower().endswith(f".{tree.value}".lower())
    return False


def _permitted_subtrees(ca: x509.Certificate) -> list[x509.GeneralName] | None:
    """The subtrees of the name constraints; None without them."""
    try:
        constraints = ca.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return None
    return constraints.permitted_subtrees


def _subtrees(names: Iterable[x509.GeneralName]) -> list[x509.GeneralName]:
    """The name constraints of a CA for these names: loopback, other addresses one by one, host names with names
    below them."""
    trees: list[x509.GeneralName] = [x509.IPAddress(network) for network in LOOPBACK]
    for name in names:
        if isinstance(name, x509.IPAddress):
            if not name.value.is_loopback:
                trees.append(x509.IPAddress(ipaddress.ip_network(name.value)))
        else:
            trees.append(x509.DNSName(str(name.value).removeprefix("*.")))
    return list(dict.fromkeys(trees))


def _not_permitted(directory: Path, ca: x509.Certificate, refused: list[str]) -> str:
    permitted = ", ".join(str(tree.value) for tree in _permitted_subtrees(ca) or ())
    return (
        f"The certificate authority in {directory} was made for {permitted}, so clients accept no certificate of it for "
        f"{', '.join(refused)}. For a new authority that may sign for all names that you ask for now, delete that directory "
        "and start again; clients must then be told to trust it (busbar trust). Or leave out the name (--tls-name, --host)."
    )


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """The TLS context: TLS 1.2 or later, without renegotiation, which costs the server far more than the client."""
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


def _authority(
    directory: Path, names: list[x509.GeneralName], now: datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The existing CA, or a new one for these names."""
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
        builder_of(name, name, key.public_key(), now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(_subtrees(names), None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    # The key first: ca.pem marks that both exist.
    write_file(key_file, key_bytes(key), PRIVATE)
    write_file(certificate_file, certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)
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
        builder_of(subject, ca.subject, key.public_key(), now, life)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    write_file(files.key, key_bytes(key), PRIVATE)
    write_file(files.certificate, certificate.public_bytes(pem) + ca.public_bytes(pem), PUBLIC)


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


def builder_of(
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


def key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
