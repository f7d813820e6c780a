"""Where an archive is: a directory of a local file system, or a URL of an object store that pyarrow reaches.

    /data/orders                                    a directory
    s3://bucket/orders                              Amazon S3 and stores with its API
    gs://bucket/orders                              Google Cloud Storage
    abfss://container@account.dfs.core.windows.net/orders
    hdfs://host:8020/orders

Credentials come from the environment, as for every program of that store (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY …), or
from the machine's own role. AWS_ENDPOINT_URL names another server with the API of S3. A query string has pyarrow's options,
such as `?endpoint_override=localhost:9000&scheme=http`. Workers read the same environment variables as the driver.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from busbar.jobs.failure_text import JobError

SCHEMES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
RENAMING: Final = ("local", "hdfs")
"""File systems in which a file can be seen while it is written, and which rename."""
REGION: Final = "us-east-1"


class ArchiveError(JobError):
    """An archive cannot be read or written. The text states why, and what to do."""


@dataclass(frozen=True, slots=True)
class ArchiveLocation:
    """The place of an archive, as a user writes it."""

    text: str

    @classmethod
    def parse(cls, given: str | Path | ArchiveLocation) -> ArchiveLocation:
        """Raise ArchiveError for a URL that is not a place for archives, or that has a password."""
        if isinstance(given, ArchiveLocation):
            return given
        text = str(given)
        if "://" not in text:
            return cls(text)
        parts = urlsplit(text)
        if parts.scheme == "file":
            return cls(unquote(parts.path))
        if parts.scheme not in SCHEMES:
            raise ArchiveError(
                f"{parts.scheme}:// is no place for an archive; these are: a directory, {'://, '.join(SCHEMES)}://."
            )
        if parts.password is not None:
            raise ArchiveError(
                f"The URL of an archive at {parts.hostname} has a password: give credentials in the environment."
            )
        return cls(text.rstrip("/"))

    @property
    def is_remote(self) -> bool:
        return "://" in self.text

    @property
    def path(self) -> Path:
        """The directory of a local archive."""
        return Path(self.text)

    @property
    def name(self) -> str:
        """The location for people: a URL without its options."""
        return self.text.partition("?")[0].rstrip("/") if self.is_remote else self.text

    def url_of(self, name: str) -> str:
        """The URL, or the path, of a file of the archive."""
        return f"{self.name}/{name}"

    def filesystem(self) -> tuple[Any, str]:
        """The pyarrow file system of the archive, and the archive's path in it. Raises ArchiveError."""
        return _filesystem(self.text if self.is_remote else str(self.path.absolute()), self.is_remote)

    def delta_options(self) -> dict[str, str]:
        """The options with which the `deltalake` library reaches the same store."""
        if not self.text.startswith("s3://"):
            return {}
        options = self._options()
        found: dict[str, str] = {}
        endpoint = _endpoint(options)
        if endpoint is not None:
            found |= {"AWS_ENDPOINT_URL": f"{endpoint[0]}://{endpoint[1]}"}
            if endpoint[0] == "http":
                found["AWS_ALLOW_HTTP"] = "true"
        if endpoint is not None or "region" in options:
            found["AWS_REGION"] = _region(options)
        return found

    def _options(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.text).query))


@lru_cache(maxsize=32)
def _filesystem(text: str, remote: bool) -> tuple[Any, str]:
    """A file system object serves the process: it has a pool of connections and threads."""
    from pyarrow import fs

    if not remote:
        return fs.LocalFileSystem(), text
    location = ArchiveLocation(text)
    try:
        if text.startswith("s3://") and "endpoint_override" not in location._options():
            options = location._options()
            endpoint = _endpoint(options)
            if endpoint is not None:
                store = fs.S3FileSystem(
                    endpoint_override=endpoint[1], scheme=endpoint[0], region=_region(options)
                )
                parts = urlsplit(text)
                return store, f"{parts.netloc}{parts.path}".rstrip("/")
        found, path = fs.FileSystem.from_uri(text)
        return found, path.rstrip("/")
    except (OSError, ValueError, NotImplementedError) as error:
        raise ArchiveError(f"{location.name} cannot be reached: {_first_line(error)}") from error


def _endpoint(options: Mapping[str, str]) -> tuple[str, str] | None:
    """The scheme and the host of the server of an S3 archive; None: Amazon's."""
    if "endpoint_override" in options:
        return options.get("scheme", "https"), options["endpoint_override"]
    url = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not url:
        return None
    parts = urlsplit(url)
    return parts.scheme or "https", parts.netloc or parts.path


def _region(options: Mapping[str, str]) -> str:
    return (
        options.get("region")
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or REGION
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
