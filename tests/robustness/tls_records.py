"""TLS by hand, behind the handshake: records that no library would send.

Python's ssl makes the handshake and logs its secrets; from then on records are written here. So a test can send what
ssl has no call for: key updates of TLS 1.3 (RFC 8446, 4.6.3), and in TLS 1.2 a second ClientHello.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import struct
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

APPLICATION_DATA, HANDSHAKE = 23, 22
KEY_UPDATE = bytes((24, 0, 0, 1))
NOT_REQUESTED, REQUESTED = b"\0", b"\1"
HELLO_AGAIN = bytes((1, 0, 0, 0))
"""Of a ClientHello only its head: a server that does not renegotiate reads no further."""


class HandMadeTls:
    """A connection that has made its handshake. Nothing that the server says is read."""

    def __init__(self, port: int, trust: Path, version: ssl.TLSVersion) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0
        context = ssl.create_default_context(cafile=str(trust))
        context.minimum_version = context.maximum_version = version
        context.set_ciphers("ECDHE+AESGCM")
        with tempfile.NamedTemporaryFile("r", suffix=".keys") as log:
            context.keylog_filename = log.name
            heard = self._shake_hands(context)
            secrets = {line.split()[0]: line.split()[1:] for line in log if not line.startswith("#")}
        self._old = version == ssl.TLSVersion.TLSv1_2
        if self._old:
            client_random, master = (bytes.fromhex(value) for value in secrets["CLIENT_RANDOM"])
            # The server's random stands in its first record, behind record head, message head and version.
            self._use_master(master, client_random, heard[11:43])
        else:
            self._use_secret(bytes.fromhex(secrets["CLIENT_TRAFFIC_SECRET_0"][1]))

    def _shake_hands(self, context: ssl.SSLContext) -> bytes:
        """All that the server said."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        heard = b""
        while True:
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                self.socket.sendall(outgoing.read())
                data = self.socket.recv(65536)
                assert data, "the server ended the handshake"
                heard += data
                incoming.write(data)
            else:
                self.socket.sendall(outgoing.read())
                self._hash = hashlib.sha384 if "SHA384" in client.cipher()[0] else hashlib.sha256  # type: ignore[index]
                self._key_size = client.cipher()[2] // 8  # type: ignore[index]
                if context.maximum_version == ssl.TLSVersion.TLSv1_2:
                    self._number = 1  # its Finished was number 0
                return heard

    # Keys

    def _use_secret(self, secret: bytes) -> None:
        """RFC 8446, 7.3."""
        self._secret = secret
        self._cipher = AESGCM(self._expand(secret, b"key", self._key_size))
        self._iv = int.from_bytes(self._expand(secret, b"iv", 12), "big")
        self._number = 0

    def _expand(self, secret: bytes, label: bytes, size: int) -> bytes:
        """HKDF-Expand-Label without a context, for at most one block."""
        label = b"tls13 " + label
        info = struct.pack(">HB", size, len(label)) + label + b"\0"
        return hmac.new(secret, info + b"\1", self._hash).digest()[:size]

    def _use_master(self, master: bytes, client_random: bytes, server_random: bytes) -> None:
        """RFC 5246, 6.3: the client's key, the server's, then the client's part of the nonce."""
        seed = b"key expansion" + server_random + client_random
        block, turn = b"", seed
        while len(block) < 2 * self._key_size + 4:
            turn = hmac.new(master, turn, self._hash).digest()
            block += hmac.new(master, turn + seed, self._hash).digest()
        self._cipher = AESGCM(block[: self._key_size])
        self._salt = block[2 * self._key_size : 2 * self._key_size + 4]

    # Records

    def record(self, content: bytes, kind: int, padding: int = 0) -> bytes:
        number, self._number = self._number, self._number + 1
        if self._old:
            explicit = struct.pack(">Q", number)
            bound = struct.pack(">QBHH", number, kind, 0x0303, len(content))
            sealed = explicit + self._cipher.encrypt(self._salt + explicit, content, bound)
            return struct.pack(">BHH", kind, 0x0303, len(sealed)) + sealed
        inner = content + bytes((kind,)) + bytes(padding)
        head = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(inner) + 16)
        return head + self._cipher.encrypt((self._iv ^ number).to_bytes(12, "big"), inner, head)

    def key_update(self, request: bytes, padding: int = 0) -> bytes:
        """The record of a key update; what comes after it is under the next key."""
        record = self.record(KEY_UPDATE + request, HANDSHAKE, padding)
        self._use_secret(self._expand(self._secret, b"traffic upd", self._hash().digest_size))
        return record
