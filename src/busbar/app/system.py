"""What brokers get from the machine they run on: random numbers, descriptors and an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import secrets
from collections.abc import Callable


def nonce_source() -> Callable[[], int]:
    """A source of random numbers of 48 bits, never 0: the room of a lock token beside a fragment id and a message number."""
    chance = random.Random(secrets.randbits(128))
    draw = chance.getrandbits
    return lambda: draw(48) or 1


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors: a connection is a descriptor, and the usual 1,024 is for programs that use
    select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
