"""The worlds that can be simulated, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.express_life import ExpressLife
from tests.simulation.express_session_life import ExpressSessionLife
from tests.simulation.express_topic_life import ExpressTopicLife
from tests.simulation.life import StoreLife
from tests.simulation.move_life import MoveLife
from tests.simulation.queue_life import QueueLife
from tests.simulation.session_life import SessionLife
from tests.simulation.tap_life import TapLife
from tests.simulation.topic_life import TopicLife

WORLDS: dict[str, Callable[[int], StoreLife | MoveLife | ExpressLife]] = {
    "queue": QueueLife,
    "sessions": SessionLife,
    "taps": TapLife,
    "topic": TopicLife,
    "moves": MoveLife,
    "express": ExpressLife,
    "express-sessions": ExpressSessionLife,
    "express-topic": ExpressTopicLife,
}


def simulate(
    world: str, seed: int, steps: int, on_line: Callable[[str], None]
) -> StoreLife | MoveLife | ExpressLife:
    """Live one life, and say in short lines what happens."""
    life = WORLDS[world](seed)
    life.world.trace.on_line = on_line
    life.live(steps)
    return life
