from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.serving import BROKERS, Busbar, serving
from tests.robustness.bystander import Bystander

QUEUES = {
    "q": {"LockDuration": "PT1S"},
    "other": {},
    "bystander": {},
}
LIMITS = {"min_lock_duration": 1_000, "token_timeout": 1_000}


@pytest.fixture(scope="session", params=[int(BROKERS)] if BROKERS else [1, 3], ids="brokers-{}".format)
def attacked(request: pytest.FixtureRequest) -> Iterator[Busbar]:
    """For attacks that every suite tries on one process and on several: a server of each kind, shared by their modules."""
    queues: dict[str, dict[str, object]] = {name: dict(properties) for name, properties in QUEUES.items()}
    queues["held"] = {"LockDuration": "PT1S", "MaxDeliveryCount": 2_000}
    for road in ("disposition", "management"):
        for outcome in ("abandon", "defer", "dead-letter"):
            queues[f"{road}-{outcome}"] = {"MaxSizeInMegabytes": 1}
            queues[f"roomy-{road}-{outcome}"] = {"MaxSizeInMegabytes": 64}
    # Strangers have time: what they do in it is bounded by other limits, also on a machine that is busy.
    limits = {**LIMITS, "token_timeout": 20_000, "min_size_in_megabytes": 1, "size_increment": 1}
    with serving(queues, limits, arguments=("--brokers", str(request.param))) as running:
        yield running


@pytest.fixture(scope="session")
def server_mark() -> pytest.Mark:
    return pytest.mark.server(QUEUES, LIMITS).mark


@pytest.fixture
def bystander(server: Busbar) -> Iterator[Bystander]:
    """Another client, whose work must go on whatever the test does."""
    with Bystander(server.port) as other:
        yield other
        other.works()
