"""Verdicts on messages: what was lost, doubled or out of order. No second attempt of a test takes one back."""

from __future__ import annotations

from collections.abc import Sized


class PromiseBroken(AssertionError):
    """Busbar has broken a promise about messages (docs/adr/0038-a-second-attempt.md)."""


def require_kept(promise: str, broken: Sized) -> None:
    """Fail for good unless nothing broke the promise."""
    if len(broken):
        raise PromiseBroken(f"{promise}: broken {len(broken)} times: {str(broken)[:2_000]}")
