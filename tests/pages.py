"""Packed messages (model/tap_page.py) one by one, by the words of the format and not by its code."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from busbar.model.effects import TapPage
from busbar.model.message import Overlay, Record
from busbar.model.tap_page import TapPageBuilder

_MANY = 1 << 62
_HEAD = struct.Struct(">qqqqIBII")


@dataclass(frozen=True)
class Shown:
    n: int
    dead: int
    enqueued: int
    ttl: int
    deliveries: int
    lane: int
    overlay: Overlay | None
    content: bytes


def shown(packed: TapPage | TapPageBuilder) -> list[Shown]:
    heads = packed.heads() if isinstance(packed, TapPageBuilder) else packed.heads
    contents, at = b"".join(packed.contents), 0
    found = []
    for n, dead, enqueued, ttl, deliveries, lane, nothing, size in _HEAD.iter_unpack(heads):
        assert nothing == 0
        content = contents[at : at + size]
        found.append(
            Shown(n, dead, enqueued, ttl, deliveries, lane, packed.overlays.get(n), content),
        )
        at += size
    assert at == len(contents)
    return found


def packing_of(records: list[Record], lanes: list[int]) -> TapPageBuilder:
    packing = TapPageBuilder(_MANY, _MANY, 0)
    assert all(packing.add(record, lane) for record, lane in zip(records, lanes, strict=True))
    return packing


def page_of(origin: int, request: int, records: list[Record], lanes: list[int], upto: int) -> TapPage:
    packing = packing_of(records, lanes)
    return TapPage(origin, request, packing.heads(), packing.contents, packing.overlays, upto)
