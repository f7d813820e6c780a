"""Connects processes of Spark to the namespace: a connection for each process, kept between tasks, and errors in Spark's
terms.

If a broker does not answer, the process waits. The query fails only when the time of `waitForBroker` has passed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from busbar.client import (
    BusbarClientError,
    NotFound,
    Retry,
    TapOwned,
    TapPassed,
    TapTruncated,
    Unauthorized,
)
from busbar.client.blocking import BlockingFactory, BlockingTaps, connect
from busbar.spark.errors import OptionError, SourceError
from busbar.spark.options import SourceOptions
from busbar.spark.secrets import Secret

log = logging.getLogger("busbar.spark")

_factories: dict[tuple[int, str, str, float], BlockingFactory] = {}


def client_of_process(secret: Secret, wait: float) -> BlockingFactory:
    """The connection of this process. Raises OptionError, BusbarClientError."""
    text = secret.reveal()
    key = (os.getpid(), text, secret.trust, wait)
    factory = _factories.get(key)
    if factory is None:
        try:
            factory = connect(
                text,
                retry=Retry(patience=wait),
                name=f"busbar-spark-{os.getpid()}",
                trust=secret.authorities(),
            )
        except ValueError as error:
            raise OptionError(
                next(iter(secret.options())), f"leads to what is no connection string: {error}"
            ) from None
        _factories[key] = factory
    return factory


def taps_of(options: SourceOptions) -> BlockingTaps:
    """The taps of the entity that a reader reads."""
    with client_errors(options):
        return client_of_process(options.secret, options.wait).taps(
            options.entity, sub_queue=options.sub_queue
        )


def entity_label(options: SourceOptions) -> str:
    return f"{options.entity}/$deadletterqueue" if options.sub_queue else options.entity


@contextmanager
def client_errors(options: SourceOptions) -> Iterator[None]:
    """Translate errors of the client to errors of Spark."""
    try:
        yield
    except BusbarClientError as error:
        raise spark_error(error, options) from None


def spark_error(error: BusbarClientError, options: SourceOptions) -> SourceError:
    where = f"entity {entity_label(options)!r}"
    if isinstance(error, NotFound):
        return SourceError(
            "BUSBAR_NOT_FOUND",
            f"The {where} (option 'entity') is not there, or was deleted while it was read: {error.text}",
        )
    if isinstance(error, Unauthorized):
        return SourceError(
            "BUSBAR_UNAUTHORIZED",
            f"The connection string does not give the right to read the {where}: {error.text} Reading a tap needs "
            "Listen; a tap that does not exist yet is made with Manage.",
        )
    if isinstance(error, TapOwned):
        return SourceError(
            "BUSBAR_TAP_OWNED",
            f"{error.text} A tap belongs to one checkpoint. Use another tap, or set the option 'takeOver' to true if "
            "the query that has it is gone.",
        )
    if isinstance(error, (TapTruncated, TapPassed)):
        return data_loss(error.text)
    if error.retryable:
        return SourceError(
            "BUSBAR_UNAVAILABLE",
            f"The broker of the {where} did not answer for {options.wait:g} s (option 'waitForBroker'): {error.text}",
        )
    return SourceError("BUSBAR_REFUSED", f"The broker refused to let the {where} be read: {error}")


def data_loss(what: str) -> SourceError:
    return SourceError(
        "BUSBAR_DATA_LOSS",
        f"{what} To go on without what was lost, set the option 'failOnDataLoss' to false.",
    )
