"""The settings with which a broker process opens its gateway. They have secrets, and cross on a socket without a name."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from busbar.model.history import HistoryRecording
from busbar.model.limits import SHARED_LIMITS, Limits
from busbar.model.sas import SasRule


class NodeSettings(msgspec.Struct, array_like=True):
    rules: list[SasRule]
    """Those of the namespace."""
    limits: Limits
    certificate: str
    certificate_key: str
    owners: dict[str, str] = {}
    """By store, the name of the broker that owns it when the gateway opens."""
    brokers: list[str] = []
    """The names of all brokers of the namespace."""
    gateway: str = ""
    """The name of the gateway. No other has had it, also none of an earlier process of this broker."""
    namespace: str = "busbar"
    addresses: dict[str, str] = {}
    """By broker of another node, where its stores can be reached. Empty if all brokers are of one machine."""
    has_nodes: bool = False
    """Whether owners of stores can be frozen or cut off while others claim their stores."""
    recording: HistoryRecording = HistoryRecording()
    """Which entities record their history when the gateway opens."""


def node_of(broker: str) -> str:
    """The node that a broker belongs to."""
    return broker.rpartition(".")[0]


def share_of(limits: Limits, number: int, gateways: int) -> Limits:
    """The share of one gateway, by its number from 0 on, in the limits of the namespace.

    All shares together are the limit; the first gateways have what is left of the division. A limit that is lower than the
    number of gateways cannot be shared: each has one then."""
    shares = {}
    for name in SHARED_LIMITS:
        each, left = divmod(getattr(limits, name), gateways)
        shares[name] = max(1, each + (number < left))
    return replace(limits, **shares)
