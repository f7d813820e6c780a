"""Checks a TLS ClientHello for requests that cost the server far more than the client (RFC 8446, 4.1.2).

A key share of a finite field (ffdhe2048 to ffdhe8192) takes the server many times as long as one of an elliptic curve. A
client can send the same bytes again and again without any work. Python's ssl cannot switch these groups off, so this file
finds them before OpenSSL gets them.
"""

from __future__ import annotations

import ssl

HANDSHAKE = 22
_CLIENT_HELLO = 1
_LONGEST = 16 * 1024
_SUPPORTED_VERSIONS, _KEY_SHARE = 43, 51
_TLS_1_3 = 0x0304
_FINITE_FIELD = range(0x0100, 0x0200)
_FIXED = 4 + 2 + 32
"""Head of the message, version and random."""


class HelloWatch:
    """Reads the messages of a handshake that are not encrypted: at most two ClientHellos with TLS 1.3."""

    def __init__(self) -> None:
        self._message = bytearray()
        self._hellos = 2  # the second one answers a HelloRetryRequest

    def sees(self, part: bytes) -> None:
        """Read a part of a handshake record. Raises ssl.SSLError if its message must not be answered."""
        if not self._hellos:
            return
        self._message += part
        while self._hellos and self._next():
            pass

    def _next(self) -> bool:
        """Check the next message. False if it is not complete."""
        message = self._message
        if len(message) < 4:
            return False
        size = 4 + int.from_bytes(message[1:4], "big")
        if message[0] != _CLIENT_HELLO or size > _LONGEST:
            raise ssl.SSLError(
                f"a TLS handshake that does not begin with a ClientHello of at most {_LONGEST} bytes"
            )
        if len(message) < size:
            return False
        versions, groups = _versions_and_shares(bytes(message[:size]))
        if any(group in _FINITE_FIELD for group in groups):
            raise ssl.SSLError(
                "a TLS key share of a finite field; only those of elliptic curves are answered"
            )
        del message[:size]
        # In TLS 1.2 there is no second one, and what follows may be encrypted.
        self._hellos = self._hellos - 1 if _TLS_1_3 in versions else 0
        return True


def _versions_and_shares(hello: bytes) -> tuple[list[int], list[int]]:
    """The versions of `supported_versions` and the groups of `key_share`. OpenSSL refuses what cannot be read."""
    versions: list[int] = []
    groups: list[int] = []
    try:
        at = _FIXED + 1 + hello[_FIXED]  # session id
        at += 2 + _number(hello, at)  # cipher suites
        at += 1 + hello[at]  # compression methods
        at += 2
        while at + 4 <= len(hello):
            kind, size = _number(hello, at), _number(hello, at + 2)
            content = hello[at + 4 : at + 4 + size]
            at += 4 + size
            if kind == _SUPPORTED_VERSIONS:
                versions += [_number(content, place) for place in range(1, len(content) - 1, 2)]
            elif kind == _KEY_SHARE:
                groups += _groups(content)
    except IndexError:
        pass
    return versions, groups


def _groups(shares: bytes) -> list[int]:
    groups: list[int] = []
    at = 2
    while at + 4 <= len(shares):
        groups.append(_number(shares, at))
        at += 4 + _number(shares, at + 2)
    return groups


def _number(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]
