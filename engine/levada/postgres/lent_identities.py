"""Replica identities that the DDL trigger gives tables which it cannot take out of a publication at once.

Another session may have locked the publication, or the root of a partition, until its transaction ends. An
application's UPDATE does not wait for that: the table gets an identity with which PostgreSQL accepts it, and is
published a moment longer. A row of `TABLE` has the former identity, which the engine gives back as soon as nothing is
locked. Then the trigger takes the table out.

A partition that loses its key gets the identity FULL of its root, and stays published. It is recorded too, and gets its
own identity back once it has a key again, or once nothing publishes it.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import LevadaError, StatementRefused, Transient
from levada.postgres.failures import source_errors
from levada.postgres.publication_owners import OWNED
from levada.postgres.replica_identity import FILTERS, UNCOVERED, accepted
from levada.postgres.seal import SEAL_SCHEMA, warning
from levada.printable import counted

_log = logging.getLogger(__name__)

TABLE: Final = sql.Identifier(SEAL_SCHEMA, "lent")
LEND: Final = sql.Identifier(SEAL_SCHEMA, "lend")
GIVE_BACK: Final = sql.Identifier(SEAL_SCHEMA, "give_back")
KEEP_CHOSEN: Final = sql.Identifier(SEAL_SCHEMA, "keep_chosen")
SETTING: Final = "levada_ddl.lending"
"""Set while the trigger's own ALTER TABLE runs. Anybody may set it, which costs the own session's UPDATEs alone."""

CREATE_TABLE: Final = sql.SQL("""
CREATE TABLE IF NOT EXISTS {table} (
    relation oid PRIMARY KEY, identity "char" NOT NULL, index oid, given "char" NOT NULL)
""").format(table=TABLE)

# FULL serves every table, but for one with generated columns from version 18 on: that one gets its key. The trigger
# announces the tables afterwards. No plan is made of a table, see `levada.postgres.ddl_withdrawal`: what PostgreSQL
# refuses is read from the catalog, and in a transaction that reads an older one also from PostgreSQL's own function.
# Such a transaction cannot change the record of another one that lent before it.
#
# Other event triggers may refuse an ALTER TABLE. Most of them spare the role of a replica. Once a lock was waited for
# in vain, the next ones are hardly waited for.
_LEND_BODY: Final = sql.SQL("""
DECLARE
    leaf record;
    lent text;
    refused boolean := false;
    triggers text := pg_catalog.current_setting('session_replication_role');
BEGIN
    BEGIN
        PERFORM pg_catalog.set_config('session_replication_role', 'replica', true);
    EXCEPTION WHEN insufficient_privilege THEN
        NULL;
    END;
    PERFORM pg_catalog.set_config('lock_timeout', patience, true);
    FOR leaf IN
        SELECT l.oid, n.nspname, l.relname, l.relreplident, {identified} AND NOT {uncovered} AND CASE
                WHEN pg_catalog.current_setting('transaction_isolation') = 'read committed'
                    OR l.relreplident = 'f' AND l.xmax = '0' THEN true
                ELSE pg_catalog.pg_get_replica_identity_index(l.oid) IS NOT NULL END AS accepted,
            (SELECT i.indexrelid FROM pg_catalog.pg_index i
                WHERE i.indrelid = l.oid AND i.indisreplident AND l.relreplident = 'i') AS index
        FROM pg_catalog.pg_class l JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
        WHERE l.oid = ANY (concerned) AND l.relkind = 'r' AND l.relpersistence = 'p'
    LOOP
        CONTINUE WHEN leaf.accepted;
        FOREACH lent IN ARRAY ARRAY['FULL', 'DEFAULT', NULL] LOOP
            EXIT WHEN lent IS NULL;
            BEGIN
                PERFORM pg_catalog.set_config({setting}, 'yes', true);
                EXECUTE pg_catalog.format(
                    'ALTER TABLE ONLY %I.%I REPLICA IDENTITY %s', leaf.nspname, leaf.relname, lent);
                PERFORM pg_catalog.set_config({setting}, '', true);
                IF (SELECT {identified} AND NOT {uncovered} FROM pg_catalog.pg_class l WHERE l.oid = leaf.oid) THEN
                    EXIT;
                END IF;
                RAISE no_data_found;
            EXCEPTION WHEN no_data_found THEN
                NULL;
            WHEN OTHERS THEN
                IF SQLSTATE = '55P03' THEN
                    PERFORM pg_catalog.set_config('lock_timeout', '1ms', true);
                END IF;
                lent := NULL;
                EXIT;
            END;
        END LOOP;
        refused := refused OR lent IS NULL;
        CONTINUE WHEN lent IS NULL;
        BEGIN
            INSERT INTO {table}
            VALUES (leaf.oid, leaf.relreplident, leaf.index, pg_catalog.lower(pg_catalog.left(lent, 1)))
            ON CONFLICT (relation) DO UPDATE SET given = excluded.given;
        EXCEPTION WHEN serialization_failure THEN
            NULL;
        END;
        {given};
    END LOOP;
    IF pg_catalog.current_setting('session_replication_role') <> triggers THEN
        PERFORM pg_catalog.set_config('session_replication_role', triggers, true);
    END IF;
    RETURN refused;
END
""")

# The catalog does not show that an owner chooses the identity that the table has for the moment. It is then his own. A
# function's statement is not in the text of the query, so its choice is not seen. Nor is that of a transaction of the
# level SERIALIZABLE, which would fail if another one writes the record.
_KEEP_CHOSEN_BODY: Final = sql.SQL("""
BEGIN
    IF coalesce(pg_catalog.current_setting({setting}, true), '') = ''
        AND pg_catalog.current_setting('transaction_isolation') <> 'serializable'
    THEN
        DELETE FROM {table} t WHERE t.relation = ANY (altered) AND pg_catalog.current_query() ~*
            pg_catalog.concat('replica[[:space:]]+identity[[:space:]]+',
                CASE t.given WHEN 'f' THEN 'full' ELSE 'default' END);
    END IF;
EXCEPTION WHEN OTHERS THEN
    NULL;
END
""")

# Of a partition without a key, or with a row filter, whose root has the identity FULL and is published.
_NEEDED: Final = sql.SQL("""(t.identity = 'd' AND t.given = 'f' AND EXISTS (
        WITH RECURSIVE above(relid) AS (
            SELECT h.inhparent FROM pg_catalog.pg_inherits h JOIN pg_catalog.pg_class l ON l.oid = h.inhrelid
            WHERE h.inhrelid = t.relation AND l.relispartition
            UNION
            SELECT h.inhparent FROM above JOIN pg_catalog.pg_inherits h ON h.inhrelid = above.relid
        )
        SELECT FROM above JOIN pg_catalog.pg_class a ON a.oid = above.relid AND a.relreplident = 'f'
        JOIN pg_catalog.pg_publication_rel r ON r.prrelid = above.relid
        JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid AND (p.pubupdate OR p.pubdelete)
        WHERE pg_catalog.obj_description(p.oid, 'pg_publication') ~ {owned}
            AND (pg_catalog.to_jsonb(r) ->> 'prqual' IS NOT NULL OR NOT EXISTS (
                SELECT FROM pg_catalog.pg_index x
                WHERE x.indrelid = t.relation AND x.indisprimary AND x.indisvalid AND x.indimmediate))))
""").format(owned=sql.Literal(OWNED))

# Only while neither a publication nor a root is locked, because the trigger would lend again. A table whose identity
# was changed since keeps it.
#
# Each table is locked until the call ends. So it gives back few, and waits for one lock: for that of another table each
# time, as one may be read for hours.
_GIVE_BACK_BODY: Final = sql.SQL("""
DECLARE
    lent record;
    root record;
BEGIN
    BEGIN
        PERFORM pg_catalog.set_config('session_replication_role', 'replica', true);
    EXCEPTION WHEN insufficient_privilege THEN
        NULL;
    END;
    FOR lent IN
        SELECT t.relation, n.nspname, c.relname, CASE
            WHEN c.relreplident <> t.given THEN NULL WHEN t.identity = 'f' THEN 'FULL'
            WHEN t.identity = 'd' THEN 'DEFAULT' WHEN i.relname IS NULL THEN 'NOTHING'
            ELSE pg_catalog.format('USING INDEX %I', i.relname) END AS former
        FROM {table} t LEFT JOIN pg_catalog.pg_class c ON c.oid = t.relation
        LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_catalog.pg_class i ON i.oid = t.index
        WHERE NOT EXISTS (
            SELECT FROM pg_catalog.pg_locks k JOIN pg_catalog.pg_publication p ON p.oid = k.objid
            WHERE k.locktype = 'object' AND k.classid = 'pg_catalog.pg_publication'::pg_catalog.regclass AND k.granted
                AND k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
                AND pg_catalog.obj_description(p.oid, 'pg_publication') ~ {owned})
            AND NOT {needed}
        ORDER BY pg_catalog.random() LIMIT {most}
    LOOP
        BEGIN
            DELETE FROM {table} t WHERE t.relation = lent.relation;
            IF lent.former IS NOT NULL AND lent.relname IS NOT NULL THEN
                FOR root IN
                    WITH RECURSIVE above(relid) AS (
                        SELECT i.inhparent FROM pg_catalog.pg_inherits i WHERE i.inhrelid = lent.relation
                        UNION
                        SELECT i.inhparent FROM above JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.relid
                    )
                    SELECT n.nspname, c.relname FROM above JOIN pg_catalog.pg_class c ON c.oid = above.relid
                    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                LOOP
                    EXECUTE pg_catalog.format('LOCK TABLE ONLY %I.%I IN SHARE UPDATE EXCLUSIVE MODE NOWAIT',
                        root.nspname, root.relname);
                END LOOP;
                EXECUTE pg_catalog.format(
                    'ALTER TABLE ONLY %I.%I REPLICA IDENTITY %s', lent.nspname, lent.relname, lent.former);
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_catalog.set_config('lock_timeout', '1ms', true);
        WHEN OTHERS THEN
            NULL;
        END;
    END LOOP;
    RETURN (SELECT pg_catalog.count(*) FROM {table} t WHERE NOT {needed});
END
""")

_RECORDED: Final = """
SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = 'lent'
"""
_STILL_LENT: Final = sql.SQL("""
SELECT pg_catalog.format('ALTER TABLE ONLY %I.%I REPLICA IDENTITY ', n.nspname, c.relname) || CASE
    WHEN t.identity = 'f' THEN 'FULL' WHEN t.identity = 'd' THEN 'DEFAULT' WHEN i.relname IS NULL THEN 'NOTHING'
    ELSE pg_catalog.format('USING INDEX %I', i.relname) END
FROM {table} t JOIN pg_catalog.pg_class c ON c.oid = t.relation
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_catalog.pg_class i ON i.oid = t.index
WHERE c.relreplident = t.given AND NOT {needed} ORDER BY 1
""").format(table=TABLE, needed=_NEEDED)

_MOST: Final = 20
"""Tables that one call gives their identity back."""
_CALLABLE: Final = """
SELECT FROM pg_catalog.pg_proc f JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace
WHERE n.nspname = %s AND f.proname = 'give_back' AND NOT pg_catalog.pg_is_in_recovery()
    AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_function_privilege(f.oid, 'EXECUTE')
"""


ROOTS_IDENTITY: Final = sql.SQL("""
            BEGIN
                INSERT INTO {table} VALUES (member.relation, 'd', NULL, 'f') ON CONFLICT (relation) DO NOTHING;
            EXCEPTION WHEN serialization_failure THEN
                NULL;
            END;""").format(table=TABLE)
"""Records that a partition without a key got the identity of its root."""


_UNCOVERED: Final = sql.SQL("""EXISTS (
                WITH RECURSIVE above(relid) AS (
                    SELECT l.oid
                    UNION
                    SELECT i.inhparent FROM above
                    JOIN pg_catalog.pg_class c ON c.oid = above.relid AND c.relispartition
                    JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.relid
                )
                SELECT FROM above JOIN pg_catalog.pg_publication_rel r ON r.prrelid = above.relid
                JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid AND (p.pubupdate OR p.pubdelete)
                WHERE EXISTS ({uncovered}))""")


def lend_body(version: int) -> sql.Composed:
    """Return the body of the function that lends identities. It returns True if a table has none that is accepted."""
    return _LEND_BODY.format(
        identified=accepted(version),
        uncovered=_UNCOVERED.format(uncovered=UNCOVERED) if version >= FILTERS else sql.SQL("false"),
        setting=sql.Literal(SETTING),
        table=TABLE,
        given=warning(
            "pg_catalog.format('levada gave table %s.%s REPLICA IDENTITY %s for the time in which another session has"
            " locked the publication, so that its UPDATEs and DELETEs do not fail', leaf.nspname, leaf.relname, lent)"
        ),
    )


def keep_chosen_body() -> sql.Composed:
    """Return the body of the function that forgets what was lent to tables for which the query names an identity."""
    return _KEEP_CHOSEN_BODY.format(setting=sql.Literal(SETTING), table=TABLE)


def give_back_body() -> sql.Composed:
    """Return the body of the function that gives identities back, and returns the number of those still lent."""
    return _GIVE_BACK_BODY.format(table=TABLE, owned=sql.Literal(OWNED), most=sql.Literal(_MOST), needed=_NEEDED)


@source_errors("reading the replica identities that were lent")
def still_lent(conn: psycopg.Connection[Any]) -> tuple[str, ...]:
    """Return the SQL that gives each table its own identity back. Call it only if this role owns the record."""
    if conn.execute(_RECORDED, [SEAL_SCHEMA]).fetchone() is None:
        return ()
    return tuple(text for (text,) in conn.execute(_STILL_LENT).fetchall())


def lent_for_long(conn: psycopg.Connection[Any]) -> LevadaError | None:
    """Return the error of tables that have another identity for now, None if there are none.

    Return None as well if this role cannot read the record.
    """
    try:
        statements = still_lent(conn)
    except StatementRefused as error:
        _log.debug("the record of lent identities cannot be read: %s", error.message)
        return None
    if not statements:
        return None
    one = len(statements) == 1
    return Transient(
        "identity_lent",
        f"{counted(len(statements), 'table')} {'has' if one else 'have'} another replica identity for now, because a"
        " session has the publication or a table locked",
        hint="end that session's transaction, which SELECT * FROM pg_locks WHERE granted shows, or run:"
        f" {statements[0]}",
    )


@source_errors("giving tables their replica identities back")
def give_back(conn: psycopg.Connection[Any]) -> bool:
    """Give tables the identities back that the trigger has replaced. Return False if some are still lent."""
    if conn.execute(_CALLABLE, [SEAL_SCHEMA]).fetchone() is None:
        return True
    return conn.execute(sql.SQL("SELECT {}()").format(GIVE_BACK)).fetchone() == (0,)
