"""A report that is there is not overwritten without a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.jobs.failure_text import JobFailureKind
from busbar.jobs.report_files import ReportFileError, report_path, write_report


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_name_the_next_free_one_is_chosen() -> None:
    for expected in ("insight.html", "insight-2.html", "insight-3.html"):
        path = report_path(None, "insight", overwrite=False)
        assert path == Path(expected)
        write_report(path, expected, overwrite=False)
    assert [Path(name).read_text() for name in ("insight.html", "insight-2.html")] == [
        "insight.html",
        "insight-2.html",
    ]
    assert report_path(None, "insight", overwrite=True) == Path("insight.html")


def test_a_named_file_that_exists_is_refused_before_anything_is_done() -> None:
    week = Path("week.html")
    assert report_path(week, "insight", overwrite=False) == week
    week.write_text("last week")
    with pytest.raises(
        ReportFileError, match=r"week\.html exists\. Name another file, or .* --overwrite"
    ) as refused:
        report_path(week, "insight", overwrite=False)
    assert refused.value.kind is JobFailureKind.USAGE
    assert report_path(week, "insight", overwrite=True) == week
    write_report(week, "this week", overwrite=True)
    assert week.read_text() == "this week"


def test_a_file_that_another_process_created_meanwhile_stays() -> None:
    path = report_path(Path("week.html"), "insight", overwrite=False)
    path.write_text("another")
    with pytest.raises(ReportFileError, match="created meanwhile"):
        write_report(path, "mine", overwrite=False)
    assert path.read_text() == "another"


def test_a_place_where_no_file_can_be_is_refused_first(directory: Path) -> None:
    for given, words in ((directory, "is a directory"), (Path("no/where.html"), "no does not exist")):
        with pytest.raises(ReportFileError, match=words):
            report_path(given, "insight", overwrite=True)
