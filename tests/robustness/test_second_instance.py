"""One data directory has one server: a second is refused, says why, and leaves the first alone."""

from __future__ import annotations

import pytest

from harness.serving import Busbar, ServerDied
from tests.robustness.bystander import Bystander


@pytest.mark.req("U9")
def test_a_second_server_on_the_same_data_is_refused(server: Busbar, bystander: Bystander) -> None:
    bystander.works()
    second = Busbar(server.data)
    with pytest.raises(ServerDied) as refusal:
        second.start()
    text = str(refusal.value)
    assert f"process {server.pid}" in text, "it names who holds the data"
    assert str(server.data) in text
    assert "another directory with --data" in text, "and what to do"
    assert "Traceback" not in text
    assert second.process is not None and second.process.returncode not in (0, None)
    bystander.works()
