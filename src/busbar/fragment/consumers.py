"""A consumer: a receiver that gives credit for the messages it can take."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64


@final
class Consumer:
    def __init__(self, origin: i64, consumer: i64, sub: i64, delete: bool) -> None:
        self.origin = origin
        self.consumer = consumer
        self.sub = sub
        self.delete = delete
        self.credit: i64 = 0
        self.waiting = False  # stands in its window's line
        self.draining = False
