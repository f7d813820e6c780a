"""How two processes of different nodes begin a channel: who they are, and why one is refused.

Rules:
1. Both ends have shown certificates of the namespace's authority before anything is read (node_tls.py). The node that a
   hello names is the node of the certificate.
2. The process that connects sends a hello, the other one a welcome. Both are frames of at most LARGEST_HELLO bytes.
3. The versions of both have one in common: the highest such version is the level of the channel. A process has its own
   version and the one before, unless its operator lets it offer less (`--node-level`). What a lower level does not have is
   not sent over the channel (calls.py).
4. A process of another namespace, or one that was looking for another broker, is refused with the reason.
"""

from __future__ import annotations

import msgspec

from busbar.cluster.codec import WireError

PROTOCOL_VERSIONS = [2, 1]
"""The version of the channels between nodes, and the one before. A new one is made when a call or a frame is added that
earlier releases do not have; the calls name it (protocol.py)."""
LARGEST_HELLO = 64 * 1024
TAKEN_FOR_ENDED = "its gateway was taken for ended: the broker has to be started again"
TO_CONTROLLER = "controller"
TO_STORES = "stores"


class Hello(msgspec.Struct, array_like=True):
    purpose: str
    """TO_CONTROLLER, or TO_STORES: the gateway of a broker uses the stores of another one."""
    namespace: str
    node: str
    broker: str
    gateway: str
    """The name of its gateway, which no other process has had."""
    to: str
    """The broker, or the node of the controller, that is meant."""
    address: str = ""
    """Where others reach its stores."""
    held: list[str] = []
    """The stores that it owns."""
    ended: list[str] = []
    """Gateways of earlier processes of this broker, which have certainly ended."""
    catalogue: int = 0
    """The number of the last change of the catalogue that it has."""
    versions: list[int] = msgspec.field(default_factory=lambda: [*PROTOCOL_VERSIONS])


class Welcome(msgspec.Struct, array_like=True):
    version: int
    """The version that is used; 0: the process is refused."""
    reason: str = ""


_hellos = msgspec.msgpack.Decoder(Hello)
_welcomes = msgspec.msgpack.Decoder(Welcome)


def frame_of(value: Hello | Welcome) -> bytes:
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(4, "big") + body


def read_hello(body: bytes) -> Hello:
    try:
        return _hellos.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"no hello: {error}") from None


def read_welcome(body: bytes) -> Welcome:
    try:
        return _welcomes.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"no welcome: {error}") from None


def judge(
    hello: Hello, namespace: str, certified: str, known_as: str, versions: list[int] = PROTOCOL_VERSIONS
) -> Welcome:
    """What a hello is answered with. `certified` is the node of the certificate, `known_as` this process, which offers these
    versions."""
    common = [version for version in hello.versions if version in versions]
    if not common:
        return Welcome(0, f"it has the versions {hello.versions}, this one has {versions}")
    if hello.namespace != namespace:
        return Welcome(0, "it is of another namespace")
    if hello.node != certified:
        return Welcome(0, f"it calls itself {hello.node!r}, and its certificate {certified!r}")
    if not hello.broker.startswith(f"{certified}."):
        return Welcome(0, f"the broker {hello.broker!r} is not of the node {certified!r}")
    if hello.to != known_as:
        return Welcome(0, f"it is looking for {hello.to!r}, and this is {known_as!r}")
    return Welcome(max(common))
