"""Gives a job its Spark session and its connection string, in its own process or under spark-submit."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from busbar.jobs.interruption import JobInterrupted, rearm
from busbar.jobs.reaching import Notice, no_notice, reach
from busbar.spark.errors import OptionError
from busbar.spark.secrets import Secret
from busbar.spark.session import COMMON, QUICK_START, open_session, register_format

CONNECTION_VARIABLE = "BUSBAR_CONNECTION_STRING"
DESCRIPTION = "spark.job.description"


def job_session(
    name: str,
    master: str | None,
    config: Mapping[str, str] | None = None,
    on_notice: Notice = no_notice,
) -> SparkSession:
    """A session on `master` (this machine without one). Under spark-submit the session is as it was submitted."""
    if master is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        builder = SparkSession.builder.appName(name)
        for key, value in {**COMMON, **(config or {})}.items():
            builder = builder.config(key, value)
        on_notice("starting Spark (session)")
        session = builder.getOrCreate()
        register_format(session)
    else:
        session = open_session(
            name,
            master=master or "local[*]",
            config=config,
            on_part=lambda part: on_notice(f"starting Spark ({part})"),
        )
    rearm()
    return session


@contextmanager
def session_of(
    session: SparkSession | None,
    name: str,
    master: str | None,
    on_notice: Notice = no_notice,
    *,
    ends_soon: bool = True,
) -> Iterator[SparkSession]:
    """The given session, the active one of this process, or else one for the time of the block. Unless it `ends_soon`, Java
    takes the time to optimize its code.

    If a signal ends the block, the session is not stopped, because that takes too long: the job then ends Java itself
    (interruption.py).
    """
    there = session or SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    made = job_session(name, master, QUICK_START if ends_soon else None, on_notice)
    try:
        yield made
    except JobInterrupted:
        raise
    except BaseException:
        made.stop()
        raise
    else:
        on_notice("stopping Spark")
        made.stop()


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Name the work of the block in Spark's UI and logs."""
    context = spark.sparkContext
    before = context.getLocalProperty(DESCRIPTION)
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, before)  # type: ignore[arg-type]  # None removes it


def connection_of(given: Secret | str | None) -> Secret:
    """A connection string in the form of jobs: a place, the string itself, or None for the environment variable."""
    if given is None:
        return Secret(variable=CONNECTION_VARIABLE)
    return Secret(literal=given) if isinstance(given, str) else given


def reach_broker(secret: Secret, wait: float, on_notice: Notice = no_notice) -> None:
    """Wait for the broker of a connection string. Raises OptionError, and what `reach` raises."""
    try:
        reach(secret.reveal(), wait, on_notice, secret.authorities())
    except ValueError as error:
        option = next(iter(secret.options()))
        raise OptionError(option, f"leads to what is no connection string: {error}") from None


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add the options of programs for spark-submit that name the place of the connection string: it is never on the command
    line itself."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--connection-env", metavar="NAME", help="the variable that has it, on every node")
    place.add_argument("--connection-file", metavar="FILE", help="the file that has it, on every node")
    parser.add_argument(
        "--trust-file", default="", metavar="FILE", help="authorities to trust, on every node"
    )


def given_connection(given: argparse.Namespace) -> Secret:
    if given.connection_file:
        return Secret(file=given.connection_file, trust=given.trust_file)
    return Secret(variable=given.connection_env or CONNECTION_VARIABLE, trust=given.trust_file)


def shared_connection(text: str, master: str | None, trust: str = "") -> Secret:
    """A connection string that this process has, for its workers, and a file with the authorities to trust. Workers on this
    machine inherit the environment, which exposes less than anything that Spark carries. Workers elsewhere get the string
    inside the code that they run."""
    if master is None or master.startswith("local"):
        os.environ[CONNECTION_VARIABLE] = text
        return Secret(variable=CONNECTION_VARIABLE, trust=trust)
    return Secret(literal=text, trust=trust)
