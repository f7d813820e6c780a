"""What tests of a running host share."""

from __future__ import annotations

import pytest

from busbar.broker import commit_loop, reopening, store_lifecycle


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a host try again soon after a store was full or gone."""
    monkeypatch.setattr(store_lifecycle, "FULL_PAUSE", 20)
    monkeypatch.setattr(commit_loop, "EXPRESS_PAUSE", 30)
    monkeypatch.setattr(reopening, "MIN_BACKOFF", 10)
    monkeypatch.setattr(reopening, "MAX_BACKOFF", 40)


@pytest.fixture
def full_for_a_while(short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a host refuse messages for so long after its store was full that a test can observe it."""
    monkeypatch.setattr(store_lifecycle, "FULL_PAUSE", 150)
