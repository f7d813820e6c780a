"""Creates an archive of Spark's classes for the Java of this machine, with which sessions start faster.

    python -m busbar.spark.class_archive

Most of a start is spent on finding, reading and checking some twenty thousand classes. Java can map them into memory in the
form in which they were loaded once (class data sharing). So a small session does once what jobs do, and Java writes the
loaded classes to a file, which java.py finds from then on. If the file does not fit, because Spark was moved or its class
path changed, Java ignores it. Then the start takes as long as without.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from busbar.spark.java import archive_of, base_of, installed_home, java_of_wheel, real_java
from busbar.spark.session import local_session

ROWS = 3
LONGEST = 600.0  # seconds; a longer start is not worth waiting for


def make(scratch: Path) -> Path | None:
    """Create the archive if it does not exist. None if there is no Java. Raises SubprocessError with the output."""
    home = installed_home()
    java = java_of_wheel() if home is None else real_java(home)
    if java is None:
        return None
    archive = archive_of(java)
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    options = []
    if subprocess.run([java, "-Xshare:on", "-version"], capture_output=True).returncode:
        # The runtime came without an archive of its own classes, which this one needs.
        base = base_of(archive)
        with _renamed_to(base) as fresh:
            _run([str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={fresh}"])
        options.append(f"-XX:SharedArchiveFile={base}")
    with _renamed_to(archive) as fresh:
        # In a process of its own, since this one may have a session already.
        options.append(f"-XX:ArchiveClassesAtExit={fresh}")
        _run([sys.executable, "-m", "busbar.spark.class_archive", "--train", str(scratch), "--", *options])
    return archive


@contextmanager
def _renamed_to(path: Path) -> Iterator[Path]:
    """A path for a file that is renamed when it is complete: other processes may be looking for it."""
    fresh = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield fresh
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _run(command: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}
    subprocess.run(
        command,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST,
    )


# ---- what the classes are needed for -------------------------------------------------------------------


def train(scratch: Path, options: Sequence[str]) -> None:
    """Do in small what jobs do: a source and a sink in Python, Parquet, batches, a stream, functions on Arrow."""
    spark = local_session(
        "busbar-classes", cores=1, config={"spark.driver.extraJavaOptions": " ".join(options)}
    )
    spark.dataSource.register(Numbers)
    read = spark.read.format("numbers").load().selectExpr("number", "CAST(number AS STRING) AS text")
    read.groupBy("text").count().orderBy("text").collect()
    files = str(scratch / "files")
    read.mapInArrow(lambda batches: batches, read.schema).write.partitionBy("text").parquet(files)
    spark.read.parquet(files).createOrReplaceTempView("files")
    spark.sql("SELECT max(number), percentile_approx(number, 0.5) FROM files").collect()
    read.select("number").write.format("numbers").mode("append").save()
    stream(spark, scratch / "to-sink").format("numbers").start().awaitTermination()
    stream(spark, scratch / "to-batches").foreachBatch(count).start().awaitTermination()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # Java writes the archive at its end


def stream(spark: SparkSession, checkpoint: Path) -> DataStreamWriter:
    frame = spark.readStream.format("numbers").load().selectExpr("number AS number")
    return frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def count(frame: DataFrame, batch: int) -> None:
    frame.count()


class Numbers(DataSource):
    """A source of some numbers, and a sink for numbers."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number LONG"

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TrainingStreamReader()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return TrainingBatchWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return TrainingStreamWriter()


class Reader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"number": list(range(ROWS))})


class TrainingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"at": ROWS}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"number": list(range(ROWS))})


class TrainingBatchWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return written(iterator)


class TrainingStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return written(iterator)


def written(batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in batches:
        pass
    return WriterCommitMessage()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Make an archive of Spark's classes, so that it starts faster."
    )
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.train is not None:
        train(given.train, given.options)
        return 0
    try:
        with tempfile.TemporaryDirectory(prefix="busbar-classes-") as scratch:
            made = make(Path(scratch))
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stdout", None) or "").strip().splitlines()[-5:]
        lines = ["Spark's classes cannot be archived; it starts without that.", str(error), *said]
        sys.stderr.write("\n  ".join(lines) + "\n")
        return 1
    sys.stdout.write("there is no Java\n" if made is None else f"Spark's classes are in {made}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
