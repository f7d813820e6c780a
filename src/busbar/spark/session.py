"""Opens Spark sessions: on this machine, also if it has no Java, or on a cluster.

Workers of a session on this machine start a Python that loads the installed pyspark, not the zipped sources that Spark puts
in front of it. Every read of a data source starts such a Python.

A session on this machine listens on the loopback interface only. Every session prints connection strings redacted, keeps
time in UTC, pushes filters to the source, and lets its workers run this Python, unless PYSPARK_PYTHON names another.

On a cluster the format `busbar` is registered with the session. A format that Spark finds by its name would run with the
driver's Python on the workers too, and without the files of `--py-files`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from busbar.spark.java import java_home
from busbar.spark.launcher_scripts import wrapper

REDACTED_OPTIONS = r"(?i)secret|password|token|access[.]?(?:key|signature)|connectionString$|credentials$"
"""If a name or a value matches this, Spark prints the value redacted."""
REDACTED_TEXT = (
    r"(?i)(?:SharedAccessKey\s*=\s*"
    r"|schemaRegistryCredentials[\"']?\s*(?:=|->|:)\s*[\"']?(?:Bearer\s+|Basic\s+)?"
    r"|SharedAccessSignature\s*=\s*(?:SharedAccessSignature\s+)?"
    r"|SharedAccessSignature\s+(?=\w+=)"  # a token that stands alone
    r"|\bsig=)"  # in whatever comes of a token, by whatever it was cut
    r"[^;,)\]}\s\"']+"
)
"""Keys and tokens in any text that Spark prints. It is a regular expression of Java and of Python."""


def local_session(
    name: str = "busbar", *, cores: int | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Open a session on this machine, by default with all cores."""
    return open_session(name, master=f"local[{cores or '*'}]", config=config)


def open_session(
    name: str = "busbar",
    *,
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
    on_part: Callable[[str], None] | None = None,
) -> SparkSession:
    """Open a session on any master; an existing one in this process is reused. `config` overrides the settings here.
    `on_part` is called with the part of the start that begins: Java, then the session."""
    prepare_environment(local=master.startswith("local"))
    settings = dict(COMMON)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= LOCAL
        settings["spark.sql.shuffle.partitions"] = str(_cores(master))
    settings |= config or {}
    if on_part is not None:
        _start_java(
            SparkConf(False).setMaster(master).setAppName(name).setAll(list(settings.items())), on_part
        )
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(settings.get("spark.log.level", "WARN"))
    register_format(session)
    return session


def _start_java(settings: SparkConf, on_part: Callable[[str], None]) -> None:
    """Start Java before the session, so that `on_part` separates their times."""
    if SparkContext._gateway is None:
        on_part("Java")
        SparkContext._ensure_initialized(conf=settings)
    on_part("session")


def register_format(session: SparkSession) -> None:
    """Register the format `busbar` for the workers of a cluster. On this machine Spark finds it by its name."""
    context = session.sparkContext
    if str(context.master).startswith("local"):
        return
    from pyspark_busbar import DefaultSource

    _silence(context, "org.apache.spark.sql.execution.datasources.DataSourceManager")
    session.dataSource.register(DefaultSource)


def _silence(context: SparkContext, logger: str) -> None:
    """Leave out the warnings of a logger: Spark warns that the format replaces the one that it has found by its name."""
    jvm = context._jvm
    assert jvm is not None
    try:
        levels = getattr(jvm, "org.apache.logging.log4j.core.config.Configurator")
        levels.setLevel(logger, getattr(jvm, "org.apache.logging.log4j.Level").ERROR)
    except (AttributeError, TypeError):
        pass  # this Spark logs with another library


COMMON: Mapping[str, str] = {
    "spark.redaction.regex": REDACTED_OPTIONS,
    "spark.redaction.string.regex": REDACTED_TEXT,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
QUICK_START: Mapping[str, str] = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
"""For a session that ends soon. Java would spend more than half of its time on making code fast that runs a few times.
Options in `spark.driver.extraJavaOptions` come later, and override these."""
LOCAL: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def prepare_environment(*, local: bool = False) -> None:
    """Set what Spark's scripts read from the environment: a Java that runs, and this Python for the workers."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    python = (private_python() if local else None) or Path(sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", str(python))
    # If Spark finds a data source by its name, it runs the driver's Python, also for the workers that read it.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", str(python))


def private_python() -> Path | None:
    """A `python` for workers that starts faster; None if Spark is not installed with this Python."""
    spark = Path(pyspark.__file__).parent
    if os.environ.get("SPARK_HOME", str(spark)) != str(spark):
        return None
    return wrapper(
        "python",
        Path(sys.executable),
        "# Spark puts its own sources, zipped, in front of the installed package, which loads in a third of the time.\n"
        "IFS=:\n"
        "kept=\n"
        "for entry in $PYTHONPATH; do\n"
        f"    case $entry in {_zips(spark)}) ;; *) kept=${{kept:+$kept:}}$entry ;; esac\n"
        "done\n"
        "export PYTHONPATH=$kept\n",
    )


def _zips(spark: Path) -> str:
    """The pattern of a shell for the zipped sources. Spark resolves links in its own path, so both spellings count."""
    return "|".join(
        f"{shlex.quote(str(place))}/python/lib/*.zip" for place in dict.fromkeys((spark, spark.resolve()))
    )


def _cores(master: str) -> int:
    said = re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", master)
    if said is not None:
        return int(said.group(1))
    return 1 if master == "local" else len(os.sched_getaffinity(0))
