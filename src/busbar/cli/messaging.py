"""The messaging client of commands: the running Busbar that is meant, over AMQP.

Every port of a Busbar accepts AMQP, so where management is reached messaging is too. A connection string without a port
means AMQP's own port (5671 with TLS, else 5672).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from busbar.cli.endpoint import ConnectionOptions, find_target, say_target
from busbar.cli.failure import CommandFailure, ExitCode

if TYPE_CHECKING:
    from busbar.client.blocking import BlockingFactory


@contextmanager
def messaging(where: ConnectionOptions, *, changes: bool = False) -> Iterator[BlockingFactory]:
    """A connection. If the broker refuses something, inside the block too, a CommandFailure is raised. A command that
    `changes` something prints which namespace that is."""
    from busbar.client.blocking import connect
    from busbar.client.errors import BusbarClientError, CannotConnect, NotFound
    from busbar.client.retry import NO_RETRY

    target = find_target(where)
    if changes:
        say_target(target)
    trust = target.authorities[0] if target.authorities else None
    try:
        with connect(target.connection_string, retry=NO_RETRY, operation_timeout=30, trust=trust) as factory:
            yield factory
    except ValueError as error:
        raise CommandFailure(f"{error}.", ExitCode.USAGE) from None
    except CannotConnect as error:
        raise CommandFailure(f"{error.text.rstrip('.')}; {target.remedy}.") from None
    except NotFound as error:
        raise CommandFailure(error.text, ExitCode.NOT_FOUND) from None
    except BusbarClientError as error:
        raise CommandFailure(error.text, ExitCode.OTHER if error.retryable else ExitCode.REFUSED) from None
