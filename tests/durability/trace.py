"""Reads what harness/faults/trace.c wrote down and finds every acknowledgement that left before its commit was synced.

For a send: the message's bytes are seen in a write to the store; a sync of that file begins after the write has
returned, and has returned before the first byte of `accepted` is handed to the socket.
For a settlement: between the arrival of the client's disposition and the leaving of the confirmation there is a write
to the store and, after it, a whole sync of the same file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from busbar.amqp.codec import decode_value
from busbar.amqp.types import Described

TRANSFER, DISPOSITION, ACCEPTED = 0x14, 0x15, 0x24
MARK = re.compile(rb"<mark [0-9]{8}>")


@dataclass(frozen=True, slots=True)
class Record:
    kind: str
    descriptor: int
    data: bytes = b""


@dataclass(slots=True)
class Verdict:
    sends: int = 0
    settlements: int = 0
    early: list[str] = field(default_factory=list)


def read_trace(path: Path) -> list[Record]:
    data = path.read_bytes()
    records = []
    position = 0
    while position < len(data):
        end = data.index(b"\n", position)
        kind, descriptor, length = data[position:end].split(b" ")
        start = end + 1
        position = start + int(length) + 1
        if position > len(data):
            break  # the process ended amid a record
        records.append(Record(kind.decode(), int(descriptor), data[start : position - 1]))
    return records


def _frames(records: list[Record], kind: str) -> Iterator[tuple[int, list[object], bytes, int]]:
    """Transfers and dispositions of one direction: where their first byte stood, code, fields, payload."""
    streams: dict[int, bytearray] = {}
    begins: dict[int, list[tuple[int, int]]] = {}
    for index, record in enumerate(records):
        if record.kind != kind:
            continue
        data = record.data
        if kind == "N":
            data = data[: _taken(records, index)]
        stream = streams.setdefault(record.descriptor, bytearray())
        begins.setdefault(record.descriptor, []).append((len(stream), index))
        stream += data
    for descriptor, stream in streams.items():
        places = begins[descriptor]
        position = place = 0
        while position + 8 <= len(stream):
            while place + 1 < len(places) and places[place + 1][0] <= position:
                place += 1
            if stream[position : position + 4] == b"AMQP":
                position += 8
                continue
            size, doff, kind_of_frame, _channel = struct.unpack_from(">IBBH", stream, position)
            if position + size > len(stream):
                break
            body = bytes(stream[position + 4 * doff : position + size])
            position += size
            if kind_of_frame != 0 or not body:
                continue
            value, end = decode_value(body, 0, len(body))
            assert isinstance(value, Described) and isinstance(value.value, list)
            if value.descriptor in (TRANSFER, DISPOSITION):
                yield places[place][1], [value.descriptor, *value.value], body[end:], descriptor


def _taken(records: list[Record], index: int) -> int:
    """How much of the data of an N record the socket took; other threads may have spoken in between."""
    for record in islice(records, index + 1, None):
        if record.kind == "D" and record.descriptor == records[index].descriptor:
            return int(record.data)
    return len(records[index].data)  # the process was killed before the call was written down


def _ids(fields: list[object]) -> range:
    first = int(str(fields[2]))
    last = first if len(fields) < 4 or fields[3] is None else int(str(fields[3]))
    return range(first, last + 1)


def _accepts(fields: list[object]) -> bool:
    state = fields[5] if len(fields) > 5 else None
    return isinstance(state, Described) and state.descriptor == ACCEPTED


class _Syncs:
    """Whole syncs (begin, end) by file."""

    def __init__(self, records: list[Record]) -> None:
        self._whole: dict[int, list[tuple[int, int]]] = {}
        begun: dict[int, int] = {}
        for index, record in enumerate(records):
            if record.kind == "B":
                begun[record.descriptor] = index
            elif record.kind == "E":
                self._whole.setdefault(record.descriptor, []).append((begun[record.descriptor], index))

    def between(self, written: int, descriptor: int, left: int) -> bool:
        return any(written < begin and end < left for begin, end in self._whole.get(descriptor, []))


def judge(records: list[Record]) -> Verdict:
    """Counts the acknowledgements of a trace and names those that left too early."""
    verdict = Verdict()
    syncs = _Syncs(records)
    first_write: dict[bytes, tuple[int, int]] = {}
    writes: list[tuple[int, int]] = []
    for index, record in enumerate(records):
        if record.kind == "W":
            writes.append((index, record.descriptor))
            for mark in MARK.findall(record.data):
                first_write.setdefault(mark, (index, record.descriptor))
    sent: dict[tuple[int, int], bytes] = {}
    asked: dict[tuple[int, int], int] = {}
    for index, fields, payload, connection in _frames(records, "R"):
        if fields[0] == TRANSFER:
            found = MARK.search(payload)
            if found:
                sent[connection, int(str(fields[2]))] = found.group()
        elif fields[1] is True:
            for number in _ids(fields):
                asked.setdefault((connection, number), index)
    for left, fields, _payload, connection in _frames(records, "N"):
        if fields[0] != DISPOSITION or not _accepts(fields):
            continue
        for number in _ids(fields):
            if fields[1] is True:
                mark = sent.get((connection, number))
                if mark is None:
                    continue  # a request to $cbs or the like
                verdict.sends += 1
                written = first_write.get(mark)
                if written is None or not syncs.between(*written, left):
                    verdict.early.append(f"accepted {mark.decode()} at record {left} before it was synced")
            else:
                verdict.settlements += 1
                since = asked[connection, number]
                if not any(
                    since < written < left and syncs.between(written, descriptor, left)
                    for written, descriptor in writes
                ):
                    verdict.early.append(f"confirmed delivery {number} at record {left} before it was synced")
    return verdict
