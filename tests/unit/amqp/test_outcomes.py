"""Delivery states in bytes."""

from __future__ import annotations

from busbar.amqp.codec import encode_value
from busbar.amqp.outcomes import ACCEPTED, ANNOTATED_NAME, annotated_state, state_at
from busbar.amqp.types import Described, Int, Symbol


def test_an_accepted_state_can_have_annotations() -> None:
    state = annotated_state({"busbar:duplicates": Int(3)})
    outcome = state_at(b"." + state + b".", 1, 1 + len(state))
    assert outcome is not None
    assert (outcome.code, outcome.annotations) == (ACCEPTED, {"busbar:duplicates": 3})
    for fields in ([], [None], ["text"]):
        bare = encode_value(Described(Symbol(ANNOTATED_NAME), fields))
        outcome = state_at(bare, 0, len(bare))
        assert outcome is not None and (outcome.code, outcome.annotations) == (ACCEPTED, None)
