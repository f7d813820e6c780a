"""Long lives of a topic and its subscriptions, from printed seeds: what a sender was acknowledged is in every subscription
that selects it, once and in order, or in none, through all faults of the store.

A queue with a tap and one with sessions are in the same store. `make simulate WORLD=topic SEED=n` replays a seed.
"""

from __future__ import annotations

from tests.simulation.campaign import run_lives
from tests.simulation.topic_life import TopicLife


def test_lives() -> None:
    lives = run_lives(TopicLife, 40, 5_000)
    assert sum(life.topic.acknowledged for life in lives) > 10 * len(lives)
    assert sum(life.topic.rest_checks for life in lives) >= 2 * len(lives)
