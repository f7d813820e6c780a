"""How values of the API cross between processes that msgpack alone does not carry.

Entities cross as definitions, in the form in which stores keep them, and settings of fragments by their own codec. All other
types are encoded as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from busbar.catalogue.change import EntityChange, StoreChange
from busbar.catalogue.definition import decode_definition, encode_definition
from busbar.cluster.codec import commands_codec
from busbar.cluster.failures import Failure, decode_error, encode_error
from busbar.cluster.settings_codec import SettingsReader, encode_settings
from busbar.model.api import EntityView, NamedRule, RuleChange
from busbar.model.commands import Command
from busbar.model.entities import Description, RuleDescription
from busbar.model.settings import FragmentSettings

Crossing = tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]
"""What a value is encoded as, and the way there and back."""

_settings = SettingsReader()


def _encode_views(views: Sequence[EntityView]) -> list[bytes]:
    return [encode_definition(view) for view in views]


def _decode_views(encoded: list[bytes]) -> list[EntityView]:
    return [decode_definition(one) for one in encoded]


def _encode_description(description: Description) -> bytes:
    return encode_definition(EntityView("", description, ()))


def _decode_description(encoded: bytes) -> Description:
    return decode_definition(encoded).description


def _encode_rule(rule: NamedRule | None) -> bytes | None:
    return None if rule is None else encode_definition(EntityView(rule[0], rule[1], ()))


def _decode_rule(encoded: bytes | None) -> NamedRule | None:
    if encoded is None:
        return None
    view = decode_definition(encoded)
    if not isinstance(view.description, RuleDescription):
        raise msgspec.DecodeError("the definition of a rule is not that of a rule")
    return view.path, view.description


def _encode_rule_changes(changes: Sequence[RuleChange]) -> list[tuple[str, bytes | None]]:
    return [(path, None if rule is None else _encode_rule((path, rule))) for path, rule in changes]


def _decode_rule_changes(changes: list[tuple[str, bytes | None]]) -> list[RuleChange]:
    decoded = [(path, _decode_rule(encoded)) for path, encoded in changes]
    return [(path, None if rule is None else rule[1]) for path, rule in decoded]


class _StoreChange(msgspec.Struct, array_like=True):
    rows: dict[str, bytes | None]
    new: bytes
    changed: bytes
    retired: list[int]


def _encode_stores(changes: Mapping[str, StoreChange]) -> dict[str, _StoreChange]:
    return {
        store: _StoreChange(
            change.rows, encode_settings(change.new), encode_settings(change.changed), [*change.retired]
        )
        for store, change in changes.items()
    }


def _decode_stores(changes: dict[str, _StoreChange]) -> dict[str, StoreChange]:
    return {
        store: StoreChange(
            change.rows, _settings.read(change.new), _settings.read(change.changed), change.retired
        )
        for store, change in changes.items()
    }


def _encode_changes(changes: Sequence[EntityChange]) -> list[tuple[str, bytes | None]]:
    return [(path, None if view is None else encode_definition(view)) for path, view in changes]


def _decode_changes(changes: list[tuple[str, bytes | None]]) -> list[EntityChange]:
    return [(path, None if encoded is None else decode_definition(encoded)) for path, encoded in changes]


def _encode_errors(errors: Mapping[str, Exception]) -> dict[str, Failure]:
    return {name: encode_error(error) for name, error in errors.items()}


def _decode_errors(failures: dict[str, Failure]) -> dict[str, Exception]:
    return {name: decode_error(failure) for name, failure in failures.items()}


def _encode_commands(commands: list[Command] | None) -> bytes | None:
    return None if commands is None else commands_codec.encode(commands)


def _decode_commands(encoded: bytes | None) -> list[Command] | None:
    return None if encoded is None else commands_codec.decode(encoded)


def _as_it_is(value: Any) -> Any:
    return value


_CROSSINGS: dict[Any, Crossing] = {
    EntityView: (bytes, encode_definition, decode_definition),
    Sequence[EntityView]: (list[bytes], _encode_views, _decode_views),
    Description: (bytes, _encode_description, _decode_description),
    NamedRule | None: (bytes | None, _encode_rule, _decode_rule),
    Sequence[RuleChange]: (list[tuple[str, bytes | None]], _encode_rule_changes, _decode_rule_changes),
    Mapping[int, FragmentSettings]: (bytes, encode_settings, _settings.read),
    Mapping[str, StoreChange]: (dict[str, _StoreChange], _encode_stores, _decode_stores),
    Sequence[EntityChange]: (list[tuple[str, bytes | None]], _encode_changes, _decode_changes),
    dict[str, Exception]: (dict[str, Failure], _encode_errors, _decode_errors),
    list[Command]: (bytes, commands_codec.encode, commands_codec.decode),
    list[Command] | None: (bytes | None, _encode_commands, _decode_commands),
}


def crossing_of(annotation: Any) -> Crossing:
    """How values with this annotation cross."""
    return _CROSSINGS.get(annotation, (annotation, _as_it_is, _as_it_is))
