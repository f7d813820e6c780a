"""An S3 server for each test process, with its credentials in the environment of the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.object_store import ObjectStore


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    from harness.object_store import ObjectStore

    store = ObjectStore().start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store
    store.stop()
