"""When a connection reads: every state with every input."""

from __future__ import annotations

import asyncio

import pytest

from busbar.gateway.amqp.read_control import ReadControl

LIMIT = 100


class Switch(asyncio.Transport):
    """A transport whose reading can be switched; switching it twice is a mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.is_on = True

    def pause_reading(self) -> None:
        assert self.is_on
        self.is_on = False

    def resume_reading(self) -> None:
        assert not self.is_on
        self.is_on = True


@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize(
    ("arrived", "is_on"),
    [([0], True), ([100], True), ([101], False), ([101, -50], False), ([101, -51], True)],
)
def test_reading(arrived: list[int], is_on: bool, is_writable: bool) -> None:
    switch, control = Switch(), ReadControl(LIMIT)
    control.use(switch)
    for size in arrived:
        control.arriving(size)
    control.set_writable(is_writable)
    assert switch.is_on == (is_on and is_writable)
    control.set_writable(True)
    # Reading that has been paused goes on at half of the limit.
    assert switch.is_on == (is_on and (is_writable or sum(arrived) <= LIMIT // 2))


def test_a_lost_transport_is_left_alone() -> None:
    switch, control = Switch(), ReadControl(LIMIT)
    control.use(switch)
    control.use(None)
    control.arriving(10 * LIMIT)
    assert switch.is_on
