"""`busbar` whose channels between brokers can be broken: the controller keeps a descriptor of each.

SIGUSR1 ends all of them in both directions, SIGUSR2 writes bytes into them that are no frame. Both ends stay alive.
"""

from __future__ import annotations

import contextlib
import signal
import socket

from busbar.cli.main import main
from busbar.cluster.broker_node import PEER
from busbar.cluster.fd_passing import FdSender

NO_FRAME = b"\x00\x00\x00\x01\xc1"


def keep_channels() -> None:
    kept: list[socket.socket] = []
    hand_over = FdSender.send

    def kept_and_handed_over(self: FdSender, label: str, what: socket.socket) -> None:
        if label.startswith(PEER):
            kept.append(what.dup())
        hand_over(self, label, what)

    def end(*_: object) -> None:
        while kept:
            with kept.pop() as one, contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def spoil(*_: object) -> None:
        while kept:
            with kept.pop() as one, contextlib.suppress(OSError):
                one.send(NO_FRAME)

    setattr(FdSender, "send", kept_and_handed_over)  # noqa: B010
    signal.signal(signal.SIGUSR1, end)
    signal.signal(signal.SIGUSR2, spoil)


if __name__ == "__main__":
    keep_channels()
    main()
