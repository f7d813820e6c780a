"""What an operator should know of a store in PostgreSQL: whether a failover can lose messages, and whether space is freed.

Deleted messages keep their space until vacuum removes them. Vacuum removes nothing that an old snapshot may still see: of a
dump, an idle transaction, or a replication slot.
"""

from __future__ import annotations

from typing import Final

from busbar.store.postgresql.connection import DatabaseConnection

OLD_SNAPSHOT: Final = 600
"""Seconds after which a snapshot is shown with its holder."""
ASYNCHRONOUS: Final = "asynchronous: a failover can lose what was acknowledged"

_SIZE: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class"
    " WHERE relnamespace = to_regnamespace($1::text) AND relkind = 'r'"
)
_STANDBYS: Final = (
    "SELECT current_setting('synchronous_standby_names'),"
    " (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))"
)
_DEAD: Final = (
    "SELECT coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint FROM pg_stat_all_tables"
    " WHERE schemaname = $1"
)
_JOURNAL: Final = (
    "SELECT coalesce(sum(n_live_tup), 0)::bigint FROM pg_stat_all_tables"
    " WHERE schemaname = $1 AND relname = 'journal'"
)
_OLDEST: Final = (
    "SELECT pid, application_name, extract(epoch FROM clock_timestamp() - xact_start)::bigint FROM pg_stat_activity"
    " WHERE backend_xmin IS NOT NULL AND xact_start IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1"
)


def measured_size(connection: DatabaseConnection, schema: str) -> int:
    """The bytes of the tables and indexes of a store."""
    return int(connection.fetch(_SIZE, f'"{schema}"')[0][0])


def is_synchronous(connection: DatabaseConnection) -> bool:
    """Whether a commit waits for a standby."""
    return bool(connection.fetch(_STANDBYS)[0][0])


def status_text(connection: DatabaseConnection, schema: str) -> str:
    """The state of the server as far as this store is concerned."""
    names, standbys = connection.fetch(_STANDBYS)[0]
    parts = [f"synchronous with {standbys} of {names}" if names else ASYNCHRONOUS]
    dead, live = connection.fetch(_DEAD, schema)[0]
    parts.append(f"{live} rows and {dead} that are deleted and not vacuumed yet")
    parts.append(f"{connection.fetch(_JOURNAL, schema)[0][0]} rows of journal")
    for pid, application, seconds in connection.fetch(_OLDEST):
        if seconds >= OLD_SNAPSHOT:
            minutes = seconds // 60
            parts.append(
                f"process {pid} ({application}) has a snapshot of {minutes} minutes: deleted rows keep their space"
            )
    return "; ".join(parts)
