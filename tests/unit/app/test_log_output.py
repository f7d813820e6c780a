"""The lines of the log."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator

import pytest

from busbar.app.config import ConfigError
from busbar.app.log_output import JsonLines, TextLines, change_log_level, start_logging
from busbar.model.errors import ArgumentError


def record(message: str, *arguments: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("busbar.part", logging.WARNING, "", 1, message, arguments, None)
    made.__dict__.update(fields)
    return made


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leaves the log of the test run as it was."""
    monkeypatch.setenv("BUSBAR_LOG", "WARNING")
    monkeypatch.setenv("BUSBAR_LOG_FORMAT", "text")
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def test_a_line_of_text_has_its_time_and_fields() -> None:
    line = TextLines("broker-1").format(record("%d links", 3, address="127.0.0.1", entity="orders"))
    time, _, rest = line.partition(" ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert rest == "WARNING busbar.part (broker-1): 3 links [address=127.0.0.1 entity=orders]"
    assert TextLines().format(record("plain")).endswith(" WARNING busbar.part: plain")


def test_nothing_that_a_client_names_begins_a_line() -> None:
    hostile = "a\nWARNING b\u2028c\x1b[31m"
    text = TextLines().format(record("refused %s", hostile, entity=hostile))
    assert text.isprintable() and "\\n" in text and "\\u2028" in text
    shown = JsonLines().format(record("refused %s", hostile, entity=hostile))
    assert shown.isprintable() and json.loads(shown)["entity"] == hostile


def test_a_line_of_json_is_one_object() -> None:
    try:
        raise ValueError("no\nsuch thing")
    except ValueError:
        failed = record("it failed", tracking_id="abc", address="")
        failed.exc_info = sys.exc_info()
    line = json.loads(JsonLines("broker-0").format(failed))
    assert line.pop("time").endswith("Z")
    assert "ValueError: no\nsuch thing" in line.pop("exception")
    assert line == {
        "level": "warning",
        "logger": "busbar.part",
        "message": "it failed",
        "process": "broker-0",
        "tracking_id": "abc",
    }


def test_level_and_format_are_inherited_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUSBAR_LOG", "loud")
    with pytest.raises(ConfigError, match=r"BUSBAR_LOG is 'loud'.*DEBUG, INFO"):
        start_logging()
    monkeypatch.setenv("BUSBAR_LOG", "error")
    with pytest.raises(ConfigError, match=r"'xml'.*text, json"):
        start_logging(chosen_format="xml")
    start_logging(chosen_format="json")
    assert change_log_level("") == "error"
    told: list[str] = []
    assert change_log_level("Debug", told.append) == "debug" and told == ["Debug"]
    with pytest.raises(ArgumentError, match=r"'verbose' is not a level.*debug, info"):
        change_log_level("verbose", told.append)
    assert told == ["Debug"]
    assert (os.environ["BUSBAR_LOG"], os.environ["BUSBAR_LOG_FORMAT"]) == ("DEBUG", "json")
