"""What `busbar bench` concludes from figures, and how it shows them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from busbar.client.advice import Load, Scenario
from busbar.client.presets import NAIVE, preset
from busbar.jobs.bench import Overrides, ScenarioResult, workload_named
from busbar.jobs.bench_advice import advise_run
from busbar.jobs.bench_figures import Recorder, RunFigures, latency_of
from busbar.jobs.bench_html import render_bench
from busbar.jobs.bench_run import BenchTarget, _factory
from busbar.jobs.bench_workloads import WORKLOADS, changed, shown


def figures(scenario: Scenario, settings: dict[str, str], name: str = "naive", **numbers: Any) -> RunFigures:
    recorder = Recorder(10, 20)
    for number in range(numbers.pop("sent", 2000)):
        recorder.sent(number % 10)
    for number in range(numbers.pop("received", 2000)):
        recorder.received(number % 10, 5 + number % 7)
    for reason in numbers.pop("failures", ()):
        recorder.failed(reason)
    return recorder.figures(scenario.value, settings, name)


def test_percentiles() -> None:
    found = latency_of([float(number) for number in range(1, 1001)])
    assert found == {
        "p50": 500, "p90": 900, "p95": 950, "p99": 990, "p99.9": 999, "mean": 500.5, "most": 1000
    }  # fmt: skip
    assert latency_of([]) == {}
    assert latency_of([3.0])["p99.9"] == 3.0


def test_what_is_outside_of_the_measured_time_is_not_counted() -> None:
    recorder = Recorder(2.0, 4)
    for at in (-0.1, 0.0, 0.49, 0.5, 1.99, 2.0, 5.0):
        recorder.sent(at)
        recorder.received(at, at)
    found = recorder.figures("s", {}, "n")
    assert (found.sent, found.received, found.send_rate) == (4, 4, 2.0)
    assert [slot.sent for slot in found.slots] == [4, 2, 0, 2], "messages per second of half a second"
    assert [slot.p99 for slot in found.slots] == [0.49, 0.5, None, 1.99]
    assert [slot.second for slot in found.slots] == [0.5, 1.0, 1.5, 2.0]


def test_each_scenario_has_a_workload_that_is_classified_as_it() -> None:
    assert list(WORKLOADS) == list(Scenario)
    for scenario, workload in WORKLOADS.items():
        rate = workload.rate or 1_000 * workload.queues
        load = workload.load(rate, rate * max(1, workload.subscriptions))
        settings = shown(preset(scenario, load))
        run = figures(scenario, settings, sent=int(rate * 10), received=int(load.receive_rate or 0) * 10)
        assert advise_run(run, workload).scenario == scenario.value
        assert workload_named(scenario.key) is workload
    with pytest.raises(ValueError, match="many-subscriptions"):
        workload_named("other")


@pytest.mark.parametrize("scenario", list(Scenario))
def test_nothing_is_to_be_changed_in_a_preset_and_something_in_naive_settings(scenario: Scenario) -> None:
    workload = WORKLOADS[scenario]
    rate = workload.rate or 200.0
    copies = max(1, workload.subscriptions)
    load = workload.load(rate, rate * copies)
    run = figures(
        scenario,
        shown(preset(scenario, load)),
        "preset",
        sent=int(rate * 10),
        received=int(rate * 10) * copies,
    )
    assert advise_run(run, workload).changes == ()
    naive = replace(run, settings=shown(NAIVE), name="naive")
    changes = {each.name: (each.now, each.value) for each in advise_run(naive, workload).changes}
    assert changes["EnablePartitioning"] == ("false", "true")
    assert "prefetch" in changes


def test_advice_follows_from_what_was_measured() -> None:
    workload = WORKLOADS[Scenario.HIGH_THROUGHPUT]
    run = figures(Scenario.HIGH_THROUGHPUT, shown(NAIVE), sent=5000, received=300)
    advice = advise_run(run, workload)
    changes = {each.name: each.value for each in advice.changes}
    assert changes == {
        "EnablePartitioning": "true",
        "factories": "several",
        "operations": "asynchronous",
        "client batching": "100 ms",
        "prefetch": "600",
    }
    (prefetch,) = [each for each in advice.changes if each.name == "prefetch"]
    assert "20 × 30/s, the receivers' rate in this run, at locks of 60 s" in prefetch.why
    assert "Receivers got 30 of 500 messages/s" in advice.findings[0]


def test_a_prefetch_count_that_is_nearly_right_stays() -> None:
    workload = WORKLOADS[Scenario.HIGH_THROUGHPUT]
    settings = shown(preset(Scenario.HIGH_THROUGHPUT, workload.load(30, 30)))
    for now, is_right in (
        ("600", True),
        ("350", True),
        ("1100", True),
        ("250", False),
        ("1300", False),
        ("0", False),
    ):
        run = figures(Scenario.HIGH_THROUGHPUT, settings | {"prefetch": now}, sent=300, received=300)
        assert (advise_run(run, workload).changes == ()) is is_right, now


def test_senders_that_do_not_reach_their_rate_and_calls_that_failed() -> None:
    workload = WORKLOADS[Scenario.MANY_SENDERS]
    run = figures(Scenario.MANY_SENDERS, {}, sent=3000, received=3000, failures=["busy", "busy", "gone"])
    found = advise_run(run, workload).findings
    assert "Senders reached 300 of 1,000 messages/s" in found[0]
    assert found[1:] == ("2 calls failed: busy.", "1 calls failed: gone.")


def test_settings_can_be_changed_one_by_one() -> None:
    chosen = preset(Scenario.LOW_LATENCY, Load(receive_rate=5))
    assert Overrides().are_empty and Overrides().applied_to(chosen) == chosen
    other = Overrides(0, 0.1, False).applied_to(chosen)
    assert shown(other) == shown(chosen) | {
        "prefetch": "0",
        "client batching": "100 ms",
        "EnablePartitioning": "false",
    }


def test_numbers_of_a_workload_can_be_changed() -> None:
    base = WORKLOADS[Scenario.MANY_SUBSCRIPTIONS]
    assert changed(base, None, None, None, None) == base
    other = changed(base, 7, 1, 5, 100)
    assert (other.senders, other.receivers, other.rate, other.body_bytes) == (7, base.subscriptions, 5, 100)


def test_clients_take_turns_at_factories() -> None:
    assert [_factory(number, 1, 2, 1) for number in range(4)] == [0, 1, 0, 1]
    # Three queues with two factories each: no factory serves two queues.
    assert [_factory(number, 3, 2, 3) for number in range(6)] == [0, 2, 4, 1, 3, 5]


@pytest.fixture
def compared() -> list[ScenarioResult]:
    results = []
    for scenario, workload in WORKLOADS.items():
        naive = figures(scenario, shown(NAIVE), "naive", sent=500, received=500)
        tuned = figures(scenario, shown(preset(scenario)), "preset", sent=1500, received=1500)
        results.append(ScenarioResult(workload, (naive, tuned), advise_run(tuned, workload)))
    return results


def test_ratios(compared: list[ScenarioResult]) -> None:
    for result in compared:
        expected = 1.0 if result.workload.scenario is Scenario.LOW_LATENCY else 3.0
        assert result.ratio == pytest.approx(expected, rel=0.2)
    assert replace(compared[0], runs=compared[0].runs[1:]).ratio is None


def test_the_page_needs_no_other_file_and_has_all_plots(compared: list[ScenarioResult]) -> None:
    html = render_bench(compared, "2026-01-01 00:00 UTC")
    assert not re.search(r"(src|href)=|<script|@import|url\(", html)
    assert html.count("<svg") == 2 * len(compared), "rate and latency of each"
    assert html.count('class="bar"') == len(compared) and "3.00 ×" in html
    assert html.count("99th percentile over time") == 2 * len(compared)
    for scenario in Scenario:
        assert f"<h2>{scenario.value}</h2>" in html
    one = render_bench([replace(compared[0], runs=compared[0].runs[1:])], "now")
    assert one.count("<svg") == 2 and "From send to receive, over time" in one


def test_json_has_everything(compared: list[ScenarioResult]) -> None:
    document = json.loads(json.dumps([result.to_json() for result in compared]))
    first = document[0]
    assert first["scenario"] == "high-throughput" and first["ratio"] == 3.0
    assert [run["name"] for run in first["runs"]] == ["naive", "preset"]
    assert set(first["runs"][0]["latencyMs"]) == {"p50", "p90", "p95", "p99", "p99.9", "mean", "most"}
    assert first["runs"][0]["receivedPerSecond"] == 50.0
    assert {"scenario", "because", "changes", "findings"} == set(first["advice"])


def test_a_run_that_received_nothing_is_shown_too(compared: list[ScenarioResult]) -> None:
    workload = WORKLOADS[Scenario.HIGH_THROUGHPUT]
    run = figures(Scenario.HIGH_THROUGHPUT, shown(NAIVE), sent=0, received=0)
    result = ScenarioResult(workload, (run, run), advise_run(run, workload))
    assert result.ratio is None
    assert "–" in render_bench([result], "now") and result.to_json()["runs"][0]["latencyMs"] == {}


def test_no_key_is_shown() -> None:
    assert "secret" not in repr(BenchTarget("Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=secret"))
