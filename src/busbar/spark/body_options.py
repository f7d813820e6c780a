"""Options that decode the bodies of messages to a column `value`.

`bodyFormat` is json, avro, protobuf or text. `bodySchema` has the schema: DDL for JSON, the JSON form for Avro.
`bodySchemaFile` names a file of the driver that has it: for Protobuf a descriptor set, in which `bodyMessage` names the
message. JSON without a schema is inferred, in a batch, from the first `bodySampleSize` messages.

`schemaRegistry` is the URL of a registry (schema_registry.py). Then every body names the schema of its writer, and
`schemaSubject` and `schemaVersion` name the schema of the column, unless `bodySchema` gives it.

`badBodies` decides about bodies that do not fit
  fail     the read fails, and the error names the message
  null     their value is null
  column   their value is null, and a column `body_error` has the reason
  drop     their messages are left out, and their number is logged
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from busbar.spark.errors import OptionError
from busbar.spark.schema_registry import (
    AZURE,
    CONFLUENT,
    CREDENTIALS,
    CREDENTIALS_FILE,
    CREDENTIALS_VARIABLE,
    LATEST,
    RegistryOptions,
    check_url,
    is_of_azure,
)

JSON: Final = "json"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
TEXT: Final = "text"
FORMATS: Final = (JSON, AVRO, PROTOBUF, TEXT)

FAIL: Final = "fail"
NULL: Final = "null"
COLUMN: Final = "column"
DROP: Final = "drop"
BAD: Final = (FAIL, NULL, COLUMN, DROP)

SAMPLE_SIZE: Final = 1_000
MAX_SAMPLE_SIZE: Final = 100_000

_REGISTRY: Final = (
    "schemaRegistryType",
    CREDENTIALS,
    CREDENTIALS_VARIABLE,
    CREDENTIALS_FILE,
    "schemaRegistryTrustFile",
    "schemaRegistryTimeout",
    "schemaSubject",
    "schemaVersion",
)
_FORMAT: Final = (
    "bodySchema",
    "bodySchemaFile",
    "bodyMessage",
    "bodySampleSize",
    "badBodies",
    "schemaRegistry",
)
OPTIONS: Final = ("bodyFormat", *_FORMAT, *_REGISTRY)


class OptionReader(Protocol):
    """Reads options by name (Given in options.py)."""

    def get(self, name: str) -> str | None: ...

    def choice(self, name: str, allowed: tuple[str, ...]) -> str: ...

    def number(self, name: str) -> int | None: ...

    def milliseconds(self, name: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """How bodies are decoded."""

    format: str
    schema: str = ""
    schema_file: str = ""
    message: str = ""
    sample_size: int = SAMPLE_SIZE
    bad: str = FAIL
    registry: RegistryOptions | None = None
    subject: str = ""
    version: str = LATEST

    @property
    def has_errors(self) -> bool:
        """Whether there is a column `body_error`."""
        return self.bad == COLUMN

    def schema_bytes(self) -> bytes:
        """The schema, from its option or its file; empty if there is neither. Raises OptionError."""
        if not self.schema_file:
            return self.schema.encode()
        try:
            return Path(self.schema_file).read_bytes()
        except OSError as error:
            raise OptionError(
                "bodySchemaFile",
                f"names {self.schema_file!r}, which the driver cannot read: {error.strerror}.",
            ) from None


def parse_body(given: OptionReader) -> BodyOptions | None:
    """The options for bodies; None if they are not decoded. Raises OptionError."""
    if not given.get("bodyFormat"):
        for name in (*_FORMAT, *_REGISTRY):
            if given.get(name) is not None:
                raise OptionError(name, f"needs the option 'bodyFormat': {', '.join(FORMATS)}.")
        return None
    kind = given.choice("bodyFormat", FORMATS)
    found = BodyOptions(
        format=kind,
        schema=given.get("bodySchema") or "",
        schema_file=given.get("bodySchemaFile") or "",
        message=given.get("bodyMessage") or "",
        sample_size=given.number("bodySampleSize") or SAMPLE_SIZE,
        bad=_bad(given),
        registry=_registry(given),
        subject=given.get("schemaSubject") or "",
        version=(given.get("schemaVersion") or LATEST).lower(),
    )
    _check(found)
    return found


def _bad(given: OptionReader) -> str:
    if (given.get("badBodies") or "").lower() == "deadletter":
        raise OptionError(
            "badBodies",
            "is 'deadLetter'. A reader follows a tap and settles no message, so it cannot dead-letter one. Use 'column', "
            "and busbar.spark.bodies.dead_letter_bodies for the rows that have an error.",
        )
    return given.choice("badBodies", BAD)


def _check(found: BodyOptions) -> None:
    """Raise OptionError for options that do not fit the format, or each other."""
    if found.schema and found.schema_file:
        raise OptionError(
            "bodySchema", "cannot be given together with 'bodySchemaFile': one schema is enough."
        )
    has_schema = bool(found.schema or found.schema_file)
    if found.format == TEXT and (has_schema or found.registry is not None):
        raise OptionError(
            "bodySchema" if has_schema else "schemaRegistry",
            "does not fit the format 'text', which has no schema.",
        )
    if found.message and found.format != PROTOBUF:
        raise OptionError("bodyMessage", "is for the format 'protobuf'.")
    if found.sample_size > MAX_SAMPLE_SIZE:
        raise OptionError("bodySampleSize", f"is {found.sample_size}; it is at most {MAX_SAMPLE_SIZE}.")
    if found.subject and has_schema:
        raise OptionError(
            "schemaSubject", "cannot be given together with 'bodySchema': one schema is enough."
        )
    if found.format == AVRO and not (has_schema or found.subject):
        raise OptionError(
            "bodySchema", "is missing: an Avro schema in its JSON form. A registry has it by 'schemaSubject'."
        )
    if found.format == PROTOBUF:
        _check_protobuf(found)


def _check_protobuf(found: BodyOptions) -> None:
    if found.schema:
        raise OptionError(
            "bodySchema",
            "is a text; the schema of Protobuf is a descriptor set, which 'bodySchemaFile' names.",
        )
    if found.registry is not None and found.registry.kind == AZURE:
        raise OptionError("schemaRegistry", "is one of Azure, whose schemas of Protobuf are not supported.")
    if not found.subject and not found.schema_file:
        raise OptionError(
            "bodySchemaFile",
            "is missing: a descriptor set, as 'protoc --include_imports --descriptor_set_out=FILE' writes it.",
        )
    if found.schema_file and not found.message:
        raise OptionError("bodyMessage", "is missing: the full name of the message, such as 'shop.Order'.")


def _registry(given: OptionReader) -> RegistryOptions | None:
    url = given.get("schemaRegistry")
    if not url:
        for name in _REGISTRY:
            if given.get(name) is not None:
                raise OptionError(name, "needs the option 'schemaRegistry': the URL of the registry.")
        return None
    url = check_url(url)
    places = [name for name in (CREDENTIALS, CREDENTIALS_VARIABLE, CREDENTIALS_FILE) if given.get(name)]
    if len(places) > 1:
        raise OptionError(places[0], f"cannot be given together with {places[1]!r}: one place is enough.")
    trust = given.get("schemaRegistryTrustFile") or ""
    if trust and not Path(trust).is_file():
        raise OptionError("schemaRegistryTrustFile", f"names {trust!r}, which is no file here.")
    usual = (AZURE, CONFLUENT) if is_of_azure(url) else (CONFLUENT, AZURE)
    timeout = given.milliseconds("schemaRegistryTimeout")
    return RegistryOptions(
        url=url,
        kind=given.choice("schemaRegistryType", usual),
        variable=given.get(CREDENTIALS_VARIABLE) or "",
        file=given.get(CREDENTIALS_FILE) or "",
        literal=given.get(CREDENTIALS) or "",
        trust=trust,
        timeout=30.0 if timeout is None else timeout / 1000,
    )
