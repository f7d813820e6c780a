"""Connects processes of Spark to the namespace: a connection for each process, kept between tasks, and errors in Spark's
terms.

If a broker does not answer, the process waits. The query fails only when the time of `waitForBroker` has passed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
from busbar.spark.entity_names import label_of
from busbar.spark.errors import OptionError, SourceError
from busbar.spark.options import SourceOptions
from busbar.spark.secrets import Secret

if TYPE_CHECKING:
    from busbar.client.blocking_administration import BlockingAdministrationClient

log = logging.getLogger("busbar.spark")

_Key = tuple[int, str, str, float]

_factories: dict[_Key, BlockingFactory] = {}
_administrations: dict[_Key, BlockingAdministrationClient] = {}


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
            raise _no_connection_string(secret, error) from None
        _factories[key] = factory
    return factory


def administration_of_process(secret: Secret, wait: float) -> BlockingAdministrationClient:
    """The administration client of this process, which lists entities. Raises OptionError."""
    from busbar.client.blocking_administration import BlockingAdministrationClient

    text = secret.reveal()
    key = (os.getpid(), text, secret.trust, wait)
    client = _administrations.get(key)
    if client is None:
        try:
            client = BlockingAdministrationClient.from_connection_string(
                text, operation_timeout=max(1.0, wait), retry=Retry(patience=wait), trust=secret.authorities()
            )
        except ValueError as error:
            raise _no_connection_string(secret, error) from None
        _administrations[key] = client
    return client


def _no_connection_string(secret: Secret, error: ValueError) -> OptionError:
    return OptionError(next(iter(secret.options())), f"leads to what is no connection string: {error}")


def taps_of(options: SourceOptions) -> BlockingTaps:
    """The taps of the entity that a reader reads."""
    with client_errors(options):
        return client_of_process(options.secret, options.wait).taps(
            options.entity, sub_queue=options.sub_queue
        )


def entity_label(options: SourceOptions) -> str:
    return label_of(options.entity, options.sub_queue)


@contextmanager
def client_errors(options: SourceOptions) -> Iterator[None]:
    """Translate errors of the client to errors of Spark."""
    try:
        yield
    except BusbarClientError as error:
        raise spark_error(error, options) from None


def spark_error(error: BusbarClientError, options: SourceOptions) -> SourceError:
    if options.several:
        return _listing_error(error, options)
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


def _listing_error(error: BusbarClientError, options: SourceOptions) -> SourceError:
    """The error of a request that lists the entities for a pattern."""
    pattern = ", ".join(options.patterns)
    if isinstance(error, Unauthorized):
        return SourceError(
            "BUSBAR_UNAUTHORIZED",
            f"The connection string does not give the right to list entities for the option 'entityPattern' "
            f"({pattern!r}), which needs Manage on the namespace: {error.text} 'entities' needs no such right.",
        )
    condition = "BUSBAR_UNAVAILABLE" if error.retryable else "BUSBAR_REFUSED"
    return SourceError(condition, f"The entities for {pattern!r} could not be listed: {error}")


def data_loss(what: str) -> SourceError:
    return SourceError(
        "BUSBAR_DATA_LOSS",
        f"{what} To go on without what was lost, set the option 'failOnDataLoss' to false.",
    )
