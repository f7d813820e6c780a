"""Which scenario, how much to prefetch, and what is worth a word."""

from __future__ import annotations

import pytest

from busbar.client.advice import LATENCY, THROUGHPUT, Scenario
from busbar.jobs.insight_advice import Clients, EntitySettings, advise, advise_all
from busbar.jobs.insight_figures import (
    Backlog,
    Coverage,
    EntityCounts,
    EntityFigures,
    Fates,
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
    fates: Fates | None = None,
    counts: EntityCounts | None = None,
    backlog: Backlog = Backlog.UNKNOWN,
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
        fates=fates or Fates(done, 0, 0),
        counts=counts,
        backlog=backlog,
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
    waiting = Fates(ended=400, waiting=600)
    assert "About 600 of the 1000" in said(figures(done=300, outcomes={"expired": 100}, fates=waiting))
    assert "keep up" not in said(figures(done=300, outcomes={"expired": 650}, fates=Fates(950, 50)))


def test_coverage_is_part_of_it() -> None:
    lost = Coverage("tap 'insight'", 0, 50, 10, (FragmentCoverage(0, 90, 140, lost=90),))
    found = findings_of(figures(sent=50, done=50, coverage=lost))
    assert found[0].grave and "truncated" in found[0].text
    assert "50 messages are few" in found[1].text
    blind = Coverage("archive x", None, 1000, None)
    assert "not recorded" in said(figures(coverage=blind, done=0))


BEGAN = 1_767_225_600_000  # 2026-01-01


def test_a_drained_queue_whose_recording_began_after_the_span() -> None:
    """Everything came before the tap was made, and all of it is done with. That no end is recorded proves nothing."""
    states = {"done": 23_435, "dead-lettered": 493}
    subject = figures(
        sent=23_928,
        done=0,
        coverage=Coverage("tap 'insight'", BEGAN, 23_928, 0, known_time=BEGAN),
        fates=Fates(0, 0, 23_928, states, held=0),
        counts=EntityCounts(BEGAN, 0, 493, 0),
    )
    text = said(subject)
    assert "not done with" not in text and "keep up" not in text
    assert (
        "When 23,928 of 23,928 messages ended is not known: they came before outcomes were recorded (2026-01-01 00:00:00). "
        "When the tap was read, of all messages 23,435 were done and 493 were dead letters." in text
    )
    assert subject.waiting == 0


def test_a_backlog_is_concluded_from_no_gap_in_the_records() -> None:
    unknown = Fates(ended=100, unknown=900)
    archived = figures(coverage=Coverage("archive x", None, 1000, 50, known_time=BEGAN), fates=unknown)
    assert "keep up" not in said(archived) and archived.waiting is None
    assert "before the first recorded outcome (2026-01-01 00:00:00), or after the last" in said(archived)
    never = figures(coverage=Coverage("archive x", None, 1000, 0), fates=Fates(unknown=1000))
    assert "keep up" not in said(never) and "while no outcome was recorded" in said(never)


def test_the_count_of_the_queue_is_the_backlog() -> None:
    counted = figures(fates=Fates(400, 600), counts=EntityCounts(BEGAN, 5000, 0, 0))
    assert (
        "5,000 messages were in the queue when the report was made, 4,000 of them from before the span"
        in said(counted)
    )
    drained = figures(fates=Fates(400, 600), counts=EntityCounts(BEGAN, 0, 0, 0))
    assert "keep up" not in said(drained)
    by_the_tap = figures(fates=Fates(400, 0, 600, {"active": 580, "deferred": 20, "done": 400}, held=600))
    assert "About 600 of the 1000 messages were not done with" in said(by_the_tap)


def test_records_that_contradict_the_count_are_named_and_nothing_is_concluded() -> None:
    subject = figures(
        fates=Fates(100, 900), counts=EntityCounts(BEGAN, 3, 0, 0), backlog=Backlog.CONTRADICTED
    )
    found = findings_of(subject)
    assert [each.grave for each in found] == [True]
    assert "by them 900 messages wait, and by its count 3" in found[0].text
    assert subject.waiting is None and "keep up" not in said(subject)


def test_fragments_that_could_not_be_reached_are_named_and_shares_are_not_judged() -> None:
    partial = Coverage("tap 'insight'", BEGAN, 1000, 1000, unavailable=(3, 7, 9))
    subject = figures(
        by_fragment=(900, *[8] * 12),
        coverage=partial,
        fates=Fates(100, 900),
        counts=EntityCounts(BEGAN, 900, 0, 0),
    )
    (found,) = findings_of(subject)
    assert found.grave
    assert "Fragments 3, 7 and 9 could not be reached" in found.text and "the other 13" in found.text
    assert not partial.complete and subject.partitioned
    only = figures(by_fragment=(10,), coverage=Coverage("t", BEGAN, 10, 10, unavailable=(1,)))
    assert only.partitioned and "Fragment 1 could not be reached" in said(only)


def test_messages_that_were_finished_before_the_tap_was_made_are_missed() -> None:
    keys = Ranking(1000, 2, (Share("eu", 700, 0.7), Share("us", 300, 0.3)))
    survivors = Coverage("tap 'insight'", BEGAN, 1000, 0, known_time=BEGAN, missing=50_000)
    text = said(figures(by_fragment=(20, 900, *[5] * 14), keys=keys, coverage=survivors, rate=None))
    assert "50,000 numbers are missing" in text and "Fragment 1" not in text
    advice = advise(figures(coverage=survivors, rate=None), Clients(), EntitySettings())
    assert "no rate was measured" in advice.because
