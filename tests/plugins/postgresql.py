"""Ends the PostgreSQL server that the tests of a process share (harness/postgresql.py)."""

from __future__ import annotations

from harness.postgresql import remove_shared


def pytest_sessionfinish() -> None:
    remove_shared()
