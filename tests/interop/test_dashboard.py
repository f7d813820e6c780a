"""The dashboard and the alerts of deploy/ against a running Busbar: every metric, label and value is there."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from proton import Message

from busbar.gateway.http.metrics_text import FAMILIES
from harness.serving import PATIENCE, Busbar
from harness.waiting import eventually
from tests.interop.metrics import LINE, RULES, basic, get
from tests.interop.plain_amqp import PlainAmqp
from tests.interop.promql import FIELD, MATCHER, names_in
from tests.interop.taps import Taps

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "busbar.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "busbar.rules.yml").read_text())["groups"][0]["rules"]
LIMITS = {
    **PATIENCE,
    "transfer_patience": 600_000,
    "min_size_in_megabytes": 1,
    "size_increment": 1,
}
QUEUES: dict[str, dict[str, object]] = {
    "work": {},
    "full": {"MaxSizeInMegabytes": 1},
    "source": {"ForwardTo": "full"},
}
pytestmark = [pytest.mark.timeout(60), pytest.mark.server(QUEUES, LIMITS, rules=RULES)]

Found = dict[str, dict[str, set[str]]]
"""By metric: its labels and their values."""


def found_in(text: str) -> Found:
    found: Found = defaultdict(lambda: defaultdict(set))
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        if match is not None:
            labels = found[match[1]]
            for label, _, value in MATCHER.findall(match[2] or ""):
                labels[label].add(value)
    return found


@pytest.fixture
def metrics(server: Busbar) -> Found:
    """Those of a server on which everything has happened that a panel or an alert is about."""
    client = PlainAmqp(server.port, server.key)
    try:
        Taps(client, "work")("create-tap", name="tap")
        client.send("work", Message(id="1", body=b"x", inferred=True))
        for n in range(7):
            client.send("source", Message(id=str(n), body=b"x" * 200_000, inferred=True))
        text = ""

        def has_held() -> bool:
            nonlocal text
            _, _, text = get(server, "metrics", basic("Listen", "to Listen"))
            return "busbar_transfer_oldest_seconds{" in text

        eventually(has_held)
        return found_in(text)
    finally:
        client.close()


def problems(expression: str, texts: str, metrics: Found) -> list[str]:
    """What an expression, and the texts beside it, name that the metrics do not have."""
    named = names_in(expression)
    found = [f"no metric {name}" for name in named.metrics if name not in metrics]
    if found:
        return found
    for metric, label, how, value in named.matchers:
        values = metrics[metric].get(label)
        if values is None:
            found.append(f"{metric} has no label {label}")
        elif value.startswith("$"):
            continue  # a variable of the dashboard
        elif how == "=" and value not in values:
            found.append(f"{metric} has no {label} {value!r}")
        elif how == "=~" and not all(any(re.fullmatch(one, v) for v in values) for one in value.split("|")):
            found.append(f"{metric} has not every {label} of {value!r}")
    labels = {label for metric in named.metrics for label in metrics[metric]}
    missing = (named.labels | {*FIELD.findall(texts)} - {"value"}) - labels - {"broker"}
    return found + [f"no label {label} in {expression}" for label in sorted(missing)]


@pytest.mark.req("U28")
def test_the_dashboard_and_the_alerts_name_what_is_there(metrics: Found) -> None:
    targets = [target for panel in BOARD["panels"] for target in panel.get("targets", ())]
    asked = [(target["expr"], target["legendFormat"]) for target in targets]
    asked += [(variable["definition"], "") for variable in BOARD["templating"]["list"][1:]]
    asked += [(alert["expr"], alert["annotations"]["summary"]) for alert in ALERTS]
    assert len(asked) >= 50
    wrong = {expression: problems(expression, texts, metrics) for expression, texts in asked}
    assert {expression: found for expression, found in wrong.items() if found} == {}

    # What is not there is noticed.
    assert problems("rate(busbar_messages_lost_total[5m])", "", metrics) == [
        "no metric busbar_messages_lost_total"
    ]
    assert problems('busbar_messages{queue="work"}', "", metrics) == ["busbar_messages has no label queue"]
    assert problems('busbar_messages{state="activ"}', "", metrics) == ["busbar_messages has no state 'activ'"]
    assert problems("sum by (store) (busbar_links)", "", metrics) != []
    assert problems("busbar_store_up", "{{entity}}", metrics) != []


def test_every_family_is_watched_or_left_out_on_purpose() -> None:
    """A new metric belongs on the dashboard or in an alert, unless it is in this list."""
    texts = json.dumps(BOARD) + json.dumps(ALERTS)
    unused = {name for name in FAMILIES if name not in texts}
    assert unused == {
        "busbar_entities",
        "busbar_entities_omitted",
        "busbar_fenced_total",
        "busbar_reclaims_total",
        "busbar_takeovers_total",
        "busbar_tap_kept_messages",
        "busbar_tap_truncations_total",
        "busbar_transactions_open",
        "busbar_transfer_held",
        "busbar_transfers_total",
    }


def test_panels_have_their_own_places() -> None:
    places = {
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    }
    area = sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in BOARD["panels"])
    assert len(places) == area and max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
