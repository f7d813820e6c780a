"""Simulated stores fail by the thousand: what the broker logs about that is no news."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    logger = logging.getLogger("busbar.broker")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
