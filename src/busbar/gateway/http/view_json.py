"""What operators see, as JSON: the fields of a view, with names as JSON has them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def view_json(view: DataclassInstance) -> dict[str, object]:
    return _camel_keys(asdict(view))


def _camel_keys(fields: dict[str, object]) -> dict[str, object]:
    return {_camel(key): _camel_value(value) for key, value in fields.items()}


def _camel_value(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_camel_keys(one) if isinstance(one, dict) else one for one in value]
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
