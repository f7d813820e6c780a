"""A well-behaved client of its own connection: it sends, receives and completes, and notices any disturbance."""

from __future__ import annotations

import time

from tests.robustness.wire import (
    ACCEPTED,
    DISPOSITION,
    KEY,
    RECEIVER,
    SENDER,
    TRANSFER,
    logged_in,
    message,
)


class Bystander:
    """Keeps one connection open for its whole life; `works` makes one full cycle on it."""

    def __init__(self, port: int, queue: str = "bystander", *, key: str = KEY) -> None:
        self._wire = logged_in(port, key=key)
        self._sent = 0
        self._received = 0
        self.slowest = 0.0
        self._wire.attach(0, SENDER, queue)
        self._wire.attach(1, RECEIVER, queue)
        self._wire.grant(1, 1_000)

    def __enter__(self) -> Bystander:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.socket.close()

    def works(self, cycles: int = 1) -> None:
        for _ in range(cycles):
            began = time.monotonic()
            body = f"bystander {self._sent}".encode()
            self._wire.transfer(0, self._sent, message(body, f"b{self._sent}"))
            self._sent += 1
            delivered = accepted = False
            while not (delivered and accepted):
                heard = self._wire.until(DISPOSITION, TRANSFER)
                if heard.code == TRANSFER:
                    assert body in heard.payload
                    delivered = True
                    delivery = int(str(heard.field(1)))
                else:
                    assert heard.outcome == ACCEPTED, heard
                    accepted = True
            self._wire.dispose(delivery, delivery, ACCEPTED)
            confirmed = self._wire.until(DISPOSITION)
            assert confirmed.outcome == ACCEPTED and confirmed.field(3) is True, confirmed
            self._received += 1
            if self._received % 500 == 0:
                self._wire.grant(1, 1_000, count=self._received)
            self.slowest = max(self.slowest, time.monotonic() - began)
