"""Edits: fields of a message that are set before it is sent again (busbar/operations/rewriting.py has the fields).

An edit sets a field to the value of an expression (Spark SQL, over the columns of the source):

    subject = concat('again: ', subject)        properties.attempt = 2
    body = to_json(struct(message_id, subject))     properties.region = null      (removes it)

A number of any integer type becomes a long, a float or double a double.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from busbar.operations.rewriting import (
    BODY,
    FIELDS,
    PARTITION_KEY,
    PROPERTY,
    SCHEDULED,
    TEXTS,
    TIME_TO_LIVE,
    EditError,
)

BODY_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class FieldEdit:
    """`field` is set to the value of `expression`."""

    field: str
    expression: str

    @classmethod
    def parse(cls, text: str) -> FieldEdit:
        """Parse FIELD=EXPRESSION. Raises EditError."""
        field, equals, expression = text.partition("=")
        field, expression = field.strip(), expression.strip()
        if not equals or not field or not expression:
            raise EditError(f"the edit {text!r} is not FIELD=EXPRESSION, like subject='again'")
        lowered = field.lower()
        if lowered.startswith(PROPERTY) and len(field) > len(PROPERTY):
            return cls(PROPERTY + field[len(PROPERTY) :], expression)
        if lowered not in FIELDS:
            raise EditError(
                f"{field!r} cannot be set; there are: {', '.join(FIELDS)}, and {PROPERTY}NAME for an application property"
            )
        return cls(lowered, expression)


def parse_edits(edits: Iterable[str] | Mapping[str, str]) -> tuple[FieldEdit, ...]:
    """Parse edits. Raises EditError, also for a field that is set twice."""
    texts = [f"{field}={text}" for field, text in edits.items()] if isinstance(edits, Mapping) else edits
    parsed = tuple(FieldEdit.parse(text) for text in texts)
    fields = [edit.field for edit in parsed]
    for field in fields:
        if fields.count(field) > 1:
            raise EditError(f"{field!r} is set twice")
    return parsed


ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys((*TEXTS, PARTITION_KEY), ("string",)),
    BODY: ("binary", "string"),
    TIME_TO_LIVE: ("tinyint", "smallint", "int", "bigint"),
    SCHEDULED: ("timestamp",),
}
_OF_PROPERTIES: Final = (
    "string",
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "timestamp",
    "binary",
)


def shown_value(value: object) -> object:
    """A value of a message, or of an edit, as a plan shows it: text, cut if it is long."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value[:BODY_SHOWN]).decode("utf-8", "replace") + ("…" if len(value) > BODY_SHOWN else "")
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def check_type(edit: FieldEdit, kind: str) -> None:
    """Check the type of an expression; `kind` is its name in Spark (void: always null). Raises EditError."""
    allowed = _OF_PROPERTIES if edit.field.startswith(PROPERTY) else ALLOWED[edit.field]
    if re.sub(r"\(\d+\)| collate .*", "", kind) not in (*allowed, "void"):
        raise EditError(
            f"{edit.field!r} is set to {edit.expression!r}, which is a {kind}; it can be {' or '.join(allowed)}"
        )
