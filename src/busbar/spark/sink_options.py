"""Options of the `busbar` format for writing. Names are not case-sensitive; an unknown one is an error.

Target: `entity` (or save("orders")), a queue or a topic, and a place for the connection string (secrets.py).

Messages: columns by their names (sink_columns.py), or those that `column.<field>` names instead. `message` (columns or raw)
decides for a frame that has both; `unknownColumns` (fail or ignore) is for all others.

Guarantee: `delivery`

    exactly-once   every message has an id, and the broker drops repetitions in a batch (sink_ids.py has the rules for
                   ids: `idColumns`, `idFrom`)
    at-least-once  no ids are needed; tasks and batches that are repeated are sent again

Writer: a stream is identified by the id of its query. A batch is a new writer in each run, unless `writer` (and `batch`, a
number that rises) names it: then a second run writes nothing twice.

`badRows` decides what happens to a row that cannot be a message: fail, drop, or a directory for them (bad_rows.py).
`waitForBroker` is how long a broker may be unreachable before the write fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from busbar.model.names import parent_and_name, without_dead_letters
from busbar.spark.errors import OptionError
from busbar.spark.options import Given
from busbar.spark.secrets import OPTIONS as SECRET_OPTIONS
from busbar.spark.secrets import Secret

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
FROM_MESSAGE: Final = "message"
FROM_SOURCE: Final = "source"
COLUMNS: Final = "columns"
RAW: Final = "raw"
FAIL: Final = "fail"
DROP: Final = "drop"
IGNORE: Final = "ignore"

COLUMN_PREFIX: Final = "column."
LONGEST_WRITER: Final = 256

_NAMES: Final = (
    *SECRET_OPTIONS,
    "entity",
    "path",
    "delivery",
    "idColumns",
    "idFrom",
    "message",
    "unknownColumns",
    "badRows",
    "writer",
    "batch",
    "waitForBroker",
    "checkpointLocation",  # Spark's own; it hands it on
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options. `message` is empty if the columns decide. `bad_rows` is FAIL, DROP or a directory."""

    secret: Secret
    entity: str
    once: bool
    id_columns: tuple[str, ...]
    id_from_source: bool
    message: str
    ignore_unknown: bool
    bad_rows: str
    writer: str
    batch: int
    wait: float
    """How long to wait for a broker that does not answer, in seconds."""
    columns: Mapping[str, str]
    """By field, the column that was named for it."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """Parse options. Raises OptionError."""
        columns = {
            name.lower().removeprefix(COLUMN_PREFIX): value
            for name, value in given.items()
            if name.lower().startswith(COLUMN_PREFIX)
        }
        options = Given(
            {name: value for name, value in given.items() if not name.lower().startswith(COLUMN_PREFIX)},
            _NAMES,
            "writing",
        )
        entity = (options.get("entity") or options.get("path") or "").strip("/")
        if not entity:
            raise OptionError("entity", "is missing: the name of a queue or a topic.")
        topic, _ = parent_and_name(entity)
        if topic:
            raise OptionError(
                "entity", f"is {entity!r}, a subscription; messages are sent to its topic {topic!r}."
            )
        if without_dead_letters(entity)[1]:
            raise OptionError("entity", f"is {entity!r}; nobody sends to a dead-letter queue.")
        id_columns = tuple(
            name.strip() for name in (options.get("idColumns") or "").split(",") if name.strip()
        )
        if options.get("idColumns") is not None and not id_columns:
            raise OptionError("idColumns", "names no column; it is a list such as 'order_id,line'.")
        if id_columns and options.get("idFrom") is not None:
            raise OptionError("idFrom", "cannot be given together with 'idColumns': both say what the id is.")
        wait = options.milliseconds("waitForBroker")
        return cls(
            secret=Secret.from_options(options.lowered),
            entity=entity,
            once=options.choice("delivery", (EXACTLY_ONCE, AT_LEAST_ONCE)) == EXACTLY_ONCE,
            id_columns=id_columns,
            id_from_source=options.choice("idFrom", (FROM_MESSAGE, FROM_SOURCE)) == FROM_SOURCE,
            message="" if options.get("message") is None else options.choice("message", (COLUMNS, RAW)),
            ignore_unknown=options.choice("unknownColumns", (FAIL, IGNORE)) == IGNORE,
            bad_rows=options.get("badRows") or FAIL,
            writer=_writer(options, streaming),
            batch=_batch(options, streaming),
            wait=(300_000 if wait is None else wait) / 1000,
            columns=columns,
        )


def _writer(options: Given, streaming: bool) -> str:
    writer = options.get("writer") or ""
    if writer and streaming:
        raise OptionError("writer", "is for batches; a stream is known by its query.")
    if len(writer) > LONGEST_WRITER:
        raise OptionError("writer", f"has {len(writer)} characters; {LONGEST_WRITER} are allowed.")
    return writer


def _batch(options: Given, streaming: bool) -> int:
    text = options.get("batch")
    if text is None:
        return 0
    if streaming:
        raise OptionError("batch", "is for batches; a stream counts them itself.")
    if not options.get("writer"):
        raise OptionError("batch", "needs 'writer': a number means nothing without knowing whose it is.")
    if not text.strip().isdecimal() or len(text.strip()) > 18:
        raise OptionError("batch", f"is {text!r}; it is a number from 0 on that rises from batch to batch.")
    return int(text)
