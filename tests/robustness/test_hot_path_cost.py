"""A message does not get dearer unnoticed: its cost on the hot path, against the figure that is kept for this environment.

`python -m bench.hot_path --renew` renews the figures. A new figure is a change that is reviewed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import hot_path_cost
from harness.hot_path_cost import (
    CannotCount,
    all_figures,
    counts_in,
    environment,
    keep,
    kept_figures,
    make_loads,
    measure,
    too_dear,
)

RENEW = "`python -m bench.hot_path --renew`"


def test_a_message_costs_what_it_did() -> None:
    figures = kept_figures(environment())
    if figures is None:
        pytest.skip(f"no figure is kept for {environment()}: {RENEW} measures one")
    try:
        found = measure()
    except CannotCount as reason:
        pytest.skip(str(reason))
    assert found.keys() == figures.keys()
    assert too_dear(found, figures) == [], f"if there is a reason for it, {RENEW} keeps the new figures"


def test_a_tenth_more_is_too_dear() -> None:
    figures = {"one": 0.5, "two": 2.0, "three": 1.0}
    assert too_dear({"one": 0.56, "two": 2.05, "three": 0.5}, figures) == ["one: 0.560, +12.0% of 0.500"]
    assert len(too_dear({name: 1.1 * ratio for name, ratio in figures.items()}, figures)) == 3


class Turns:
    """Counts the turns of the server."""

    def __init__(self) -> None:
        self.total = 0
        self._runs = False

    def start(self) -> None:
        assert not self._runs
        self._runs = True

    def stop(self) -> None:
        assert self._runs
        self._runs = False
        self.total += 1


LOADS = ("one by one", "batches of 100", "partitioned", "partitioned, with keys")


@pytest.mark.parametrize("load", LOADS)
def test_every_load_goes_through_the_server(load: str) -> None:
    """All messages are acknowledged and settled. Those with keys go to all fragments."""
    turns = Turns()
    path = make_loads(turns)[load]
    before = turns.total
    path.cycle(1_000)
    assert path.settled == 1_000
    assert turns.total > before
    assert len(path.fragments) == {"partitioned, with keys": 16}.get(load, len(path.fragments))
    assert (len(path.fragments) > 1) == load.startswith("partitioned")


def test_counts_are_read_from_dumps() -> None:
    dump = "version: 1\ndesc: Trigger: Client Request: {}\nevents: Ir\n1 2\ntotals: {}\n"
    end = "desc: Trigger: Program termination\ntotals: 7\n"
    assert counts_in([dump.format("one by one", 5), end, dump.format("two", 6)]) == {
        "one by one": 5,
        "two": 6,
    }


def test_figures_are_kept_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_path_cost, "FIGURES", tmp_path / "figures.toml")
    keep("a machine", {"one": 0.12345})
    keep("another", {"one": 1.0})
    keep("another", {"one": 2.0})
    assert kept_figures("a machine") == {"one": 0.123}
    assert kept_figures("another") == {"one": 2.0}
    assert kept_figures("none") is None


def test_every_kept_figure_is_of_a_load() -> None:
    assert all_figures()
    for figures in all_figures().values():
        assert sorted(figures) == sorted(LOADS)


def test_a_machine_without_a_tool_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotCount, match="no valgrind, which counts instructions"):
        measure()
