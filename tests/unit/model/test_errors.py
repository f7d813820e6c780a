"""Errors that crossed a process as condition and text are what they were."""

from __future__ import annotations

import pytest

from busbar.model.errors import (
    BatchOver,
    BusbarError,
    EntityNotFound,
    InternalError,
    ServerBusy,
    TapNotFound,
    TapOwned,
    TapPassed,
    TapTruncated,
    error_of,
)


@pytest.mark.parametrize("kind", [ServerBusy, TapTruncated, TapPassed, TapOwned, BatchOver])
def test_an_error_is_of_its_kind_again(kind: type[BusbarError]) -> None:
    error = error_of(kind.condition, "why", certain=False)
    assert type(error) is kind and error.text == "why" and not error.certain


@pytest.mark.parametrize("missing", [EntityNotFound("q"), TapNotFound("q", "t")])
def test_what_is_missing_keeps_its_wording(missing: BusbarError) -> None:
    error = error_of(missing.condition, missing.text)
    assert isinstance(error, EntityNotFound) and error.text == missing.text and not error.retryable


def test_an_unknown_condition_is_our_own_fault() -> None:
    assert type(error_of("somebody:elses", "?")) is InternalError
