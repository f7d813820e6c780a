"""TLS between nodes: version 1.3, with certificates at both ends that the authority of the namespace has signed."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

from busbar.cluster.codec import WireError


@dataclass(frozen=True, slots=True)
class NodeTlsFiles:
    """The certificate of a node with its key, and the authority that all nodes trust, as PEM files."""

    certificate: Path
    key: Path
    authority: Path


def _context(files: NodeTlsFiles, purpose: int) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the name is compared with that of the node
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files.authority)
    context.load_cert_chain(files.certificate, files.key)
    return context


class NodeTls:
    """The contexts of a process. They read the files again after a certificate was renewed."""

    def __init__(self, files: NodeTlsFiles) -> None:
        """Raises OSError if a file cannot be used."""
        self._files = files
        self._loaded = 0.0
        self._load()

    def _load(self) -> None:
        self._loaded = self._changed()
        self._accepting = _context(self._files, ssl.PROTOCOL_TLS_SERVER)
        self._dialling = _context(self._files, ssl.PROTOCOL_TLS_CLIENT)

    def _changed(self) -> float:
        return max(file.stat().st_mtime for file in (self._files.certificate, self._files.key))

    def _refresh(self) -> None:
        try:
            if self._changed() != self._loaded:
                self._load()
        except OSError:
            pass  # it is being replaced; what is loaded is still good

    @property
    def accepting(self) -> ssl.SSLContext:
        self._refresh()
        return self._accepting

    @property
    def dialling(self) -> ssl.SSLContext:
        self._refresh()
        return self._dialling


def certified_name(transport: asyncio.BaseTransport) -> str:
    """The node that the certificate of the other end names. Raises WireError."""
    found = transport.get_extra_info("peercert") or {}
    for part in found.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    raise WireError("the certificate of the other end has no name")
