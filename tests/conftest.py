"""What all tests share: requirement marks, Hypothesis profiles, the long campaigns, and no stale compiled rooms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
DEEP = os.environ.get("BUSBAR_DEEP") == "1"

pytest_plugins = [
    "tests.plugins.object_stores",
    "tests.plugins.postgresql",
    "tests.plugins.results",
    "tests.plugins.servers",
]

# No deadlines: two cores are shared with whatever else runs. A failure prints what reproduces it.
settings.register_profile(
    "test", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", settings.get_profile("test"), max_examples=20_000)
settings.load_profile("deep" if DEEP else "test")


def pytest_configure(config: pytest.Config) -> None:
    if DEEP:
        config.option.timeout = 4 * 3600
    if hasattr(config, "workerinput") or os.environ.get("BUSBAR_INTERPRETED") == "1":
        return
    if any((ROOT / "src" / "busbar").rglob("*.so")):
        from tools.build_rooms import stale

        if stale():
            raise pytest.UsageError("the compiled rooms are older than their source: run `make setup`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if DEEP:
        return
    for item in items:
        if item.get_closest_marker("deep"):
            item.add_marker(pytest.mark.skip(reason="a long campaign: `make deep` runs it"))
