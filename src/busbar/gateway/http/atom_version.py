"""The `api-version` of a request: a month such as 2024-05. Without one the newest is meant.

1. Partitioned entities need 2013-10 or later: an older client would take them for what they are not, so it is refused
   instead of being told half the truth.
2. MaxMessageSizeInKilobytes is shown from 2021-05 on.
"""

from __future__ import annotations

import re

from busbar.model.entities import Description, QueueDescription, TopicDescription
from busbar.model.errors import ArgumentError

NEWEST = "2024-05"
PARTITIONING = "2013-10"
MESSAGE_SIZE = "2021-05"

_VERSION = re.compile(r"\d{4}-\d{2}(?:-\d{2})?(?:-preview)?", re.ASCII | re.IGNORECASE)


def read_version(text: str | None) -> str:
    """The version as text, which sorts by time. Raises ArgumentError."""
    if not text:
        return NEWEST
    if not _VERSION.fullmatch(text):
        raise ArgumentError(f"The api-version '{text[:40]}' is not a month such as {NEWEST}.")
    return text.lower()


def is_partitioned(description: Description) -> bool:
    return isinstance(description, QueueDescription | TopicDescription) and description.enable_partitioning


def check_partitioning(path: str, partitioned: bool, version: str) -> None:
    """Rule 1. Raises ArgumentError."""
    if partitioned and version < PARTITIONING:
        raise ArgumentError(
            f"The entity '{path}' is partitioned: api-version {version} does not know partitioned entities; "
            f"use {PARTITIONING} or later."
        )
