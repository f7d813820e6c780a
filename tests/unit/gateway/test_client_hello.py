"""ClientHellos that are not answered, however they are cut, and those that are."""

from __future__ import annotations

import ssl
from contextlib import suppress

import pytest

from busbar.gateway.listening.client_hello import HelloWatch

HEAD = 5


def hello(group: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """The message, without the head of its record."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = version
    context.set_ecdh_curve(group)
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()[HEAD:]


@pytest.mark.parametrize("group", ["X25519", "prime256v1", "secp384r1", "secp521r1", "X448"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_elliptic_curves_are_answered(group: str, version: ssl.TLSVersion) -> None:
    watch = HelloWatch()
    watch.sees(hello(group, version))


@pytest.mark.parametrize("group", ["ffdhe2048", "ffdhe8192"])
@pytest.mark.parametrize("part", [1, 100, 5_000])
def test_finite_fields_are_not(group: str, part: int) -> None:
    message = hello(group)
    watch = HelloWatch()
    last = len(message) - 1
    for at in range(0, last, part):
        watch.sees(message[at : min(at + part, last)])
    with pytest.raises(ssl.SSLError, match="finite field"):
        watch.sees(message[last:])


@pytest.mark.parametrize("together", [False, True])
def test_a_second_hello_is_looked_at_too(together: bool) -> None:
    """It answers a HelloRetryRequest."""
    watch = HelloWatch()
    first, second = hello("X25519"), hello("ffdhe8192")
    if not together:
        watch.sees(first)
    with pytest.raises(ssl.SSLError, match="finite field"):
        watch.sees(first + second if together else second)


def test_what_follows_in_tls_1_2_may_be_encrypted() -> None:
    watch = HelloWatch()
    watch.sees(hello("X25519", ssl.TLSVersion.TLSv1_2))
    watch.sees(b"\x01" + b"\xff" * 39)


@pytest.mark.parametrize("message", [b"\x02\0\0\0", b"\x01\x01\0\0"], ids=["another", "too long"])
def test_something_else_is_refused(message: bytes) -> None:
    with pytest.raises(ssl.SSLError, match="ClientHello"):
        HelloWatch().sees(message)


def test_what_cannot_be_read_is_left_to_openssl() -> None:
    message = hello("ffdhe2048")
    for size in range(len(message) - 4):
        with suppress(ssl.SSLError):  # and nothing else
            HelloWatch().sees(bytes((1,)) + size.to_bytes(3, "big") + message[4 : 4 + size])
