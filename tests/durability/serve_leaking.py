"""`busbar` with a leak: it keeps a copy of all bytes that its AMQP connections receive, and some more."""

from __future__ import annotations

from busbar.cli.main import main
from busbar.gateway.amqp.connection import GatewayConnection

COPIES = 100


def keep_everything() -> None:
    kept: list[bytes] = []
    received = GatewayConnection.data_received

    def kept_and_received(self: GatewayConnection, data: bytes) -> None:
        kept.append(data * COPIES)
        received(self, data)

    setattr(GatewayConnection, "data_received", kept_and_received)  # noqa: B010


if __name__ == "__main__":
    keep_everything()
    main()
