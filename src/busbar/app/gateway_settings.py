"""What a broker process needs to know to open its gateway. It has secrets, and crosses on a socket that nobody else has."""

from __future__ import annotations

import msgspec

from busbar.gateway.authority import SasRule
from busbar.model.limits import Limits


class GatewaySettings(msgspec.Struct, array_like=True):
    rules: list[SasRule]
    """Those of the namespace."""
    limits: Limits
    certificate: str
    certificate_key: str
    owners: dict[str, str]
    """By store, the name of the broker that has it."""


_settings = msgspec.msgpack.Decoder(GatewaySettings)


def encode(settings: GatewaySettings) -> bytes:
    return msgspec.msgpack.encode(settings)


def decode(settings: bytes) -> GatewaySettings:
    return _settings.decode(settings)
