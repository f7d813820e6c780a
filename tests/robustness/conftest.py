from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.robustness.bystander import Bystander
from tests.serving import BROKERS, Busbar, serving

QUEUES = {
    "q": {"LockDuration": "PT1S"},
    "other": {},
    "bystander": {},
}
LIMITS = {"min_lock_duration": 1_000, "token_wait": 1_000}


@pytest.fixture(scope="module", params=[int(BROKERS)] if BROKERS else [1, 3], ids="brokers-{}".format)
def brokers(request: pytest.FixtureRequest) -> int:
    """How many broker processes: for attacks that every suite tries on one process and on several."""
    return int(request.param)


@pytest.fixture(scope="module")
def server() -> Iterator[Busbar]:
    """One server for a module: that it still serves after every test of it is part of what is shown."""
    with serving(QUEUES, LIMITS) as running:
        yield running


@pytest.fixture
def bystander(server: Busbar) -> Iterator[Bystander]:
    """Another client, whose work must go on whatever the test does."""
    with Bystander(server.port) as other:
        yield other
        other.works()
