"""`make test` runs every suite once, some of them beside others."""

from __future__ import annotations

from tools.run_suites import SUITES, Suite, in_groups


def names(*suites: Suite) -> list[list[str]]:
    return [[suite.name for suite in group] for group in in_groups(suites)]


def test_a_suite_runs_beside_its_companion() -> None:
    first, second, third = Suite("a", ()), Suite("b", ()), Suite("c", (), beside="a")
    assert names(first, second, third) == [["a", "c"], ["b"]]


def test_a_suite_whose_companion_is_not_asked_for_runs_all_the_same() -> None:
    assert names(Suite("b", ()), Suite("c", (), beside="a")) == [["b"], ["c"]]


def test_every_suite_runs_once_and_some_run_alone() -> None:
    groups = names(*SUITES)
    assert sorted(name for group in groups for name in group) == sorted(suite.name for suite in SUITES)
    assert ["alone"] in groups, "what measures has the machine to itself"
    known = {group[0] for group in groups}
    assert {suite.beside for suite in SUITES} - {""} <= known, "a companion comes first in its group"
