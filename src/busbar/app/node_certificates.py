"""The certificates by which nodes of a cluster know each other.

1. The namespace has an authority of its own. Its key lies beside the catalogue: who can write there is trusted anyway.
2. Every node signs a certificate for itself, with its name, and keeps it in its data directory. It lives for LIFE, and is
   replaced when half of that is over. Processes read the files again.
3. With --node-cert, --node-key and --node-ca the operator's files are used instead. The common name of the certificate must
   be the name of the node.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from busbar.app.certificates import CA_LIFE, builder_of, key_bytes, key_usage, tls_directory
from busbar.app.private_files import PUBLIC, write_file
from busbar.cluster.node_tls import NodeTlsFiles
from busbar.store.contract import StoreError
from busbar.store.durable_names import make_directory

LIFE = timedelta(hours=24)


def make_authority(now: datetime | None = None) -> bytes:
    """The certificate and the key of a new authority, as PEM."""
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Busbar cluster {secrets.token_hex(4)}")
    certificate = (
        builder_of(name, name, key.public_key(), now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key_bytes(key)


class NodeCertificate:
    """The certificate of a node, in its data directory."""

    def __init__(self, data: Path, node: str, authority: bytes) -> None:
        """`authority` is what `make_authority` returned. Raises StoreError if it is none."""
        directory = tls_directory(data)
        self.files = NodeTlsFiles(
            directory / "node.pem", directory / "node-key.pem", directory / "node-ca.pem"
        )
        self._node = node
        try:
            self._ca = x509.load_pem_x509_certificate(authority)
            key = serialization.load_pem_private_key(authority, password=None)
        except ValueError as error:
            raise StoreError(f"the authority of the cluster cannot be read: {error}") from None
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._ca_key = key
        self._renew_at = datetime.min.replace(tzinfo=UTC)

    def renew(self, now: datetime | None = None) -> bool:
        """Sign another certificate if half of the life of the last one is over. Raises OSError."""
        now = now or datetime.now(UTC)
        if now < self._renew_at:
            return False
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            builder_of(_name(self._node), self._ca.subject, key.public_key(), now, LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca_key.public_key()), critical=False
            )
            .sign(self._ca_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        make_directory(self.files.key.parent)
        write_file(self.files.authority, self._ca.public_bytes(pem), PUBLIC)
        write_file(self.files.key, key_bytes(key))
        write_file(self.files.certificate, certificate.public_bytes(pem), PUBLIC)
        self._renew_at = now + LIFE / 2
        return True


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Busbar"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )
