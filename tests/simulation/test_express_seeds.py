"""Long lives of express entities, from printed seeds: what clients were told holds through faults, and a crash loses only
what the document says (docs/express.md).

`make simulate WORLD=express-topic SEED=n STEPS=400` replays a seed. The other worlds are `express` and `express-sessions`.
"""

from __future__ import annotations

import pytest

from tests.simulation.campaign import run_lives
from tests.simulation.express_life import ExpressLife
from tests.simulation.express_session_life import ExpressSessionLife
from tests.simulation.express_topic_life import ExpressTopicLife

STEPS = 400


@pytest.mark.parametrize("kind", [ExpressLife, ExpressSessionLife, ExpressTopicLife])
def test_lives(kind: type[ExpressLife]) -> None:
    lives = run_lives(kind, 25, 3_000, STEPS)
    delivered = [sum(book.deliveries for book in life.books.values()) for life in lives]
    assert min(delivered) > 5 and sum(delivered) > 50 * len(lives), "not much happened"
    assert sum(book.losses for life in lives for book in life.books.values()) > 0, "no crash loses anything"
    assert sum(life.world.quiet_checks for life in lives) > 5 * len(lives)
    assert sum(life.world.crashes for life in lives) > len(lives) / 2
    assert sum(life.world.faults for life in lives) > len(lives)


def test_sessions_are_held_and_left() -> None:
    lives = run_lives(ExpressSessionLife, 5, 5, STEPS)
    assert sum(life.accepted for life in lives) > 5 * len(lives)
