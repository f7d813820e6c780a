"""Which scenario, how much to prefetch, and what is worth a word."""

from __future__ import annotations

import pytest

from busbar.client.advice import LATENCY, THROUGHPUT, Scenario
from busbar.jobs.insight_advice import Clients, EntitySettings, advise, advise_all
from busbar.jobs.insight_figures import (
    Coverage,
    EntityFigures,
    Flow,
    FragmentCoverage,
    FragmentFigures,
    Ranking,
    Share,
)
from busbar.jobs.insight_findings import findings_of


def figures(
    entity: str = "orders",
    *,
    sent: int = 1000,
    done: int = 1000,
    rate: float | None = 50.0,
    done_rate: float | None = 30.0,
    by_fragment: tuple[int, ...] = (1000,),
    keys: Ranking | None = None,
    sessions: Ranking | None = None,
    dead: Ranking | None = None,
    duplicates: Ranking | None = None,
    outcomes: dict[str, int] | None = None,
    redelivered: int | None = 0,
    coverage: Coverage | None = None,
) -> EntityFigures:
    total = max(1, sum(by_fragment))
    return EntityFigures(
        entity=entity,
        coverage=coverage or Coverage("tap 'insight'", 0, sent, 1000),
        sent=Flow(sent, 0, 1000, rate, rate, rate),
        done=Flow(done, 0, 1000, done_rate, done_rate, done_rate),
        latency=None,
        slot_seconds=1,
        slots=(),
        fragments=tuple(
            FragmentFigures(index, count, count / total, 0, None) for index, count in enumerate(by_fragment)
        ),
        keys=keys or Ranking(),
        sessions=sessions or Ranking(),
        dead_letters=dead or Ranking(),
        duplicates=duplicates or Ranking(),
        outcomes=outcomes or {},
        redelivered=redelivered,
    )


@pytest.mark.parametrize(
    ("rate", "clients", "others", "scenario"),
    [
        (500, Clients(), (), Scenario.HIGH_THROUGHPUT),
        (500, Clients(), (0.5,), Scenario.HIGH_THROUGHPUT),
        (500, Clients(), (5,), Scenario.SEVERAL_HIGH),
        (5, Clients(), (5,), Scenario.LOW_LATENCY),
        (5, Clients(goal=THROUGHPUT), (5,), Scenario.SEVERAL_HIGH),
        (5, Clients(goal=THROUGHPUT), (), Scenario.HIGH_THROUGHPUT),
        (500, Clients(goal=LATENCY), (), Scenario.LOW_LATENCY),
        (500, Clients(senders=21), (), Scenario.MANY_SENDERS),
        (0.1, Clients(receivers=21), (), Scenario.MANY_RECEIVERS),
        (500, Clients(senders=20, receivers=20), (), Scenario.HIGH_THROUGHPUT),
    ],
)
def test_scenarios(rate: float, clients: Clients, others: tuple[float, ...], scenario: str) -> None:
    company = [figures(f"other{number}", rate=other) for number, other in enumerate(others)]
    assert advise(figures(rate=rate), clients, EntitySettings(), company).scenario == scenario


@pytest.mark.parametrize(
    ("subscriptions", "scenario"),
    [(None, Scenario.FEW_SUBSCRIPTIONS), (5, Scenario.FEW_SUBSCRIPTIONS), (200, Scenario.MANY_SUBSCRIPTIONS)],
)
def test_scenarios_of_topics(subscriptions: int | None, scenario: str) -> None:
    subject = figures("news/Subscriptions/all")
    assert advise(subject, Clients(subscriptions=subscriptions), EntitySettings()).scenario == scenario


def test_settings_of_a_high_throughput_queue() -> None:
    advice = advise(
        figures(rate=500, done_rate=200.0),
        Clients(senders=3, receivers=2),
        EntitySettings(lock_seconds=30),
    )
    settings = {each.name: (each.value, each.now) for each in advice.settings}
    assert settings == {
        "EnablePartitioning": ("true", "false"),
        "EnableBatchedOperations": ("true", None),
        "factories": ("several", None),
        "operations": ("asynchronous", None),
        "client batching": ("100 ms", None),
        "prefetch": ("2000", None),
    }
    assert advice.prefetch == 2000
    assert "3 senders (small) and 2 receivers (small)" in advice.because


def test_settings_where_latency_counts() -> None:
    advice = advise(figures(by_fragment=(1,) * 16), Clients(receivers=4), EntitySettings())
    settings = {each.name: (each.value, each.now) for each in advice.settings}
    assert settings == {
        "EnablePartitioning": ("true", "true"),
        "EnableBatchedOperations": ("false", None),
        "client batching": ("off", None),
        "prefetch": ("0", None),
    }
    assert "assumed" in advice.because


@pytest.mark.parametrize("goal", ["", "latency", "throughput"])
def test_nothing_is_advised_but_the_documented_settings(goal: str) -> None:
    advice = advise(figures(rate=500), Clients(senders=30, receivers=2, goal=goal), EntitySettings())
    assert {each.name for each in advice.settings} <= {
        "EnablePartitioning", "EnableBatchedOperations", "factories", "operations", "client batching", "prefetch"
    }  # fmt: skip


def test_each_entity_has_the_others_for_company() -> None:
    reports = advise_all([figures("one", rate=200), figures("two", rate=300)], Clients(), {})
    assert [each.advice.scenario for each in reports] == [Scenario.SEVERAL_HIGH, Scenario.SEVERAL_HIGH]


def said(subject: EntityFigures) -> str:
    return "\n".join(each.text for each in findings_of(subject))


def test_nothing_stands_out() -> None:
    assert findings_of(figures(by_fragment=(60, 70, 65, 62))) == []


def test_a_fragment_that_is_too_full_and_the_key_that_fills_it() -> None:
    keys = Ranking(1000, 2, (Share("eu", 700, 0.7), Share("us", 300, 0.3)))
    found = findings_of(figures(by_fragment=(20, 900, *[5] * 14), keys=keys))
    assert len(found) == 1 and found[0].grave
    assert "Fragment 1 has 91%" in found[0].text and "'eu' alone has 70%" in found[0].text


def test_a_session_that_has_most_of_it() -> None:
    sessions = Ranking(1000, 3, (Share("one", 800, 0.8),))
    assert "The session 'one' has 80%" in said(figures(sessions=sessions))


def test_locks_that_end_too_early() -> None:
    assert "50 locks ended" in said(figures(outcomes={"lock-expired": 50}))
    assert "locks ended" not in said(figures(outcomes={"lock-expired": 5}))


def test_dead_letters_with_the_meaning_of_their_reason() -> None:
    dead = Ranking(40, 2, (Share("MaxDeliveryCountExceeded", 30, 0.75), Share("odd", 10, 0.25)))
    assert (
        "40 messages were dead-lettered, 75% of them as 'MaxDeliveryCountExceeded': receivers failed"
        in said(figures(dead=dead))
    )


def test_duplicates_and_failed_deliveries() -> None:
    text = said(figures(duplicates=Ranking(7, 7, (Share("a", 1, 1 / 7),)), redelivered=100))
    assert "7 sends were dropped as duplicates" in text
    assert "10% of the completed messages had failed deliveries" in text


def test_receivers_that_do_not_keep_up() -> None:
    assert "About 600 of the 1000" in said(figures(done=300, outcomes={"expired": 100}))
    assert "keep up" not in said(figures(done=300, outcomes={"expired": 650}))


def test_coverage_is_part_of_it() -> None:
    lost = Coverage("tap 'insight'", 0, 50, 10, (FragmentCoverage(0, 90, 140, lost=90),))
    found = findings_of(figures(sent=50, done=50, coverage=lost))
    assert found[0].grave and "truncated" in found[0].text
    assert "50 messages are few" in found[1].text
    blind = Coverage("archive x", None, 1000, None)
    assert "not recorded" in said(figures(coverage=blind, done=0))
