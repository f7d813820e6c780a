"""The checks of `busbar doctor` that need no running Busbar. Each returns what it found, and what to do about it."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from statistics import median

from busbar import compiled
from busbar.cli.output import size_text

OK, WARN, BAD = "ok", "warn", "bad"
MIN_DESCRIPTORS = 4_096
SYNCS = 15
SLOW_SYNC_MS, BAD_SYNC_MS = 20.0, 200.0
LITTLE_SPACE, TOO_LITTLE_SPACE = 2 << 30, 128 << 20
MOST_SKEW, BAD_SKEW = 5.0, 60.0
"""Seconds. Tokens are valid for `token_grace` (60 s) after their end."""
EXPIRES_SOON_DAYS = 21
PORTS = {5672: "--port", 5671: "--tls-port", 5300: "--http-port"}


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    check: str
    state: str
    text: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def python_finding() -> DoctorFinding:
    return DoctorFinding("python", OK, f"{sys.version.split()[0]} at {sys.executable}")


def compiled_finding() -> DoctorFinding:
    """Whether this installation runs its hot rooms compiled."""
    if os.environ.get("BUSBAR_INTERPRETED") == "1":
        return DoctorFinding(
            "compiled", WARN, "BUSBAR_INTERPRETED is set", "unset it: compiled rooms are faster"
        )
    if not compiled():
        text = "the hot rooms are not compiled: a fraction of the speed"
        return DoctorFinding("compiled", WARN, text, "run make setup in a clone, or install a compiled wheel")
    return DoctorFinding("compiled", OK, "the hot rooms are compiled")


def descriptor_finding() -> DoctorFinding:
    """How many descriptors a server may open: each client needs one. A server raises its soft limit itself."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MIN_DESCRIPTORS:
        return DoctorFinding(
            "open files",
            WARN,
            f"at most {hard}; each client needs one",
            "raise it: ulimit -Hn 65536, or LimitNOFILE=65536 in the unit",
        )
    return DoctorFinding(
        "open files", OK, "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard}"
    )


def directory_findings(data: Path) -> Iterator[DoctorFinding]:
    """The data directory: who can read it, how much room its disk has, and how long a sync takes."""
    if not data.is_dir():
        yield DoctorFinding(
            "data", WARN, f"{data} is not there", "busbar serve makes it; or name it with --data"
        )
        return
    yield _private_finding(data)
    yield space_finding(shutil.disk_usage(data).free)
    try:
        yield sync_finding(sync_milliseconds(data))
    except OSError as error:
        yield DoctorFinding(
            "disk", BAD, f"{data} cannot be written: {error}", "mend the disk or its permissions"
        )


def _private_finding(data: Path) -> DoctorFinding:
    from busbar.app.private_files import UnsafeFiles, check_private

    try:
        warnings = check_private(data, os.geteuid())
    except UnsafeFiles as error:
        return DoctorFinding("data", BAD, str(error), str(error))
    except OSError as error:
        return DoctorFinding("data", BAD, f"{data} cannot be read: {error}", "run it as the user of Busbar")
    if warnings:
        return DoctorFinding("data", WARN, warnings[0], warnings[0])
    return DoctorFinding("data", OK, f"{data.absolute()} is private")


def space_finding(free: int) -> DoctorFinding:
    text = f"{size_text(free)} free"
    advice = "make room, or move stores to another disk: a full disk refuses sends"
    if free < TOO_LITTLE_SPACE:
        return DoctorFinding("space", BAD, text, advice)
    return DoctorFinding("space", WARN if free < LITTLE_SPACE else OK, text, advice)


def sync_milliseconds(directory: Path) -> float:
    """The median of the times that a sync of a small write takes. Raises OSError."""
    times = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-") as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            os.write(file.fileno(), b"x" * 4096)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return median(times) * 1000


def sync_finding(milliseconds: float) -> DoctorFinding:
    text = f"a sync takes {milliseconds:.2f} ms"
    advice = "use a disk with faster syncs: a send takes at least this long"
    if milliseconds >= BAD_SYNC_MS:
        return DoctorFinding("disk", BAD, text, advice)
    return DoctorFinding("disk", WARN if milliseconds >= SLOW_SYNC_MS else OK, text, advice)


def certificate_finding(data: Path, now: datetime | None = None) -> DoctorFinding:
    """When the certificate of the data directory ends."""
    from cryptography import x509

    from busbar.app.certificates import tls_directory

    file = tls_directory(data.absolute()) / "server.pem"
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
    except FileNotFoundError:
        return DoctorFinding("certificate", OK, "none in the data directory; the first start makes one")
    except (OSError, ValueError) as error:
        return DoctorFinding("certificate", BAD, f"{file} cannot be read: {error}", "remove it and restart")
    ends = certificate.not_valid_after_utc
    days = (ends - (now or datetime.now(UTC))).days
    text = f"valid until {ends:%Y-%m-%d}"
    if days < 0:
        return DoctorFinding("certificate", BAD, text, "restart Busbar: it makes a new one at the start")
    advice = "restart Busbar before: it makes a new one at the start"
    return DoctorFinding("certificate", WARN if days < EXPIRES_SOON_DAYS else OK, text, advice)


def clock_finding(date: str, now: float) -> DoctorFinding:
    """How far the clocks of this machine and of the namespace are apart, by the Date of an answer."""
    try:
        there = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return DoctorFinding("clock", WARN, "the namespace does not tell its time", "check its clock by hand")
    skew = abs(now - there - 0.5)  # the header has whole seconds
    text = f"{skew:.0f} s from that of the namespace"
    advice = "synchronise the clocks (NTP): tokens end too early or too late"
    if skew >= BAD_SKEW:
        return DoctorFinding("clock", BAD, text, advice)
    return DoctorFinding("clock", WARN if skew >= MOST_SKEW else OK, text, advice)


def port_findings(ports: dict[int, str] = PORTS) -> Iterator[DoctorFinding]:
    """Whether the ports that `busbar serve` uses by default are free."""
    for port, option in ports.items():
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError as error:
                yield DoctorFinding(
                    f"port {port}",
                    WARN,
                    f"cannot be used: {error.strerror}",
                    f"end what uses it, or use {option}",
                )
            else:
                yield DoctorFinding(f"port {port}", OK, "free")
