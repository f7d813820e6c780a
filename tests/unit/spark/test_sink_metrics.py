"""What a sink has written is found by the query and the batch of a progress."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from busbar.spark import sink_metrics
from busbar.spark.sink_metrics import KEPT, SinkMetrics, SinkProgress, keep_metrics, sink_progress, total


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"busbar-sink-{os.getuid()}"


def progress(query: str, batch: int) -> SimpleNamespace:
    return SimpleNamespace(id=query, batchId=batch)


def test_metrics_are_kept_by_query_and_batch(directory: Path) -> None:
    first = SinkMetrics(10, 2_000, 1, 3, 0.25)
    keep_metrics("q", 7, "alerts", first)
    keep_metrics("q", 8, "alerts", SinkMetrics(5, duplicates=None))
    assert sink_progress(progress("q", 7)) == SinkProgress("alerts", 7, first)
    later = sink_progress(progress("q", 8))
    assert later is not None and later.metrics.duplicates is None
    assert sink_progress(progress("q", 9)) is None and sink_progress(progress("other", 7)) is None
    assert sink_progress(None) is None
    keep_metrics("q", 7, "alerts", SinkMetrics(10, duplicates=10))  # the batch is written again
    again = sink_progress(progress("q", 7))
    assert again is not None and again.metrics.duplicates == 10
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_old_batches_and_unused_files_go(directory: Path) -> None:
    for batch in range(KEPT + 5):
        keep_metrics("q", batch, "alerts", SinkMetrics(batch))
    assert sink_progress(progress("q", 4)) is None
    oldest = sink_progress(progress("q", 5))
    assert oldest is not None and oldest.metrics.messages == 5
    unused = time.time() - sink_metrics.UNUSED_SECONDS - 60
    os.utime(directory / "q.json", (unused, unused))
    keep_metrics("other", 0, "alerts", SinkMetrics())
    assert [path.name for path in directory.iterdir()] == ["other.json"]


def test_a_file_that_cannot_be_written_harms_nothing(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory.write_text("a file in its place")
    keep_metrics("q", 0, "alerts", SinkMetrics(1))
    assert "could not be kept" in caplog.text and sink_progress(progress("q", 0)) is None


def test_the_total_of_tasks() -> None:
    tasks = [SinkMetrics(10, 100, 1, 2, 0.5), SinkMetrics(5, 50, 0, 1, 0.25)]
    assert total(tasks) == SinkMetrics(15, 150, 1, 3, 0.75)
    assert total([*tasks, SinkMetrics(duplicates=None)]).duplicates is None
    assert total([]) == SinkMetrics()
