"""One sentence of what Spark reports over a hundred lines."""

from __future__ import annotations

import pytest

from busbar.jobs.failure_text import JobFailureKind, kind_of, sentence_of

OF_A_SOURCE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed \
when Python data source instance planned: Traceback (most recent call last):
  File "source.py", line 90, in latestOffset
    raise spark_error(error, options) from error
busbar.spark.errors.SourceError: [BUSBAR_UNAVAILABLE] The broker of the entity 'orders' did not answer for 5 s.

During handling of the above exception, another exception occurred:
	at org.apache.spark.sql.streaming.StreamingQueryException
"""
OF_A_WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "task.py", line 3, in write
ValueError: the first
Traceback (most recent call last):
  File "task.py", line 9, in write
busbar.jobs.manifest.ArchiveError: The disk is full.
"""
OF_JAVA = """An error occurred while calling o51.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 1 times
	at org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2856)
Caused by: java.lang.RuntimeException: outer
	at Some.method(Some.java:1)
Caused by: java.io.IOException: No space left on device
	at java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""


@pytest.mark.parametrize(
    ("text", "sentence", "kind"),
    [
        (OF_A_SOURCE, "The broker of the entity 'orders' did not answer for 5 s.", JobFailureKind.OTHER),
        (OF_A_WORKER, "The disk is full.", JobFailureKind.OTHER),
        (OF_JAVA, "No space left on device", JobFailureKind.OTHER),
        ("[BUSBAR_NOT_FOUND] There is no 'x'.\n\tat org", "There is no 'x'.", JobFailureKind.NOT_FOUND),
        ("[BUSBAR_OPTION] The option 'tap' is wrong.", "The option 'tap' is wrong.", JobFailureKind.USAGE),
        ("one line\nand another", "one line", JobFailureKind.OTHER),
    ],
)  # fmt: skip
def test_the_sentence_in_a_trace(text: str, sentence: str, kind: JobFailureKind) -> None:
    assert (sentence_of(text), kind_of(text)) == (sentence, kind)
    assert "\n" not in sentence_of(RuntimeError(text))


def test_an_error_without_a_text_has_its_name() -> None:
    assert sentence_of(KeyError()) == "KeyError"
    assert len(sentence_of("x" * 1000)) < 500
