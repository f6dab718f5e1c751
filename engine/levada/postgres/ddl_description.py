"""The SQL of the DDL trigger's functions that describe an altered table.

`levada.postgres.ddl_functions` has those that find the tables, and creates all of them.
"""

from __future__ import annotations

from typing import Final

from psycopg import sql

from levada.postgres.description_sql import (
    ALTERED_LEAVES,
    CREATED_LEAF,
    DESCRIPTION_STEP,
    INDEX_STEPS,
    ROOT_STEPS,
    TYPED_STEPS,
)
from levada.postgres.readmissions import SETTING
from levada.postgres.seal import SEAL_SCHEMA

LONGEST: Final = 32_768
"""Bytes of a query's text that are announced. A script of megabytes would be announced with each ALTER in it."""
_LONGEST_BELOW: Final = 2048
"""The same for a table below the one that the statement names, because there may be thousands."""

_ORDINARY: Final = sql.SQL("""c.relreplident = 'd' AND c.relpersistence = 'p' AND c.relkind = 'r'
            AND NOT c.relhassubclass AND NOT c.relispartition AND NOT x.generated
            AND pg_catalog.current_setting('transaction_isolation') = 'read committed'
            AND coalesce(pg_catalog.current_setting({setting}, true), '') = '' AND k.keyed""")

_STREAMED_BODY: Final = sql.SQL("""
BEGIN
    RETURN (SELECT array_agg(c.oid ORDER BY c.oid) FROM pg_catalog.pg_class c
        WHERE c.oid = ANY (concerned) AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {itself});
END
""")

# REPEATABLE READ and SERIALIZABLE read the catalog as of the transaction's first statement. A visible row that a later
# transaction has replaced or deleted shows that another one has altered the table since. One that was rolled back has
# not, such as a savepoint of this transaction: the number with its epoch is the one within 2^31 of this transaction's.
_OUTDATED: Final = sql.SQL("""EXISTS (
    SELECT FROM (
        SELECT r.xmax FROM pg_catalog.pg_class r WHERE r.oid = relation
        UNION ALL SELECT a.xmax FROM pg_catalog.pg_attribute a WHERE a.attrelid = relation
        UNION ALL SELECT i.xmax FROM pg_catalog.pg_index i WHERE i.indrelid = relation
    ) AS seen(replaced_by)
    WHERE replaced_by <> '0' AND pg_catalog.age(replaced_by)
        <= pg_catalog.age(pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.xid)
        AND pg_catalog.pg_xact_status((pg_catalog.txid_current() + 2147483648 - (
            (pg_catalog.txid_current() + 2147483648 - replaced_by::text::bigint) & 4294967295))::text::xid8)
            IS DISTINCT FROM 'aborted')
""")

# The publications that have a relation, or a table above it, as a member. No function of PostgreSQL's, because
# pg_get_publication_tables would wait for each published table that another session has locked.
_MEMBERS: Final = sql.SQL("""above(relid) AS (
        SELECT {relation}
        UNION ALL
        SELECT i.inhparent FROM above JOIN pg_catalog.pg_class r ON r.oid = above.relid AND r.relispartition
        JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.relid
    ), member(relid, publication) AS (
        SELECT above.relid, p.oid FROM above, pg_catalog.pg_publication p WHERE p.puballtables
        UNION ALL
        SELECT above.relid, r.prpubid FROM above JOIN pg_catalog.pg_publication_rel r ON r.prrelid = above.relid
        {schemas}
    )
""")
# Schemas of publications exist since version 15.
_SCHEMAS: Final = sql.SQL("""UNION ALL
        SELECT above.relid, s.pnpubid FROM above JOIN pg_catalog.pg_class r ON r.oid = above.relid
        JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = r.relnamespace
""")

# Whether relation c is streamed under its own name. It may be unlogged: FOR ALL TABLES and TABLES IN SCHEMA leave such
# a table out for a while, which no catalog row shows once it is logged again.
_STREAMED_ITSELF: Final = sql.SQL("""EXISTS (
    WITH RECURSIVE {members} SELECT FROM member m JOIN pg_catalog.pg_publication p ON p.oid = m.publication
    GROUP BY p.oid, p.pubviaroot
    HAVING CASE WHEN p.pubviaroot THEN pg_catalog.bool_and(m.relid = c.oid) ELSE c.relkind = 'r' END)
""")

# All tables below a partitioned one, by the publications that stream their changes as those of a table above. A table
# that is published itself stays in its publication when it is attached, but is no longer streamed under its name.
_PARTITIONS: Final = sql.SQL("""(
    WITH RECURSIVE {members}, below(relid) AS (
        SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = relation
        UNION ALL
        SELECT i.inhrelid FROM below JOIN pg_catalog.pg_inherits i ON i.inhparent = below.relid
    )
    SELECT pg_catalog.jsonb_object_agg(p.pubname, (SELECT pg_catalog.jsonb_agg(relid::bigint) FROM below))
    FROM pg_catalog.pg_publication p WHERE p.pubviaroot AND p.oid IN (SELECT publication FROM member))
""")

# A cast function of somebody's own can make any text of an enum's value.
_ENUM_CASTS: Final = sql.SQL("""EXISTS (
    SELECT FROM pg_catalog.pg_cast k JOIN pg_catalog.pg_type t ON t.oid IN (k.castsource, k.casttarget)
    WHERE k.oid >= 16384 AND k.castfunc <> 0 AND t.typtype = 'e')
""")

# The query's text is announced if it shows this statement. A statement that a function or a trigger runs, in whatever
# language, has a context outside of the event trigger's.
#
# The locks of the whole server are read only for tables that the statement did not name: ALTER TYPE locks some, and
# ALTER TABLE ONLY does not lock the children.
_DESCRIBE_BODY: Final = sql.SQL("""
DECLARE
    described record;
    query text;
    stack text;
    partitions jsonb;
    outdated boolean := false;
BEGIN
    {description} AND (NOT ordinary OR {ordinary});
    IF NOT FOUND THEN
        IF ordinary THEN
            RETURN NULL;
        END IF;
        RAISE no_data_found;
    ELSIF described.complete THEN
        RETURN described.description;
    END IF;
    IF described.relreplident = 'i' THEN
        {index}
    END IF;
    IF described.typed THEN
        {typed}
    END IF;
    IF pg_catalog.strpos(pg_catalog.lower(pg_catalog.current_query()), 'type') > 0
        AND pg_catalog.octet_length(pg_catalog.current_query()) <= {longest}
        AND (locked OR pg_catalog.octet_length(pg_catalog.current_query()) <= {below})
        AND pg_catalog.current_query() ~* '[[:<:]]type[[:>:]]'
        AND pg_catalog.current_setting('standard_conforming_strings') = 'on'
    THEN
        GET DIAGNOSTICS stack = PG_CONTEXT;
        IF stack ~ {outermost} AND NOT {enum_casts} THEN
            query := pg_catalog.current_query();
        END IF;
    END IF;
    IF NOT locked THEN
        locked := EXISTS (SELECT FROM pg_catalog.pg_locks l
            WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.granted AND l.relation = $1
            AND l.mode IN (
                'ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'));
    END IF;
    IF described.relkind = 'p' THEN
        {root}
        partitions := {partitions};
    END IF;
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        outdated := {outdated};
    END IF;
    RETURN described.description || pg_catalog.jsonb_build_object(
        'query', query, 'partitions', partitions, 'locked', locked, 'outdated', outdated);
END
""")

# NULL if no new table below the relation stores rows, and if no altered one is below it.
_DESCRIBE_LEAVES_BODY: Final = sql.SQL("""
BEGIN
    IF NOT created THEN
        RETURN (SELECT pg_catalog.jsonb_build_object('id', relation::bigint, 'altered', altered)
            FROM ({altered}) AS found(altered) WHERE altered IS NOT NULL);
    END IF;
    RETURN (SELECT pg_catalog.jsonb_build_object(
            'id', relation::bigint, 'created', pg_catalog.jsonb_object_agg(l.oid::text, {leaf}))
        FROM pg_catalog.pg_class c, pg_catalog.pg_class l JOIN pg_catalog.pg_namespace s ON s.oid = l.relnamespace
        WHERE c.oid = relation AND l.oid = ANY (leaves) AND l.relkind = 'r'
            AND c.oid IN (SELECT a.relid FROM pg_catalog.pg_partition_ancestors(l.oid) a)
        HAVING pg_catalog.count(*) > 0);
END
""")


def outermost(function: str) -> str:
    """Return what matches PG_CONTEXT below this function if it is called for the client's own statement."""
    return rf"\y{SEAL_SCHEMA}\.{function}\(\)[^\n]*$"


def describe_body(version: int) -> sql.Composed:
    """Return the body of the function ``describe`` for a server of this version."""
    return _DESCRIBE_BODY.format(
        description=DESCRIPTION_STEP,
        ordinary=_ORDINARY.format(setting=sql.Literal(SETTING)),
        index=INDEX_STEPS,
        typed=TYPED_STEPS,
        root=ROOT_STEPS,
        longest=sql.Literal(LONGEST),
        below=sql.Literal(_LONGEST_BELOW),
        outermost=sql.Literal(outermost("emit_table_change")),
        enum_casts=_ENUM_CASTS,
        partitions=_PARTITIONS.format(members=_members(version, "relation")),
        outdated=_OUTDATED,
    )


def describe_leaves_body() -> sql.Composed:
    """Return the body of the function ``describe_leaves``."""
    return _DESCRIBE_LEAVES_BODY.format(leaf=CREATED_LEAF, altered=ALTERED_LEAVES)


def streamed_body(version: int) -> sql.Composed:
    """Return the body of the function ``streamed`` for a server of this version."""
    return _STREAMED_BODY.format(itself=_STREAMED_ITSELF.format(members=_members(version, "c.oid")))


def _members(version: int, relation: str) -> sql.Composed:
    return _MEMBERS.format(relation=sql.SQL(relation), schemas=_SCHEMAS if version >= 150000 else sql.SQL(""))
