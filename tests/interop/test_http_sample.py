"""The sample with curl and openssl, as a user runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.serving import Busbar
from tests.interop.queue_pool import QueuePool

pytestmark = pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("openssl")),
    reason="the sample uses curl and openssl, which are not here",
)
SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "http" / "order.sh"


def run_sample(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
        check=False,
    )


@pytest.mark.req("B1")
def test_send_peek_lock_and_complete_with_curl(broker: Busbar, queues: QueuePool) -> None:
    done = run_sample(queues.take("plain"), broker.connection_string)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "send: 201"
    assert lines[1] == "peek-lock: 201"
    assert lines[2] == "  body:              two coffees, one croissant"
    assert lines[3] == '  Priority:          "High"'
    assert '"Label": "order"' in lines[4]
    assert lines[5] == "complete: 200"


def test_over_tls(broker: Busbar, queues: QueuePool) -> None:
    connection = broker.connection_string.replace("UseDevelopmentEmulator=true", "")
    trust = {"CURL_CA_BUNDLE": str(broker.data / "tls" / "ca.pem")}
    done = run_sample(queues.take("plain"), BUSBAR_CONNECTION_STRING=connection, **trust)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "complete: 200"


def test_it_says_what_went_wrong(broker: Busbar) -> None:
    done = run_sample("no-such-queue", broker.connection_string)
    assert done.returncode == 1
    assert "send: HTTP 404, not 201" in done.stderr
    assert "could not be found" in done.stderr
    wrong = broker.connection_string.replace(f"SharedAccessKey={broker.key}", "SharedAccessKey=a&b=c'\"==")
    refused = run_sample("plain-0", wrong)
    assert "send: HTTP 401" in refused.stderr
