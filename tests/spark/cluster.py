"""A standalone cluster: a master and workers as processes, each worker with a directory of its own.

No code is shared. The workers are started with an empty environment, and their Python has the packages of
docs/spark-cluster.md and no Busbar. A job brings Busbar along, as one file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from busbar.spark.session import prepare_environment
from harness.waiting import eventually
from tests.spark.campaign import PATIENCE, SPARK_DEFAULTS, Program
from tests.spark.worker_environment import listed_packages, make_environment, pack

DAEMON_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster, and what a driver has to know of it."""

    address: str
    python: Path
    """Of the workers."""
    package: Path
    """Busbar, for the workers."""

    @property
    def settings(self) -> dict[str, str]:
        """For Spark: two executors for an application, and Busbar for them."""
        return {
            "spark.submit.pyFiles": str(self.package),
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": SPARK_DEFAULTS["spark.executor.memory"],
            "spark.executor.extraJavaOptions": SPARK_DEFAULTS["spark.executor.extraJavaOptions"],
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
        }

    @property
    def environment(self) -> dict[str, str]:
        """For a driver: the Python of the workers, and its own."""
        return {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": sys.executable}


@contextmanager
def cluster(directory: Path, workers: int = 2, cores: int = 1) -> Iterator[Cluster]:
    """A cluster of workers. The directory gets their logs and their directories."""
    prepare_environment()
    always, sometimes = listed_packages()
    python = make_environment(directory / "environment", always + sometimes)
    package = pack(directory / "busbar.zip")
    with ExitStack() as programs:
        master = programs.enter_context(daemon(directory, "master.Master"))
        found: re.Match[str] | None = None

        def listens() -> bool:
            nonlocal found
            assert master.running, master.said
            found = re.search(r"spark://127\.0\.0\.1:\d+", master.said)
            return found is not None

        eventually(listens, "the master listens", seconds=PATIENCE, pause=0.005)
        assert found is not None
        address = found.group(0)
        for number in range(workers):
            size = ["--cores", str(cores), "--memory", f"{cores}g"]
            place = ["--work-dir", str(directory / f"worker{number}")]
            programs.enter_context(daemon(directory, "worker.Worker", *size, *place, address))
        eventually(
            lambda: master.said.count("Registering worker") == workers,
            "the workers are there",
            seconds=PATIENCE,
            pause=0.005,
        )
        yield Cluster(address, python, package)


def daemon(directory: Path, name: str, *arguments: str) -> Program:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "JAVA_HOME": os.environ["JAVA_HOME"],
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": DAEMON_JAVA,
    }
    empty = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
    command = [SPARK_CLASS, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--port", "0"]
    return Program([*empty, *command, "--webui-port", "0", *arguments], directory, {})
