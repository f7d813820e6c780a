"""The text that Prometheus reads."""

from __future__ import annotations

from busbar.gateway.http.metrics_text import FAMILIES, MetricsPage, Sample


def text_of(samples: list[Sample]) -> str:
    page = MetricsPage()
    for sample in samples:
        page.add(*sample)
    return page.text()


def test_samples_of_a_family_stand_together_behind_its_description() -> None:
    text = text_of(
        [
            ("busbar_entities", {}, 2),
            ("busbar_size_bytes", {"entity": "a"}, 10),
            ("busbar_store_up", {"store": "main"}, 1),
            ("busbar_size_bytes", {"entity": "b"}, 20),
        ]
    )
    assert text.splitlines()[:3] == [
        f"# HELP busbar_store_up {FAMILIES['busbar_store_up'][1]}",
        "# TYPE busbar_store_up gauge",
        'busbar_store_up{store="main"} 1',
    ]
    assert 'busbar_size_bytes{entity="a"} 10\nbusbar_size_bytes{entity="b"} 20\n' in text
    assert "\nbusbar_entities 2\n" in text and "busbar_tap" not in text


def test_labels_are_escaped() -> None:
    text = text_of([("busbar_messages", {"entity": 'a\\b"c\nd', "state": "active"}, 1)])
    assert text.endswith('busbar_messages{entity="a\\\\b\\"c\\nd",state="active"} 1\n')
    assert text_of([]) == ""


def test_descriptions_are_one_line() -> None:
    for name, (kind, text) in FAMILIES.items():
        assert "\n" not in text and "\\" not in text
        assert (kind == "counter") == name.endswith("_total")
