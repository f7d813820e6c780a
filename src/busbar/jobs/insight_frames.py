"""The history of entities as a frame for Spark, and the aggregates over it.

Everything is in one frame, the history of any number of entities: a row for each enqueued message, and for each event. Its
columns:

    entity, fragment, position, number, outcome, ms, latency, failed, session_id, partition_key, reason, state

`outcome` of a message is "sent"; that of an event is its own. `number` is that of the message, also of an event. `failed`:
an earlier delivery had failed. `reason` is that of dead-lettering, and the message id of a duplicate. `state` is that of a
message when it was read.

A queue and its dead-letter queue share events. What follows the dead-lettering of a message belongs to the dead-letter queue
(own_events).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from busbar.jobs.insight_figures import BOUNDS
from busbar.spark.options import NUMBER_MASK

SENT: Final = "sent"
DONE: Final = ("completed", "received-and-deleted")
DEAD_LETTERED: Final = "dead-lettered"
ENDS: Final = (*DONE, DEAD_LETTERED, "expired", "purged", "consumed", "forwarded")
"""The outcomes after which a message is not in the entity any more."""
TOP: Final = 10
PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
ACCURACY: Final = 10_000


def of_messages(frame: DataFrame) -> DataFrame:
    """The history of messages, from the columns of the source's schema."""
    dead = f.col("state").startswith(DEAD_LETTERED)
    number = f.col("sequence_number").bitwiseAND(NUMBER_MASK)
    return frame.select(
        "entity",
        "fragment",
        number.alias("position"),
        number.alias("number"),
        f.lit(SENT).alias("outcome"),
        f.unix_millis("enqueued_time").alias("ms"),
        f.lit(None).cast("long").alias("latency"),
        f.lit(False).alias("failed"),
        "session_id",
        "partition_key",
        f.when(dead, f.coalesce("dead_letter_reason", f.lit(""))).alias("reason"),
        "state",
    )


def of_events(frame: DataFrame) -> DataFrame:
    """The history of events, from the columns of the source's schema."""
    ms = f.unix_millis("time")
    nothing = f.lit(None).cast("string")
    return frame.select(
        "entity",
        "fragment",
        "position",
        f.col("sequence_number").bitwiseAND(NUMBER_MASK).alias("number"),
        "outcome",
        ms.alias("ms"),
        f.greatest(ms - f.unix_millis("enqueued_time"), f.lit(0)).alias("latency"),
        (f.col("delivery_count") > 0).alias("failed"),
        nothing.alias("session_id"),
        nothing.alias("partition_key"),
        f.coalesce("reason", f.lit("")).alias("reason"),
        nothing.alias("state"),
    )


def has_shared_events(history: DataFrame, dead_letter_queues: Sequence[str]) -> bool:
    """Whether some events of the history may belong to the other one of a queue and its dead-letter queue."""
    return bool(dead_letter_queues) or not history.where(f.col("outcome") == DEAD_LETTERED).isEmpty()


def own_events(history: DataFrame, dead_letter_queues: Sequence[str]) -> DataFrame:
    """The history in which each entity has its own events only.

    A queue has those of a message up to its dead-lettering. A dead-letter queue has the later ones of its dead letters.
    """
    of_message = ["entity", "fragment", "number"]
    is_sent = f.col("outcome") == SENT
    is_dead = f.col("outcome") == DEAD_LETTERED
    in_queue_of_dead = f.col("entity").isin(*dead_letter_queues) if dead_letter_queues else f.lit(False)
    marks = (
        history.where(is_dead | (in_queue_of_dead & is_sent))
        .groupBy(*of_message)
        .agg(f.min(f.when(is_dead, f.col("position"))).alias("buried"), f.max(is_sent).alias("came"))
    )
    buried = f.col("buried")
    up_to = ~in_queue_of_dead & (buried.isNull() | (f.col("position") <= buried))
    after = in_queue_of_dead & f.col("came") & ~is_dead & (buried.isNull() | (f.col("position") > buried))
    return history.join(marks, of_message, "left").where(is_sent | up_to | after).drop("buried", "came")


def rates(flows: DataFrame) -> DataFrame:
    """The maximum number of messages in a second, and in a minute."""
    second, minute = f.floor(f.col("ms") / 1000), f.floor(f.col("at") / 60)
    seconds = flows.groupBy("entity", "sent", second.alias("at")).agg(f.count("*").alias("count"))
    minutes = seconds.groupBy("entity", "sent", minute.alias("at")).agg(
        f.sum("count").alias("minute"), f.max("count").alias("second")
    )
    return minutes.groupBy("entity", "sent").agg(
        f.max("minute").alias("minute"), f.max("second").alias("second")
    )


def latencies(done: DataFrame) -> DataFrame:
    """The latencies by fragment, and of all (fragment is null)."""
    measured = (
        f.count("*").alias("count"),
        f.mean("latency").alias("mean"),
        f.max("latency").alias("most"),
        f.percentile_approx("latency", list(PERCENTILES), ACCURACY).alias("percentiles"),
    )
    return done.rollup("entity", "fragment").agg(*measured).where(f.col("entity").isNotNull())


def ranked(history: DataFrame) -> DataFrame:
    """The most frequent keys, sessions, reasons, duplicates, with the number of messages and of names of each kind."""

    def named(kind: str, outcome: str, column: str) -> Column:
        name = f.when(f.col("outcome") == outcome, f.col(column))
        return f.struct(f.lit(kind).alias("kind"), name.alias("name"))

    kinds = f.array(
        named("key", SENT, "partition_key"),
        named("session", SENT, "session_id"),
        named("held reason", SENT, "reason"),
        named("reason", "dead-lettered", "reason"),
        named("duplicate", "duplicate-dropped", "reason"),
    )
    names = (
        history.select("entity", f.explode(kinds).alias("each"))
        .select("entity", "each.kind", "each.name")
        .where(f.col("name").isNotNull())
    )
    counted = names.groupBy("entity", "kind", "name").agg(f.count("*").alias("count"))
    of_kind = Window.partitionBy("entity", "kind")
    return (
        counted.withColumn("place", f.row_number().over(of_kind.orderBy(f.desc("count"), "name")))
        .withColumn("whole", f.sum("count").over(of_kind))
        .withColumn("distinct", f.count("*").over(of_kind))
        .where(f.col("place") <= TOP)
    )


def ends_by_slot(history: DataFrame, spans: DataFrame, slot: Column) -> DataFrame:
    """The first end of each message: how many in each slot, of the messages of the span, and of those whose outcome must be
    known."""
    at = f.col("ms") - f.col("latency")
    return (
        history.where(f.col("outcome").isin(*ENDS))
        .withColumn("at", at)
        .groupBy("entity", "fragment", "number")
        .agg(f.min("ms").alias("ms"), f.min("at").alias("at"))
        .join(spans, ["entity", "fragment"])
        .groupBy(
            "entity",
            slot,
            (f.col("number") > f.col("after")).alias("in_span"),
            f.col("at").between(f.col("since"), f.col("until")).alias("known"),
        )
        .agg(f.count("*").alias("count"))
    )


def bin_of(latency: Column) -> Column:
    """The index of the histogram's bin: how many of the bounds are not above the latency."""
    return reduce(operator.add, [(latency >= bound).cast("int") for bound in BOUNDS])
