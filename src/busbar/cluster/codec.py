"""Commands and effects as bytes, for processes that do not have both sides of a fragment.

Each value is an array: the tag of its class, then its fields in their order (msgpack). codec_table.py has the fields.
The commands within a transaction have their tags as well.
Decoding is strict: a tag, a type or a number that does not fit is a WireError, never another exception and never a
half-read value.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from busbar.cluster.codec_table import COMMANDS, EFFECTS, PARTS, Fields


class WireError(Exception):
    """The other side sent something that is not of this protocol."""


Structs = dict[type[Any], type[Any]]
"""How the values of a class with a tag are encoded."""


def part_of(declared: Any) -> type[Any] | None:
    """What a field is a list of, if that is a class with fields of its own."""
    inner = get_args(declared)
    return inner[0] if get_origin(declared) is list and inner[0] in PARTS else None


def optional_part_of(declared: Any) -> type[Any] | None:
    """What a field is if it is not None, if that is a class with fields of its own."""
    inner = get_args(declared) if isinstance(declared, UnionType) else ()
    return next((one for one in inner if one in PARTS), None)


def _tagged_parts_of(declared: Any) -> tuple[type[Any], ...]:
    """What a field is a list of, if those are several classes: each has a tag."""
    inner = get_args(declared) if get_origin(declared) is list else ()
    return get_args(inner[0]) if inner and isinstance(inner[0], UnionType) else ()


def encoded_fields(fields: Fields, tagged: Structs | None = None) -> Fields:
    """The fields as they are encoded: a part is a tuple of its own, or one of the structs that are `tagged`."""
    return [(name, _encoded_type(declared, tagged or {})) for name, declared in fields]


def _encoded_type(declared: Any, tagged: Structs) -> Any:
    part, optional, several = part_of(declared), optional_part_of(declared), _tagged_parts_of(declared)
    if part is not None:
        return list[_tuple_of(part)]  # type: ignore[misc]  # made by the table
    if optional is not None:
        return _tuple_of(optional) | None
    if several:
        return list[Union[tuple(tagged[one] for one in several)]]  # type: ignore[misc]  # noqa: UP007
    return declared


def _tuple_of(part: type[Any]) -> Any:
    return tuple[tuple(kind for _, kind in PARTS[part])]  # type: ignore[misc]  # made by the table


class Codec:
    """Batches of one family of values: all commands, or all effects."""

    def __init__(self, table: dict[type[Any], tuple[int, Fields]]) -> None:
        # There is a row for every message: what is done for each in Python counts.
        self._rows: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
            part: row_of(fields) for part, fields in PARTS.items()
        }
        self._builders: dict[type[Any], Callable[[Any], Any]] = {}
        structs: Structs = {}
        for kind, (tag, fields) in table.items():
            self._rows[kind] = _tagged_row_of(tag, fields)
            struct = msgspec.defstruct(
                kind.__name__ + "Row",
                encoded_fields(fields, structs),
                array_like=True,
                tag=tag,
                forbid_unknown_fields=True,
            )
            self._builders[struct] = self._builder(kind, fields)
            structs[kind] = struct
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._row)
        any_of_them: Any = Union[tuple(structs.values())]  # noqa: UP007
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[any_of_them])

    def encode(self, values: list[Any]) -> bytes:
        return self._encoder.encode(values)

    def decode(self, encoded: bytes | msgspec.Raw) -> list[Any]:
        try:
            rows = self._decoder.decode(encoded)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WireError(str(error)) from None
        builders = self._builders
        return [builders[type(row)](row) for row in rows]

    def _row(self, value: Any) -> tuple[Any, ...]:
        return self._rows[type(value)](value)

    def _builder(self, kind: type[Any], fields: Fields) -> Callable[[Any], Any]:
        """How to make the value from its decoded row."""
        found = [(place, part_of(declared)) for place, (_, declared) in enumerate(fields)]
        lists = [(place, part) for place, part in found if part is not None]
        tagged = [place for place, (_, declared) in enumerate(fields) if _tagged_parts_of(declared)]
        builders = self._builders

        def build(row: Any) -> Any:
            values = list(msgspec.structs.astuple(row))
            for place, part in lists:
                values[place] = [part(*item) for item in values[place]]
            for place in tagged:
                values[place] = [builders[type(item)](item) for item in values[place]]
            return kind(*values)

        return build


def row_of(fields: Fields) -> Callable[[Any], tuple[Any, ...]]:
    """How the values of these attributes are read from an object."""
    if len(fields) == 1:  # of one field attrgetter makes no tuple
        only = attrgetter(fields[0][0])
        return lambda value: (only(value),)
    return attrgetter(*[name for name, _ in fields])


def _tagged_row_of(tag: int, fields: Fields) -> Callable[[Any], tuple[Any, ...]]:
    row = row_of(fields)
    return lambda value: (tag, *row(value))


commands_codec = Codec(COMMANDS)
effects_codec = Codec(EFFECTS)
