"""An entry of the catalogue with the version of the change that wrote it, as a store keeps it.

In a store an entry is its name and `v<version>=<value>` or `v<version>-`; a value without that is of version 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.store.contract import StoreError


@dataclass(frozen=True, slots=True)
class VersionedEntry:
    version: int
    value: bytes | None


def encode_entry(entry: VersionedEntry) -> bytes:
    if entry.value is None:
        return b"v%d-" % entry.version
    return b"v%d=%s" % (entry.version, entry.value)


def decode_entry(encoded: bytes) -> VersionedEntry:
    """Decode an entry. Raises StoreError if it is damaged."""
    if not encoded.startswith(b"v"):
        return VersionedEntry(0, encoded)
    end = 1
    while encoded[end : end + 1].isdigit():
        end += 1
    mark = encoded[end : end + 1]
    if end == 1 or mark not in (b"=", b"-"):
        raise StoreError("an entry of the catalogue is damaged")
    return VersionedEntry(int(encoded[1:end]), encoded[end + 1 :] if mark == b"=" else None)
