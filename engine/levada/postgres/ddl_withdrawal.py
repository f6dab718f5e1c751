"""The SQL of the DDL trigger's function that takes tables out of publications with which their UPDATEs would fail."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from levada.postgres.lent_identities import LEND, ROOTS_IDENTITY
from levada.postgres.lent_identities import SETTING as LENDING
from levada.postgres.publication_owners import OWNED
from levada.postgres.readmissions import SETTING, record_statements
from levada.postgres.replica_identity import FILTERS, UNCOVERED, identified
from levada.postgres.seal import warning

# PostgreSQL refuses UPDATEs and DELETEs of a published table without a replica identity, or whose identity lacks a
# column of the row filter. A table of a publication that Levada manages leaves it, so that no statement fails that
# works without Levada. If the publication is locked, or the root of a partition, the leaves get another identity for
# the moment, the message names the table without the publication, and the engine takes it out.
#
# A transaction of a higher level than READ COMMITTED reads the members as of its first statement, but ALTER PUBLICATION
# knows the newest ones. So it is tried with each publication, and an error says that the table is no member. A newer
# identity shows in what PostgreSQL's own function says of the newest catalog, and so does a newer membership, which may
# have a row filter. A row with an xmax has a successor. The tree of a root has partitions that are newer, unless there
# are so many that it takes long. One that is not visible may have any identity but FULL. The statement may not have
# locked these tables, so the locks of this look end with it. A table may leave its publication without need.
#
# No plan is made of a table, not even by EXPLAIN: PostgreSQL would evaluate functions of its owner in rules and
# indexes, with the rights of the trigger's role.
#
# Another event trigger may refuse ALTER PUBLICATION, or fail in it. Then the statement runs without those that do not
# fire in the role of a replica, because the application's UPDATEs would fail for a statement that is not its own.
#
# A transaction of the level SERIALIZABLE records nothing: it would conflict with another one that reads the record, and
# one of the two would fail.
#
# One statement may concern many tables. So one lock is waited for, and no longer than a quarter of the time that the
# statement may take. Once that was in vain, the next ones are hardly waited for.
#
# A new partition does not inherit FULL of its root. It gets it here, because the root would leave the publication, and
# is announced as it is afterwards.
_WITHDRAW_BODY: Final = sql.SQL("""
DECLARE
    bare oid[];
    uncovered oid[];
    member record;
    withdrawn jsonb;
    kept text[];
    locked boolean := false;
    statement text;
    triggers text;
    patience text := '100ms';
    lacks boolean;
    newer record;
    older boolean := pg_catalog.current_setting('transaction_isolation') <> 'read committed';
BEGIN
    IF pg_catalog.current_setting({lending}, true) <> '' THEN
        RETURN NULL;
    END IF;
    {bare}
    {uncovered}
    IF bare IS NULL AND uncovered IS NULL THEN
        RETURN NULL;
    END IF;
    IF pg_catalog.current_setting('statement_timeout') <> '0' THEN
        patience := least(100, ceil(250 * pg_catalog.date_part(
            'epoch', pg_catalog.current_setting('statement_timeout')::interval)))::text;
        PERFORM pg_catalog.set_config('lock_timeout', patience, true);
    END IF;
    FOR member IN
        WITH RECURSIVE above(leaf, relid) AS (
            SELECT l.oid, i.inhparent FROM pg_catalog.pg_class l JOIN pg_catalog.pg_inherits i ON i.inhrelid = l.oid
            WHERE (l.oid = ANY (bare) OR uncovered IS NOT NULL AND l.oid = ANY (concerned) AND l.relkind = 'r')
                AND l.relispartition AND l.relreplident = 'd'
            UNION
            SELECT above.leaf, i.inhparent
            FROM above JOIN pg_catalog.pg_class c ON c.oid = above.relid AND c.relispartition
            JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.relid
        )
        SELECT DISTINCT l.oid AS relation, n.nspname, l.relname
        FROM above JOIN pg_catalog.pg_publication_rel r ON r.prrelid = above.relid
        JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid AND (p.pubupdate OR p.pubdelete)
        JOIN pg_catalog.pg_class c ON c.oid = above.relid AND c.relreplident = 'f'
        JOIN pg_catalog.pg_class l ON l.oid = above.leaf JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
        WHERE pg_catalog.obj_description(p.oid, 'pg_publication') ~ {owned}
    LOOP
        BEGIN
            PERFORM pg_catalog.set_config({lending}, 'yes', true);
            EXECUTE pg_catalog.format('ALTER TABLE %I.%I REPLICA IDENTITY FULL', member.nspname, member.relname);
            PERFORM pg_catalog.set_config({lending}, '', true);{roots_identity}
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE = '55P03' THEN
                PERFORM pg_catalog.set_config('lock_timeout', '1ms', true);
            END IF;
            {not_given};
        END;
    END LOOP;
    {bare}
    {uncovered}
    IF bare IS NULL AND uncovered IS NULL THEN
        RETURN NULL;
    END IF;
    FOR member IN
        WITH RECURSIVE above(relid) AS (
            SELECT unnest(bare)
            UNION
            SELECT i.inhparent FROM above JOIN pg_catalog.pg_class c ON c.oid = above.relid AND c.relispartition
            JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.relid
        )
        SELECT c.oid, n.nspname, c.relname, p.pubname, p.oid AS publication
        FROM above JOIN pg_catalog.pg_class c ON c.oid = above.relid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        CROSS JOIN pg_catalog.pg_publication p
        WHERE (p.pubupdate OR p.pubdelete) AND pg_catalog.obj_description(p.oid, 'pg_publication') ~ {owned}
            AND (older OR EXISTS (
                SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = c.oid AND r.prpubid = p.oid))
        UNION
        SELECT c.oid, n.nspname, c.relname, p.pubname, p.oid FROM pg_catalog.pg_publication_rel r
        JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
        WHERE r.oid = ANY (uncovered) AND pg_catalog.obj_description(p.oid, 'pg_publication') ~ {owned}
    LOOP
        BEGIN
            BEGIN
                IF pg_catalog.current_setting('transaction_isolation') <> 'serializable' THEN
                    {record}
                    PERFORM pg_catalog.set_config({setting}, 'yes', true);
                END IF;
            EXCEPTION WHEN OTHERS THEN
                {not_recorded};
            END;
            statement := pg_catalog.format(
                'ALTER PUBLICATION %I DROP TABLE ONLY %I.%I', member.pubname, member.nspname, member.relname);
            BEGIN
                EXECUTE statement;
            EXCEPTION WHEN lock_not_available THEN
                RAISE;
            WHEN OTHERS THEN
                -- It may be no member of this publication. A transaction that reads the newest ones knows that it is.
                IF older AND SQLSTATE = '42704' THEN
                    RAISE;
                END IF;
                triggers := pg_catalog.current_setting('session_replication_role');
                PERFORM pg_catalog.set_config('session_replication_role', 'replica', true);
                EXECUTE statement;
                PERFORM pg_catalog.set_config('session_replication_role', triggers, true);
            END;
            withdrawn := coalesce(withdrawn, '{{}}') || pg_catalog.jsonb_build_object(member.oid::text,
                coalesce(withdrawn->member.oid::text, '[]') || pg_catalog.to_jsonb(member.pubname::text));
        EXCEPTION WHEN undefined_object THEN
            NULL;
        WHEN OTHERS THEN
            withdrawn := coalesce(withdrawn, '{{}}') || pg_catalog.jsonb_build_object(member.oid::text,
                coalesce(withdrawn->member.oid::text, '[]') || 'null');
            kept := coalesce(kept, '{{}}') || pg_catalog.format(
                'table %s.%s without a replica identity out of publication %s: %s',
                member.nspname, member.relname, member.pubname, SQLERRM);
            IF SQLSTATE = '55P03' THEN
                locked := true;
                PERFORM pg_catalog.set_config('lock_timeout', '1ms', true);
            END IF;
        END;
    END LOOP;
    IF kept IS NOT NULL AND (
        NOT locked OR {lend}(CASE WHEN uncovered IS NULL THEN bare ELSE concerned END, patience)) THEN
        {not_taken};
    END IF;
    RETURN withdrawn;
END
""")

_MOST_LEAVES: Final = 200
_BARE: Final = sql.SQL("""
    SELECT array_agg(l.oid) INTO bare FROM pg_catalog.pg_class l
    WHERE l.oid = ANY (concerned) AND l.relkind = 'r' AND l.relpersistence = 'p' AND NOT {identified};
    IF older THEN
        FOR member IN
            SELECT l.oid, pg_catalog.format('%s %I.%I',
                CASE l.relkind WHEN 'r' THEN 'ONLY' END, n.nspname, l.relname) AS rows
            FROM pg_catalog.pg_class l JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
            WHERE l.oid = ANY (concerned) AND l.relpersistence = 'p' AND CASE l.relkind
                WHEN 'r' THEN l.relreplident <> 'f' OR l.xmax <> '0'
                WHEN 'p' THEN NOT l.relispartition AND pg_catalog.cardinality(concerned) < {most} END
        LOOP
            lacks := false;
            BEGIN
                EXECUTE pg_catalog.concat('LOCK TABLE ', member.rows, ' IN ROW EXCLUSIVE MODE NOWAIT');
                lacks := EXISTS (
                    SELECT FROM pg_catalog.pg_class c, LATERAL (
                        SELECT c.oid WHERE c.relkind = 'r'
                        UNION ALL
                        SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t WHERE c.relkind = 'p' AND t.isleaf
                    ) AS leaf(oid) LEFT JOIN pg_catalog.pg_class l ON l.oid = leaf.oid
                    WHERE c.oid = member.oid AND coalesce(l.relkind, 'r') = 'r'
                        AND (l.oid IS NULL OR l.relreplident <> 'f' OR l.xmax <> '0')
                        AND pg_catalog.pg_get_replica_identity_index(leaf.oid) IS NULL);{newer_filter}
                RAISE 'without the locks';
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
            IF lacks AND member.oid <> ALL (coalesce(bare, '{{}}')) THEN
                bare := pg_catalog.array_append(bare, member.oid);
            END IF;
        END LOOP;
    END IF;
""")

_NEWER_FILTER: Final = sql.SQL("""
                PERFORM pg_catalog.set_config('lock_timeout', '1ms', true);
                FOR newer IN
                    WITH RECURSIVE above(relid) AS (
                        SELECT member.oid
                        UNION
                        SELECT i.inhparent FROM above JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.relid
                    )
                    SELECT n.nspname::text, c.relname::text, p.pubname::text
                    FROM above JOIN pg_catalog.pg_class c ON c.oid = above.relid
                    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace CROSS JOIN pg_catalog.pg_publication p
                    WHERE NOT lacks AND (p.pubupdate OR p.pubdelete)
                        AND pg_catalog.obj_description(p.oid, 'pg_publication') ~ {owned}
                LOOP
                    BEGIN
                        lacks := lacks OR NOT EXISTS (
                            SELECT FROM pg_catalog.pg_publication_rel r WHERE r.xmax = '0' AND r.oid = (
                                SELECT a.objid FROM pg_catalog.pg_get_object_address('publication relation',
                                    ARRAY[newer.nspname, newer.relname], ARRAY[newer.pubname]) a));
                    EXCEPTION WHEN OTHERS THEN
                        NULL;
                    END;
                END LOOP;""")

_UNCOVERED: Final = sql.SQL("""
    WITH RECURSIVE above(leaf, relid) AS (
        SELECT l.oid, l.oid FROM pg_catalog.pg_class l WHERE l.oid = ANY (concerned) AND l.relkind = 'r'
        UNION
        SELECT above.leaf, i.inhparent FROM above
        JOIN pg_catalog.pg_class c ON c.oid = above.relid AND c.relispartition
        JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.relid
    )
    SELECT array_agg(DISTINCT r.oid) INTO uncovered
    FROM above JOIN pg_catalog.pg_publication_rel r ON r.prrelid = above.relid AND r.prqual IS NOT NULL
    JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid AND (p.pubupdate OR p.pubdelete)
    JOIN pg_catalog.pg_class l ON l.oid = above.leaf WHERE EXISTS ({uncovered});
""")


def withdraw_body(version: int) -> sql.Composed:
    """Return the body of the function for a server of this version."""
    return _WITHDRAW_BODY.format(
        bare=_BARE.format(
            identified=identified(version),
            most=sql.Literal(_MOST_LEAVES),
            newer_filter=_NEWER_FILTER.format(owned=sql.Literal(OWNED)) if version >= FILTERS else sql.SQL(""),
        ),
        uncovered=_UNCOVERED.format(uncovered=UNCOVERED) if version >= FILTERS else sql.SQL(""),
        owned=sql.Literal(OWNED),
        record=record_statements(version),
        setting=sql.Literal(SETTING),
        lend=LEND,
        not_given=warning(
            "pg_catalog.format('levada could not give partition %s.%s the replica identity of its root: %s',"
            " member.nspname, member.relname, SQLERRM)"
        ),
        not_recorded=warning(
            "pg_catalog.format('levada could not record that table %s.%s leaves publication %s: %s',"
            " member.nspname, member.relname, member.pubname, SQLERRM)"
        ),
        not_taken=warning("'levada could not take ' || pg_catalog.array_to_string(kept, ', ')"),
        roots_identity=ROOTS_IDENTITY,
        lending=sql.Literal(LENDING),
    )
