"""What tests of the catalogue share."""

from __future__ import annotations

import pytest

from tests.unit.broker.namespaces import quick_pauses


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_pauses(monkeypatch)
