"""Stores in PostgreSQL over TLS: the certificate of the server is checked, and its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.app.certificates import TlsFiles, own_files, server_context
from busbar.store.contract import StoreError
from busbar.store.postgresql.address import parse_address
from busbar.store.postgresql.store import PostgresqlStore
from harness.database_tls import DatabaseTls
from harness.postgresql import shared_database

ANOTHER_NAME = "127.1"
"""Leads to 127.0.0.1, and is in no certificate."""


def files(directory: Path) -> TlsFiles:
    directory.mkdir()
    return own_files(directory, [])


def address(host: str, port: int, mode: str, authority: Path | None = None) -> str:
    root = f"&sslrootcert={authority}" if authority is not None else ""
    return f"postgresql://busbar@{host}:{port}/postgres?schema=over_tls&sslmode={mode}{root}"


def open_at(url: str) -> None:
    store = PostgresqlStore(parse_address(url, "store-0"), None)
    try:
        store.claim()
    finally:
        store.close()


def test_a_server_is_used_whose_certificate_has_its_name(tmp_path: Path) -> None:
    mine, other = files(tmp_path / "mine"), files(tmp_path / "other")
    with DatabaseTls(shared_database().port, server_context(mine)) as server:
        open_at(address("localhost", server.port, "verify-full", mine.ca))
        assert server.encrypted == 1
        for host, mode, authority in (
            (ANOTHER_NAME, "verify-full", mine.ca),
            ("localhost", "verify-full", other.ca),  # it is signed by another authority
            ("localhost", "verify-ca", other.ca),
        ):
            with pytest.raises(StoreError, match="certificate"):
                open_at(address(host, server.port, mode, authority))
        open_at(address(ANOTHER_NAME, server.port, "verify-ca", mine.ca))
