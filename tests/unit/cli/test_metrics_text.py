"""Metrics as text: names of entities come back as they were."""

from __future__ import annotations

from busbar.cli.console_operation import counts_of
from busbar.cli.metrics_text import MetricSample, read_metrics
from busbar.console.namespace import HeldCounts


def test_samples_and_their_labels() -> None:
    text = (
        "# HELP busbar_messages Messages.\n# TYPE busbar_messages gauge\n"
        'busbar_messages{entity="a\\\\b\\"c\\nd,e=\\"f\\"} 1",state="active"} 12\n'
        "busbar_entities 3\nnot a sample at all\n"
    )
    assert read_metrics(text) == [
        MetricSample("busbar_messages", {"entity": 'a\\b"c\nd,e="f"} 1', "state": "active"}, 12.0),
        MetricSample("busbar_entities", {}, 3.0),
    ]


def test_what_entities_hold_and_taps_lag() -> None:
    held = {"active": 3, "deferred": 1, "scheduled": 2, "dead_letter": 5, "transfer": 9}
    samples = [
        MetricSample("busbar_messages", {"entity": "q", "state": state}, count)
        for state, count in held.items()
    ]
    samples += [
        MetricSample(
            "busbar_tap_lag_messages",
            {"entity": "q", "sub_queue": "dead_letter", "tap": "t", "fragment": str(index)},
            4,
        )
        for index in range(2)
    ]
    assert counts_of(samples) == {"q": HeldCounts(6, 5)}  # a broker without counters
    samples.append(MetricSample("busbar_messages_locked", {"entity": "q"}, 1))
    assert counts_of(samples) == {"q": HeldCounts(6, 5, 0, 0)}
    samples += [
        MetricSample("busbar_messages_in_total", {"entity": "q", "broker": broker}, 7)
        for broker in ("a", "b")
    ]
    assert counts_of(samples) == {"q": HeldCounts(6, 5, 14, 0)}
