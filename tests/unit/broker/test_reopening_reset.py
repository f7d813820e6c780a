"""A reset gives up what cannot be opened, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from busbar.broker.reopening import ReopenLoop
from busbar.store.contract import StoreError


@pytest.mark.parametrize(
    ("offline", "whole", "tried"),
    [
        (False, True, ["again"]),
        (False, False, ["again", "anew"]),
        (True, True, ["anew"]),  # the operator was asked, and wants it so
    ],
)
async def test_what_can_be_opened_is_not_made_anew(offline: bool, whole: bool, tried: list[str]) -> None:
    comeback = ReopenLoop(asyncio.get_running_loop())
    seen: list[str] = []

    async def again() -> None:
        seen.append("again")
        if not whole:
            raise StoreError("broken")

    async def anew() -> None:
        seen.append("anew")

    if offline:
        comeback.take_offline()
    comeback.reset()
    assert await comeback.run(again, anew, lambda error: True, replaces=True)
    assert seen == tried
