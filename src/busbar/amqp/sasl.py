"""SASL (specification part 5): the layer that comes first, if the client requests it.

Server: header, mechanisms → init → (the gateway decides) → outcome → AMQP header. Client: header → mechanisms → init →
outcome. It supports ANONYMOUS, PLAIN and EXTERNAL, and uses the first of its own list that the server offers. None of these
needs challenges, so a challenge ends the connection.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from busbar.amqp.codec import encode_value
from busbar.amqp.errors import UNAUTHORIZED_ACCESS, ProtocolError
from busbar.amqp.outcomes import list_bytes
from busbar.amqp.types import Array, Symbol

OK: Final = 0
AUTH: Final = 1  # the credentials are wrong
SYS: Final = 2
SYS_PERM: Final = 3
SYS_TEMP: Final = 4

MAX_SASL_FRAME: Final = 4096


def mechanisms_body(mechanisms: list[str]) -> bytes:
    offered = Array(0xA3, [Symbol(name) for name in mechanisms])
    return b"\x00\x53\x40" + list_bytes(1, encode_value(offered))


def init_body(mechanism: str, response: bytes, hostname: str | None) -> bytes:
    fields: list[object] = [Symbol(mechanism), response]
    if hostname is not None:
        fields.append(hostname)
    return b"\x00\x53\x41" + encode_value(fields)


def outcome_body(code: i64) -> bytes:
    return b"\x00\x53\x44" + list_bytes(1, bytes((0x50, code)))


def choose(wanted: list[str], offered: list[str]) -> str:
    for name in wanted:
        if name in offered:
            return name
    raise ProtocolError(
        UNAUTHORIZED_ACCESS,
        f"the server offers {', '.join(offered) or 'no SASL mechanism'}; this client knows {', '.join(wanted)}",
    )


def initial_response(mechanism: str, user: str, password: str) -> bytes:
    if mechanism == "PLAIN":
        return b"\x00" + user.encode("utf-8") + b"\x00" + password.encode("utf-8")
    return b""
