"""Sessions: a Java is found or brought along, and connection strings are printed nowhere."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from busbar.spark import class_archive, java, session
from tests.spark.conftest import PATIENCE, QUICK_JAVA, SOURCES

# What Spark's scripts and a shell need; a `java` is not among it.
TOOLS = (
    *("sh", "bash", "env", "dirname", "uname", "ps", "cat", "readlink", "sed", "grep", "tr", "ls"),
    *("rm", "chmod", "hostname", "nice", "nohup", "mktemp", "head"),
)
PROGRAM = """
from busbar.spark import local_session
spark = local_session("without-java", cores=1)
print("sum", spark.range(100).selectExpr("sum(id) AS s").first().s)
print("java", spark.sparkContext._jvm.System.getProperty("java.version"))
print("bound", spark.sparkContext.getConf().get("spark.driver.bindAddress"))
spark.stop()
"""


def java_in(directory: Path, version: str) -> Path:
    """A JAVA_HOME whose `java` does nothing."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (directory / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return directory


def test_a_machine_without_java_runs_spark(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    environment = {
        "PATH": str(tools),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(SOURCES),
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "sum 4950" in done.stdout
    assert "java 25" in done.stdout
    assert "bound 127.0.0.1" in done.stdout
    (program,) = (tmp_path / "cache" / "busbar").glob("java-*/bin/java")
    assert stat.S_IMODE(program.stat().st_mode) == 0o755


def test_the_java_of_the_machine_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mine, other = java_in(tmp_path / "mine", "17.0.1"), java_in(tmp_path / "other", "21")
    monkeypatch.setenv("JAVA_HOME", str(mine))
    monkeypatch.setenv("PATH", str(other / "bin"))
    assert java.java_home() == mine
    monkeypatch.delenv("JAVA_HOME")
    assert java.java_home() == other


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(java_in(tmp_path / "old", "1.8.0_292")))
    monkeypatch.setenv("PATH", str(java_in(tmp_path / "older", "11.0.2") / "bin"))
    home = java.java_home()
    assert home is not None and home.parent == tmp_path / "cache" / "busbar"


def test_the_private_java_drops_one_argument_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "real java"
    real.write_text('#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n')
    real.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java.private_home(real, lacking=True)
    assert java.private_home(real, lacking=True) == home
    given = ["-cp", "a b", java.UNWANTED, "*", "--add-modules=other", "", "Main"]
    said = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"<{word}>" for word in given if word != java.UNWANTED]


def test_the_archive_is_for_spark_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    home = java_in(tmp_path / "java", "17.0.1")
    (home / "bin" / "java").write_text('#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home, "there is no archive"
    archive = java.archive_of(home / "bin" / "java")
    archive.parent.mkdir(parents=True)
    archive.touch()
    private = java.java_home()
    assert private is not None and private != home
    monkeypatch.setenv("JAVA_HOME", str(private))  # as a child of this process has it
    assert java.java_home() == private
    assert java.real_java(private) == home / "bin" / "java"

    def said(*given: str) -> list[str]:
        return subprocess.check_output([private / "bin" / "java", *given], text=True).splitlines()

    assert said("-cp", "a b", java.LAUNCHER, java.MAIN) == [
        *("<-cp>", "<a b>"),
        *(f"<{name}>" for name in (java.LAUNCHER, java.MAIN)),
    ]
    assert said("-cp", "a b", java.MAIN, "x") == [
        *("<-Xshare:auto>", "<-Xlog:cds*=off>", f"<-XX:SharedArchiveFile={archive}>"),
        *("<-cp>", "<a b>", f"<{java.MAIN}>", "<x>"),
    ]


def test_a_session_starts_from_the_archive(tmp_path: Path) -> None:
    """It was made by `make setup`, or is made here."""
    (tmp_path / "scratch").mkdir()
    assert class_archive.make(tmp_path / "scratch") is not None
    log = tmp_path / "classes"
    environment = os.environ | {
        "PYTHONPATH": str(SOURCES),
        "JAVA_TOOL_OPTIONS": f"{QUICK_JAVA} -Xlog:class+load:file={log}.%p",
    }
    environment.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0 and "sum 4950" in done.stdout, done.stderr
    lines = max((path.read_text().splitlines() for path in tmp_path.glob("classes.*")), key=len)
    of_spark = [line for line in lines if " org.apache.spark." in line and "Lambda" not in line]
    mapped = [line for line in of_spark if "source: shared objects file" in line]
    assert len(of_spark) > 2_000 and len(mapped) > 0.8 * len(of_spark), f"{len(mapped)} of {len(of_spark)}"


def test_workers_load_the_installed_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    python = session.private_python()
    assert python is not None
    zipped = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    assert zipped.exists()
    monkeypatch.setenv("PYTHONPATH", f"{zipped}:/a b:/c")
    show = "import os, pyspark; print(os.environ['PYTHONPATH'], pyspark.__file__)"
    said = subprocess.run([python, "-c", show], capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[0] == f"/a b:/c {pyspark.__file__}"
    monkeypatch.setenv("SPARK_HOME", "/another")
    assert session.private_python() is None
