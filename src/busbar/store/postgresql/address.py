"""Where a store is in PostgreSQL: an address in the form that libpq has, and the schema of the store.

    postgresql://user@host,other:5433/database?schema=busbar_orders&sslmode=verify-full&sslrootcert=ca.pem

`schema` is Busbar's own; everything else is libpq's. A password may be in the address, in PGPASSWORD or in a password file
(`passfile`, PGPASSFILE, ~/.pgpass). With several hosts, the one that accepts writes is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from busbar.store.contract import StoreError

SCHEMES = ("postgresql", "postgres")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def is_postgresql(url: str) -> bool:
    """Whether an address names a PostgreSQL database."""
    return url.partition("://")[0].lower() in SCHEMES


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The address of a database, for a driver, and the schema of one store in it."""

    dsn: str
    schema: str

    @property
    def shown(self) -> str:
        """The address for people: without a password."""
        parts = urlsplit(self.dsn)
        user, _, hosts = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        query = [(key, value) for key, value in parse_qsl(parts.query) if key != "password"]
        query.append(("schema", self.schema))
        netloc = f"{name}@{hosts}" if name else hosts
        return urlunsplit((parts.scheme, netloc, parts.path, urlencode(query, quote_via=quote, safe="/"), ""))


def parse_address(url: str, name: str) -> DatabaseAddress:
    """Read an address. Without a schema in it, the schema is named after the store. Raises StoreError."""
    if not is_postgresql(url):
        raise StoreError(f"{url!r} is not the address of a PostgreSQL database: it begins with postgresql://")
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    schema = dict(query).get("schema", f"busbar_{name.replace('-', '_')}")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise StoreError(
            f"{schema!r} cannot be the schema of a store: use a-z, 0-9 and _, at most 63 of them, and not pg_ in front"
        )
    rest = urlencode([(key, value) for key, value in query if key != "schema"], quote_via=quote, safe="/")
    return DatabaseAddress(urlunsplit(("postgresql", parts.netloc, parts.path, rest, "")), schema)
