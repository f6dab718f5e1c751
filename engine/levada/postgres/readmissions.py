"""Tables that the DDL trigger has taken out of a publication and added again in the same transaction.

``DROP CONSTRAINT t_pkey`` and ``ADD PRIMARY KEY`` are often two statements of one transaction. Between them the table
is not published. A row of `TABLE` says that nothing was written meanwhile. Then the new member of the publication
stands for the former one, and no copy is needed.

The table is unlogged, so that no publication has it. After a crash it is empty, and the tables are copied again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from levada.postgres.publication_owners import OWNED
from levada.postgres.replica_identity import identified
from levada.postgres.seal import SEAL_SCHEMA, warning

TABLE: Final = sql.Identifier(SEAL_SCHEMA, "withdrawn")
SETTING: Final = "levada_ddl.withdrawn"
"""Set to a text in a transaction that has withdrawn a table. Anybody may set it, so it only shows where to look."""
CONTENT: Final = sql.Identifier(SEAL_SCHEMA, "content")

CREATE_TABLE: Final = sql.SQL("""
CREATE UNLOGGED TABLE {table} (member oid PRIMARY KEY, publication oid NOT NULL, relation oid NOT NULL,
    transaction xid8 NOT NULL, content text, successor oid)
""").format(table=TABLE)

# The counters include earlier transactions of the session. A TRUNCATE sets those of its own transaction back, and keeps
# the file if the transaction has made it. So a file that this transaction may have made shows nothing, unless nothing
# was counted: then an emptied table has another size.
CONTENT_BODY: Final = sql.SQL("""
BEGIN
    RETURN (WITH RECURSIVE below(relid) AS (
        SELECT relation
        UNION ALL
        SELECT i.inhrelid FROM below JOIN pg_catalog.pg_class c ON c.oid = below.relid AND c.relkind = 'p'
        JOIN pg_catalog.pg_inherits i ON i.inhparent = below.relid
    ), leaf AS (
        SELECT c.oid, c.xmin,
            pg_catalog.pg_relation_filenode(c.oid) AS file, pg_catalog.pg_relation_size(c.oid) AS size,
            pg_catalog.pg_stat_get_xact_tuples_inserted(c.oid) AS inserted,
            pg_catalog.pg_stat_get_xact_tuples_updated(c.oid) AS updated,
            pg_catalog.pg_stat_get_xact_tuples_deleted(c.oid) AS deleted
        FROM below JOIN pg_catalog.pg_class c ON c.oid = below.relid AND c.relkind = 'r'
    )
    SELECT CASE WHEN pg_catalog.current_setting('track_counts')::boolean AND bool_and(inserted + updated + deleted = 0
            OR pg_catalog.age(xmin) > pg_catalog.age(pg_catalog.pg_current_xact_id()::xid))
        THEN coalesce(string_agg(
            pg_catalog.concat_ws(' ', oid, file, size, inserted, updated, deleted), ',' ORDER BY oid), '') END
    FROM leaf);
END
""")

# A member with a row filter or a column list is not made again.
_RECORD: Final = """
                DELETE FROM {table} w WHERE w.member IN (
                    SELECT v.member FROM {table} v
                    WHERE v.transaction <> pg_catalog.pg_current_xact_id() AND NOT EXISTS (
                        SELECT FROM pg_catalog.pg_publication_rel r
                        WHERE r.prrelid = v.relation AND r.prpubid = v.publication)
                    FOR UPDATE SKIP LOCKED);
                INSERT INTO {table}
                SELECT r.oid, r.prpubid, r.prrelid, pg_catalog.pg_current_xact_id(), {content}(r.prrelid)
                FROM pg_catalog.pg_publication_rel r
                WHERE r.prrelid = member.oid AND r.prpubid = member.publication {unlimited};
"""

_READMIT_BODY: Final = sql.SQL("""
DECLARE
    member record;
    readmitted jsonb;
BEGIN
    FOR member IN
        SELECT w.member, w.relation, w.publication, p.pubname, n.nspname, c.relname
        FROM {table} w JOIN pg_catalog.pg_publication p ON p.oid = w.publication
        JOIN pg_catalog.pg_class c ON c.oid = w.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE w.transaction = pg_catalog.pg_current_xact_id() AND w.successor IS NULL AND w.relation = ANY (concerned)
            AND pg_catalog.obj_description(p.oid, 'pg_publication') ~ {owned}
            AND w.content = {content}(w.relation)
            AND NOT EXISTS (
                WITH RECURSIVE below(relid) AS (
                    SELECT w.relation
                    UNION ALL
                    SELECT i.inhrelid FROM below JOIN pg_catalog.pg_class b ON b.oid = below.relid AND b.relkind = 'p'
                    JOIN pg_catalog.pg_inherits i ON i.inhparent = below.relid
                )
                SELECT FROM below JOIN pg_catalog.pg_class l ON l.oid = below.relid AND l.relkind = 'r'
                WHERE l.relpersistence <> 'p' OR NOT {identified})
    LOOP
        BEGIN
            EXECUTE pg_catalog.format(
                'ALTER PUBLICATION %I ADD TABLE ONLY %I.%I', member.pubname, member.nspname, member.relname);
            UPDATE {table} w SET successor = r.oid FROM pg_catalog.pg_publication_rel r
            WHERE w.member = member.member AND r.prrelid = member.relation AND r.prpubid = member.publication;
            readmitted := coalesce(readmitted, '{{}}') || pg_catalog.jsonb_build_object(member.relation::text,
                coalesce(readmitted->member.relation::text, '[]') || pg_catalog.to_jsonb(member.pubname::text));
        EXCEPTION WHEN OTHERS THEN
            {not_added};
        END;
    END LOOP;
    RETURN readmitted;
END
""")

# The role of the trigger has made the table, as a superuser. Nobody else can write it.
_READABLE: Final[LiteralString] = """
SELECT FROM pg_catalog.pg_class k JOIN pg_catalog.pg_namespace n ON n.oid = k.relnamespace
JOIN pg_catalog.pg_event_trigger t ON t.evtowner = k.relowner
WHERE n.nspname = %s AND k.relname = 'withdrawn' AND k.relkind = 'r' AND t.evtname = 'levada_ddl'
    AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(k.oid, 'SELECT')
    AND NOT pg_catalog.pg_is_in_recovery()
"""


def record_statements(version: int) -> sql.Composed:
    """Return the statements that record a member before it is withdrawn, on a server of this version."""
    unlimited = sql.SQL("AND r.prqual IS NULL AND r.prattrs IS NULL" if version >= 150000 else "")
    return sql.SQL(_RECORD).format(table=TABLE, content=CONTENT, unlimited=unlimited)


def readmit_body(version: int) -> sql.Composed:
    """Return the body of the function that adds tables again, on a server of this version."""
    return _READMIT_BODY.format(
        table=TABLE,
        content=CONTENT,
        owned=sql.Literal(OWNED),
        identified=identified(version),
        not_added=warning(
            "pg_catalog.format('levada could not add table %s.%s to publication %s again: %s',"
            " member.nspname, member.relname, member.pubname, SQLERRM)"
        ),
    )


def read_successors(conn: psycopg.Connection[Any]) -> Mapping[int, int]:
    """Return the former OID of each member of a publication that stands for a former one without a gap."""
    if conn.execute(_READABLE, [SEAL_SCHEMA]).fetchone() is None:
        return {}
    rows = conn.execute(sql.SQL("SELECT successor, member FROM {} WHERE successor IS NOT NULL").format(TABLE))
    return dict(rows.fetchall())
