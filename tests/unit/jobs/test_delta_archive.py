"""Archives as Delta tables: other programs read them, and two captures do not write the same messages."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable, write_deltalake

from busbar.jobs import archive
from busbar.jobs.archive import MESSAGES
from busbar.jobs.archive_location import ArchiveError
from busbar.jobs.archive_writer import ArchiveWriter
from busbar.jobs.manifest import BatchMark
from tests.unit.jobs.archives import mark, rows, staged


def opened(path: Path) -> ArchiveWriter:
    return ArchiveWriter.open(path, MESSAGES, table_format="delta")


def test_other_programs_read_the_table(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.publish(staged(writer, rows(0, 5), entity="sales/orders"), mark(0, "sales/orders"))
    writer.close()
    table = DeltaTable(str(tmp_path))
    assert table.metadata().partition_columns == ["entity", "date", "hour"]
    found = table.to_pyarrow_table().to_pylist()
    assert [row["body"] for row in found] == [f"body {number}".encode() for number in range(5)]
    assert {row["entity"] for row in found} == {"sales/orders"}
    assert polars.read_delta(str(tmp_path)).height == 5
    dataset = table.to_pyarrow_dataset()  # duckdb finds it by its name
    assert duckdb.execute("SELECT count(*), min(hour) FROM dataset").fetchall() == [(5, 12)]
    assert dataset.schema.names == archive.dataset(tmp_path).schema.names


def test_a_capture_that_another_one_overtook_ends(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    assert first.progress("orders", "1", 1) is second.progress("orders", "1", 1) is None
    first.publish(staged(first, rows(0, 5)), mark(0))
    with pytest.raises(ArchiveError, match="Another process has written 'orders'"):
        second.publish(staged(second, rows(0, 7)), BatchMark("f" * 32, 0, "orders", "1", {0: 7}))
    # A commit for another entity moves the snapshot, but not what the writer expects.
    second.publish(staged(second, rows(5, 2), entity="bills"), mark(0, "bills"))
    with pytest.raises(ArchiveError, match="Another process has written 'orders'"):
        second.publish(staged(second, rows(0, 7)), BatchMark("f" * 32, 0, "orders", "1", {0: 7}))
    first.publish(staged(first, rows(7, 5)), mark(1))
    assert sorted(archive.dataset(tmp_path).to_table().column("sequence_number").to_pylist()) == list(
        range(12)
    )
    first.close()
    second.close()


def test_a_table_of_others_is_left_alone(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), rows(0, 1).select(["body"]))
    with pytest.raises(ArchiveError, match="is a Delta table that no capture has created"):
        opened(tmp_path)


def test_a_missing_library_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".")[0] == "deltalake":
            raise ImportError(name)
        return original(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ArchiveError, match=r"pip install 'busbar-mq\[delta\]'"):
        opened(tmp_path)
