"""The tables of an embedded messaging store, and what each version of its schema added. database.py opens such a file.

Tables
    msg         every message. `id` is only where the bytes lie: new ones go to the end of the file's tree, whatever
                their fragment. The index `msg_place` (fragment, lane, n) makes each lane a contiguous, ordered range; a move
                between lanes changes the index and leaves the bytes where they are (docs/adr/0003-lanes-in-the-key.md).
                Messages of sessions are also in `msg_session` (fragment, session, lane, n), the order of each session.
                Those of them that are active and can expire are in `msg_expiry`. Dead-lettered messages are also in
                `msg_dead`, in the order in which that happened. Those of the outbox are in `msg_out`, by target.
    session     the sessions that have active messages; `session_line` is the order in which they are accepted.
    session_state  by itself, since it may be large, and there without messages.
    session_hold   locks of sessions whose holders can outlive the process that has the store.
    fragment    the counters of each fragment, written with every commit of it.
    dup         ids of duplicate detection (fragment/changes.py). The segment (column `shelf`) comes before the id in the
                key. So a commit touches a few neighbouring pages although ids are random
                (docs/adr/0005-ids-on-shelves.md).
    outbox      the targets for which the outbox has messages.
    tap, event  where taps stand in a fragment, and what happened to messages, until every tap has passed it.
    writer, written  what repeating writers have committed, and the ids of what they wrote since (writers.py).
    kept_lock   message locks that a clean shutdown left for the next start.
    definition  the identity of the store, and the definitions of the entities that its fragments are of. Up to version
                5 this was the table `catalogue`, with a copy of the whole catalogue.
    meta        the version of this schema, the epoch that each claim raises, and the journal (journal_state.py).
"""

from __future__ import annotations

from busbar.store.sqlite.database import DatabaseSchema

SCHEMA_VERSION = 7
APPLICATION_ID = 0x42757362  # "Busb"

# What each version added to the one before it. A file is made as version 1 and brought up to date like any other.
_ADDED: dict[int, tuple[str, ...]] = {
    2: (
        """CREATE TABLE dup(
            fragment INTEGER NOT NULL,
            shelf INTEGER NOT NULL,
            id BLOB NOT NULL,
            at INTEGER NOT NULL,
            n INTEGER NOT NULL,
            PRIMARY KEY (fragment, shelf, id)) WITHOUT ROWID""",
        "ALTER TABLE fragment ADD COLUMN ids INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE fragment ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0",
    ),
    3: (
        # A NULL is in the header of a record, so reading it does not access what lies behind the content.
        "ALTER TABLE msg ADD COLUMN session TEXT",
        "CREATE INDEX msg_session ON msg(fragment, session, lane, n) WHERE session IS NOT NULL",
        """CREATE INDEX msg_expiry ON msg(fragment, session, enqueued + ttl, n)
            WHERE session IS NOT NULL AND lane = 0 AND ttl > 0""",
        """CREATE TABLE session(
            fragment INTEGER NOT NULL,
            id TEXT NOT NULL,
            turn INTEGER NOT NULL,
            active INTEGER NOT NULL,
            PRIMARY KEY (fragment, id)) WITHOUT ROWID""",
        "CREATE INDEX session_line ON session(fragment, turn)",
        """CREATE TABLE session_state(
            fragment INTEGER NOT NULL,
            id TEXT NOT NULL,
            at INTEGER NOT NULL,
            size INTEGER NOT NULL,
            state BLOB NOT NULL,
            PRIMARY KEY (fragment, id))""",
        "ALTER TABLE fragment ADD COLUMN turn INTEGER NOT NULL DEFAULT 0",
    ),
    4: (
        "ALTER TABLE msg ADD COLUMN dead INTEGER NOT NULL DEFAULT 0",
        *(
            f"ALTER TABLE fragment ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0"
            for name in (
                "kept",
                "kept_dead",
                "last_dead",
                "last_event",
                "events",
                "kept_size",
                "kept_dead_size",
            )
        ),
        # The order in which existing dead letters came is not stored. Their numbers give the order instead.
        """UPDATE msg SET dead = numbered.dead FROM (
            SELECT msg.id, row_number() OVER (PARTITION BY msg.fragment ORDER BY msg.n) AS dead
            FROM fragment CROSS JOIN msg INDEXED BY msg_place
            WHERE msg.fragment = fragment.id AND msg.lane IN (1, 4)) AS numbered
            WHERE msg.id = numbered.id""",
        "UPDATE fragment SET last_dead = dead + dead_deferred",
        "CREATE INDEX msg_dead ON msg(fragment, lane, dead, enqueued) WHERE dead > 0",
        """CREATE TABLE tap(
            fragment INTEGER NOT NULL,
            id INTEGER NOT NULL,
            position INTEGER NOT NULL,
            lost INTEGER NOT NULL,
            event_position INTEGER NOT NULL,
            event_lost INTEGER NOT NULL,
            truncated INTEGER NOT NULL,
            PRIMARY KEY (fragment, id)) WITHOUT ROWID""",
        """CREATE TABLE event(
            fragment INTEGER NOT NULL,
            at INTEGER NOT NULL,
            n INTEGER NOT NULL,
            outcome INTEGER NOT NULL,
            time INTEGER NOT NULL,
            enqueued INTEGER NOT NULL,
            deliveries INTEGER NOT NULL,
            reason TEXT NOT NULL,
            PRIMARY KEY (fragment, at)) WITHOUT ROWID""",
        """CREATE TABLE writer(
            fragment INTEGER NOT NULL,
            name TEXT NOT NULL,
            batch INTEGER NOT NULL,
            at INTEGER NOT NULL,
            PRIMARY KEY (fragment, name)) WITHOUT ROWID""",
        """CREATE TABLE written(
            fragment INTEGER NOT NULL,
            writer INTEGER NOT NULL,
            batch INTEGER NOT NULL,
            id BLOB NOT NULL,
            PRIMARY KEY (fragment, writer, batch, id)) WITHOUT ROWID""",
    ),
    5: (
        *(
            f"ALTER TABLE msg ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0"
            for name in ("hops", "target", "kind")
        ),
        *(
            f"ALTER TABLE fragment ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0"
            for name in ("outbox", "transfer_dead", "transfer_dead_deferred")
        ),
        "CREATE INDEX msg_out ON msg(fragment, target, n) WHERE lane = 7",
        """CREATE TABLE outbox(
            fragment INTEGER NOT NULL,
            target INTEGER NOT NULL,
            path TEXT NOT NULL,
            count INTEGER NOT NULL,
            PRIMARY KEY (fragment, target)) WITHOUT ROWID""",
    ),
    6: (
        "ALTER TABLE catalogue RENAME TO definition",
        "ALTER TABLE definition RENAME COLUMN definition TO value",
        """CREATE TABLE session_hold(
            fragment INTEGER NOT NULL,
            id TEXT NOT NULL,
            holder TEXT NOT NULL,
            until INTEGER NOT NULL,
            PRIMARY KEY (fragment, id)) WITHOUT ROWID""",
    ),
    # An older version would not read the journal, so it must refuse the file.
    7: ("INSERT INTO meta VALUES ('journal', zeroblob(16)), ('applied', 0), ('closed', 1), ('moving', -1)",),
}

_SCHEMA = (
    """CREATE TABLE msg(
        id INTEGER PRIMARY KEY,
        fragment INTEGER NOT NULL,
        lane INTEGER NOT NULL,
        n INTEGER NOT NULL,
        enqueued INTEGER NOT NULL,
        ttl INTEGER NOT NULL,
        due INTEGER NOT NULL,
        deliveries INTEGER NOT NULL,
        size INTEGER NOT NULL,
        overlay BLOB,
        content BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX msg_place ON msg(fragment, lane, n)",
    "CREATE INDEX msg_due ON msg(fragment, due, n) WHERE lane = 3",
    """CREATE TABLE fragment(
        id INTEGER PRIMARY KEY,
        last INTEGER NOT NULL,
        active INTEGER NOT NULL,
        dead INTEGER NOT NULL,
        deferred INTEGER NOT NULL,
        scheduled INTEGER NOT NULL,
        dead_deferred INTEGER NOT NULL,
        size INTEGER NOT NULL)""",
    """CREATE TABLE kept_lock(
        fragment INTEGER NOT NULL,
        lane INTEGER NOT NULL,
        n INTEGER NOT NULL,
        nonce INTEGER NOT NULL,
        until INTEGER NOT NULL,
        PRIMARY KEY (fragment, lane, n)) WITHOUT ROWID""",
    "CREATE TABLE catalogue(name TEXT PRIMARY KEY, definition BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO meta VALUES ('schema', 1), ('epoch', 0)",
)

STORE_SCHEMA = DatabaseSchema("Busbar store", APPLICATION_ID, SCHEMA_VERSION, _SCHEMA, _ADDED)
