"""The query that describes one table. It runs for a copy and inside the source's DDL trigger.

`levada.postgres.description` reads what it returns.
"""

from __future__ import annotations

from typing import Final, LiteralString

from psycopg import sql

from levada.schema.types import BUILT_IN

_TYPES: Final[LiteralString] = """
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'oid', t.oid::bigint, 'name', t.typname, 'typtype', t.typtype, 'baseOid', t.typbasetype::bigint,
    'baseTypmod', t.typtypmod, 'elementOid', coalesce(e.oid, 0)::bigint)), '[]')
FROM used u
JOIN pg_catalog.pg_type t ON t.oid = u.oid
-- int2vector and oidvector have elements but not an array's text; box[] has another delimiter.
LEFT JOIN pg_catalog.pg_type e
    ON e.oid = t.typelem AND t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc AND e.typdelim = ','
WHERE t.typtype <> 'b' OR e.oid IS NOT NULL
"""

_BELOW: Final[LiteralString] = """
SELECT x.oid FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid,
LATERAL (VALUES (t.typbasetype), (t.typelem)) AS x(oid) WHERE x.oid <> 0
"""

TYPES_QUERY: Final = sql.SQL("WITH RECURSIVE used(oid) AS (SELECT unnest(%s::oid[]) UNION " + _BELOW + ")" + _TYPES)
"""The types of a list of OIDs, and the types that they refer to, as one JSON array."""

# NOT NULL constraints that are not validated exist since version 18. An index with their columns may be the replica
# identity, although rows from before have NULL there.
_VALIDATION: Final[LiteralString] = """CASE WHEN i.indisreplident AND NOT i.indisprimary THEN (
            SELECT pg_catalog.string_agg('ALTER TABLE ' || quote_ident(n.nspname) || '.' || quote_ident(c.relname)
                || ' VALIDATE CONSTRAINT ' || quote_ident(k.conname), '; ' ORDER BY k.conname)
            FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'n' AND NOT k.convalidated
                AND k.conkey[1] = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) END"""

_INDEX: Final[LiteralString] = "jsonb_build_array(i.indkey, i.indnkeyatts, i.indisprimary, i.indisreplident, "

_FROM_INDEXES: Final[LiteralString] = """FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND (i.indisprimary OR i.indisreplident)"""

_INDEXES: Final = "(SELECT jsonb_agg(" + _INDEX + _VALIDATION + ")) " + _FROM_INDEXES + ")"

# The constraint keeps its OID when its index is made again concurrently, and the index keeps its own in pg_upgrade.
_PRIMARY: Final[LiteralString] = """(
    SELECT jsonb_build_array(k.oid::bigint, k.conindid::bigint, c.relreplident = 'f')
    FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p')"""

_USED_TYPES: Final[LiteralString] = """
WITH RECURSIVE used(oid) AS (
    SELECT a.atttypid FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT x.oid FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid, LATERAL (
        SELECT t.typbasetype UNION ALL SELECT t.typelem
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS x(oid) WHERE x.oid <> 0
)
"""

# ATTACH PARTITION updates the pg_attribute row of each inherited column by the command that adds the pg_inherits row.
# CREATE TABLE ... PARTITION OF adds the columns by an earlier command. So a column's row that is older than the
# pg_inherits row shows that the table was created as a partition. Rows of an attached table may have been inserted
# before, also in the same transaction, and were not streamed as the root's. Later statements make columns' rows newer.
# Only a savepoint that was rolled back leaves an xmax, and then an unrelated number as the cmin. Each level up to the
# root must be created in this way, because a table that was attached later may already have had rows.
# pg_relation_size waits for a relation that another session has locked, so it is called only where it matters.
_NO_BLOCK: Final[LiteralString] = "coalesce(pg_catalog.pg_relation_size(l.oid) = 0, true)"

_IDENTITY_COLUMNS: Final[LiteralString] = """
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_attribute a
    ON a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = x.oid AND i.indisvalid AND i.indimmediate
AND (i.indisprimary AND x.relreplident = 'd' OR i.indisreplident AND x.relreplident = 'i')
"""
_LEAF_COLUMNS: Final = _IDENTITY_COLUMNS.replace("x.", "l.")
_ROOT_COLUMNS: Final = _IDENTITY_COLUMNS.replace("x.", "c.")

# The columns of the root are read once for all partitions, and those of each partition once, because an application
# waits for this. The attnums of a partition may differ from the root's, so columns are compared by name. PostgreSQL
# itself refuses UPDATE and DELETE of a partition without an identity.
_FLAW: Final[LiteralString] = (
    """
CASE
    WHEN l.oid = c.oid THEN NULL
    WHEN l.relkind = 'f' THEN jsonb_build_array('foreign', s.nspname, l.relname, (
        SELECT 'ALTER TABLE ' || quote_ident(n.nspname) || '.' || quote_ident(p.relname) || ' DETACH PARTITION '
            || quote_ident(s.nspname) || '.' || quote_ident(l.relname)
        FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
        JOIN pg_catalog.pg_namespace n ON n.oid = p.relnamespace WHERE i.inhrelid = l.oid))
    WHEN l.relpersistence <> 'p' THEN jsonb_build_array('unlogged', s.nspname, l.relname,
        'ALTER TABLE ' || quote_ident(s.nspname) || '.' || quote_ident(l.relname) || ' SET LOGGED')
    WHEN l.relreplident <> 'f' AND (
        SELECT pg_catalog.count(*) > 0 AND (c.relreplident = 'f'
            OR NOT pg_catalog.array_agg(a.attname) @> ARRAY(SELECT a.attname"""
    + _ROOT_COLUMNS
    + ")) "
    + _LEAF_COLUMNS
    + """) THEN jsonb_build_array('identity', s.nspname, l.relname,
        'ALTER TABLE ' || quote_ident(s.nspname) || '.' || quote_ident(l.relname) || ' REPLICA IDENTITY ' || CASE
            WHEN c.relreplident = 'd' AND l.relreplident <> 'd' THEN 'DEFAULT'
            WHEN c.relreplident <> 'f' THEN coalesce((
                SELECT 'USING INDEX ' || quote_ident(n.relname)
                FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class n ON n.oid = i.indexrelid,
                LATERAL pg_catalog.pg_partition_ancestors(i.indexrelid) p JOIN pg_catalog.pg_index r
                    ON r.indexrelid = p.relid AND r.indrelid = c.oid
                WHERE i.indrelid = l.oid AND CASE c.relreplident WHEN 'd' THEN r.indisprimary ELSE r.indisreplident END
                LIMIT 1), 'FULL')
            ELSE 'FULL'
        END)
END"""
)

# With the relation's OID in place of 0, pg_get_expr would wait for a partition that another session has locked.
_BOUND: Final[LiteralString] = (
    "jsonb_build_array(jsonb_build_array(i.inhparent::bigint, pg_catalog.pg_get_expr(k.relpartbound, 0),"
    " i.xmin::text::bigint, CASE WHEN i.xmax = 0 THEN i.cmin::text::bigint ELSE -1 END))"
)

# The collations C and POSIX have these OIDs in every database. Others may have their names.
# A bound says exactly which rows a partition has, if PostgreSQL compares values of the columns as anybody does.
_KEYS: Final[LiteralString] = """(
    WITH RECURSIVE tree(oid) AS (
        SELECT c.oid
        UNION ALL
        SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
    )
    SELECT coalesce(jsonb_object_agg(p.partrelid::text, jsonb_build_array(p.partstrat, (
        SELECT jsonb_agg(a.attname ORDER BY k.place)
        FROM unnest(p.partattrs::int2[]) WITH ORDINALITY AS k(attnum, place)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.attnum),
        p.partexprs IS NULL AND NOT EXISTS (
            SELECT FROM unnest(p.partclass::oid[]) AS u(oid) JOIN pg_catalog.pg_opclass o ON o.oid = u.oid
            WHERE NOT o.opcdefault OR o.opcnamespace <> 11)
        AND NOT EXISTS (
            SELECT FROM unnest(p.partcollation::oid[]) AS u(oid) JOIN pg_catalog.pg_collation o ON o.oid = u.oid
            WHERE CASE p.partstrat WHEN 'l' THEN NOT o.collisdeterministic ELSE o.oid NOT IN (950, 951)
                OR pg_catalog.current_setting('server_encoding') <> 'UTF8' END))), '{}')
    FROM tree JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = tree.oid
)"""

# The command's number in a row's version. After a savepoint that was rolled back it is another number.
_CMIN: Final[LiteralString] = "CASE WHEN x.xmax = 0 THEN x.cmin::text::bigint ELSE -1 END"

_BORN: Final[LiteralString] = """tree.born AND i.xmax = 0 AND EXISTS (
            SELECT FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = i.inhrelid AND a.attnum > 0 AND a.attinhcount > 0 AND NOT a.attisdropped
            AND a.xmin = i.xmin AND a.xmax = 0 AND a.cmin::text::bigint < i.cmin::text::bigint)"""

_LEAF: Final[LiteralString] = (
    """jsonb_build_array(l.relfilenode::bigint, l.xmin::text::bigint,
        CASE WHEN tree.born THEN false ELSE """
    + _NO_BLOCK
    + """ END, tree.born, """
    + _FLAW
    + ", "
    + _CMIN.replace("x.", "l.")
    + ", tree.path)"
)

_LEAVES: Final[LiteralString] = (
    """(
    WITH RECURSIVE tree(oid, born, path) AS (
        SELECT c.oid, true, '[]'::jsonb
        UNION ALL
        SELECT i.inhrelid, """
    + _BORN
    + ", tree.path || "
    + _BOUND
    + """
        FROM tree
        JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
        JOIN pg_catalog.pg_class k ON k.oid = i.inhrelid
        WHERE c.relkind = 'p'
    )
    SELECT coalesce(jsonb_object_agg(l.oid::text, """
    + _LEAF
    + """), '{}')
    FROM tree JOIN pg_catalog.pg_class l ON l.oid = tree.oid
    JOIN pg_catalog.pg_namespace s ON s.oid = l.relnamespace WHERE l.relkind IN ('r', 'f')
)"""
)

# What _LEAVES returns for a table that is not partitioned. Its size is of interest only if this transaction has made
# the file. Then no other session has locked it.
_ONE_LEAF: Final[LiteralString] = (
    """jsonb_build_array(c.relfilenode, c.xmin, c.cmin, c.xmax,
        CASE WHEN pg_catalog.age(c.xmin) <= 0 THEN """
    + _NO_BLOCK.replace("l.", "c.")
    + " ELSE false END)"
)

_STORED_COLUMN: Final[LiteralString] = (
    """jsonb_build_array(a.atttypid::bigint, a.atttypmod, a.xmin::text::bigint, a.attgenerated <> '', a.attname, """
    + _CMIN.replace("x.", "a.")
    + """, a.atthasmissing, CASE WHEN a.atthasdef THEN d.oid::bigint ELSE 0 END)"""
)

_STORED_COLUMNS: Final[LiteralString] = (
    "(SELECT coalesce(jsonb_object_agg(a.attnum::text, "
    + _STORED_COLUMN
    + """), '{}')
    FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
)"""
)

_STORED_TYPES: Final[LiteralString] = (
    "("
    + _USED_TYPES
    + """
    SELECT coalesce(jsonb_object_agg(t.oid::text, jsonb_build_array(t.typtype, t.typname, coalesce(
        (SELECT jsonb_object_agg(e.oid::text, e.enumlabel) FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid),
        (SELECT jsonb_object_agg(a.attnum::text, a.atttypid::bigint || ' ' || a.atttypmod)
         FROM pg_catalog.pg_attribute a
         WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
        '{}'), t.typbasetype::bigint)), '{}')
    FROM used u JOIN pg_catalog.pg_type t ON t.oid = u.oid WHERE t.typtype IN ('c', 'd', 'e')
)"""
)

_STORAGE: Final[LiteralString] = (
    "jsonb_build_object('leaves', "
    + _LEAVES
    + ", 'columns', "
    + _STORED_COLUMNS
    + ", 'types', "
    + _STORED_TYPES
    + ", 'primary', "
    + _PRIMARY
    + ", 'keys', CASE WHEN c.relkind = 'p' THEN "
    + _KEYS
    + " END)"
)

_OWN_TYPES: Final[LiteralString] = (
    """(
    WITH RECURSIVE used(oid) AS (
        SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        UNION """
    + _BELOW
    + ")"
    + _TYPES
    + ")"
)

# A partitioned table has no rows. Only its partitions have values for rows older than the column. A default such as
# now() or a function is evaluated for each partition, and may differ.
# pg_partition_tree would wait for a partition that another session has locked.
_MISSING_BY_NAME: Final[LiteralString] = """(
    WITH RECURSIVE below(relid) AS (
        SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid
        UNION ALL
        SELECT i.inhrelid FROM below JOIN pg_catalog.pg_inherits i ON i.inhparent = below.relid
    )
    SELECT jsonb_object_agg(m.name, m.value) FROM (
        SELECT l.attname, pg_catalog.min(pg_catalog.array_to_string(l.attmissingval, ''))
        FROM below JOIN pg_catalog.pg_attribute l ON l.attrelid = below.relid AND l.attnum > 0
        WHERE l.atthasmissing AND NOT l.attisdropped GROUP BY l.attname
        HAVING pg_catalog.count(DISTINCT pg_catalog.array_to_string(l.attmissingval, '')) = 1
    ) AS m(name, value)
)"""

# One array for each column, also a generated one. Whatever can be computed from a row of the catalog is computed by
# the reader, because a session looks up each function and operator that a query names at its first use.
_COLUMN: Final[LiteralString] = """jsonb_build_array(
        a.attnum, a.attname, a.atttypid, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull,
        a.attgenerated, a.attidentity, a.xmin, a.cmin, a.xmax, a.atthasmissing,
        CASE WHEN a.atthasmissing THEN pg_catalog.array_to_string(a.attmissingval, '') END,
        CASE WHEN a.atthasdef THEN (
            SELECT d.oid FROM pg_catalog.pg_attrdef d WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum) END)"""

_FROM_COLUMNS: Final[LiteralString] = (
    "FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
)

_COLUMNS: Final = "(SELECT jsonb_agg(" + _COLUMN + ") " + _FROM_COLUMNS + ")"

_FILLED_BY_TYPE: Final[LiteralString] = """(
    SELECT jsonb_agg(a.attnum) FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND t.typdefault IS NOT NULL)"""

_DESCRIPTION: Final[LiteralString] = (
    """
SELECT jsonb_build_object(
    'id', c.oid, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
    'replicaIdentity', c.relreplident, 'indexes', """
    + _INDEXES
    + ", 'types', "
    + _OWN_TYPES
    + ", 'filledByType', "
    + _FILLED_BY_TYPE
    + ", 'columns', "
    + _COLUMNS
    + ", 'missing', CASE WHEN c.relkind = 'p' THEN "
    + _MISSING_BY_NAME
    + " END, 'leaves', "
    + _LEAVES
    + ", 'storedTypes', "
    + _STORED_TYPES
    + ", 'primary', "
    + _PRIMARY
    + ", 'keys', CASE WHEN c.relkind = 'p' THEN "
    + _KEYS
    + """ END)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""
)

# mypy does not know that a text of digits is literal enough.
_BUILT_IN_OIDS: Final = "'{" + ",".join(map(str, sorted(BUILT_IN))) + "}'::oid[]"

# A session plans each query before it runs it, which takes most of the time of one description, and opens each catalog
# that the query names with all of its indexes. So what each table needs is read by one query, which reads each catalog
# once, and the parts that few tables need are queries of their own.
DESCRIPTION_STEP: Final = sql.SQL(
    """
    SELECT c.oid, c.relkind, c.relreplident, x.typed,
        NOT x.typed AND locked AND c.relkind = 'r' AND c.relreplident <> 'i'
            AND pg_catalog.strpos(pg_catalog.lower(pg_catalog.current_query()), 'type') = 0
            AND pg_catalog.current_setting('transaction_isolation') = 'read committed' AS complete,
        jsonb_build_object('id', c.oid, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
            'replicaIdentity', c.relreplident, 'logged', c.relpersistence = 'p', 'locked', locked,
            'indexes', k.indexes, 'columns', x.columns, 'leaf', """
    + _ONE_LEAF
    + """) AS description INTO described
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace, LATERAL (
        SELECT bool_or(a.attgenerated <> '') AS generated, bool_or(a.atttypid <> ALL ("""
    + _BUILT_IN_OIDS
    + ")) AS typed, jsonb_agg("
    + _COLUMN
    + ") AS columns "
    + _FROM_COLUMNS
    + ") x, LATERAL (SELECT bool_or(i.indisprimary) AS keyed, jsonb_agg("
    + _INDEX
    + "NULL)) AS indexes "
    + _FROM_INDEXES
    + """) k
    WHERE c.oid = relation"""
)
"""The same as `DESCRIPTION_QUERY`, as a step of a function in PL/pgSQL for the relation ``relation``.

It sets the record ``described``. The function adds the end of the WHERE clause. If the record is not ``complete``, its
``description`` lacks what `INDEX_STEPS`, `TYPED_STEPS` and `ROOT_STEPS` add, or what may be known of the statement.
"""

INDEX_STEPS: Final = sql.SQL(
    "described.description := described.description || (SELECT jsonb_build_object('indexes', "
    + _INDEXES
    + ") FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = relation);"
)
"""The part of a table whose replica identity is an index."""

TYPED_STEPS: Final = sql.SQL(
    "described.description := described.description || (SELECT jsonb_build_object('types', "
    + _OWN_TYPES
    + ", 'filledByType', "
    + _FILLED_BY_TYPE
    + ", 'storedTypes', "
    + _STORED_TYPES
    + ") FROM pg_catalog.pg_class c WHERE c.oid = relation);"
)
"""The part of a table that has columns of types that are not built in."""

ROOT_STEPS: Final = sql.SQL(
    "described.description := described.description || (SELECT jsonb_build_object('missing', "
    + _MISSING_BY_NAME
    + ", 'leaves', "
    + _LEAVES
    + ", 'keys', "
    + _KEYS
    + ") FROM pg_catalog.pg_class c WHERE c.oid = relation);"
)
"""The part of a partitioned table."""

STORAGE_QUERY: Final = sql.SQL(_STORAGE)
"""The storage of relation ``c`` as one JSON object, as `levada.schema.storage` reads it."""

STORAGE_WITHOUT_SIZES: Final = sql.SQL(_STORAGE.replace(_NO_BLOCK, "false"))
"""The same query without `pg_relation_size`, which may wait for a lock. No attached partition counts as empty."""

CREATED_LEAF: Final = sql.SQL(
    "jsonb_build_array(l.relfilenode::bigint, l.xmin::text::bigint, true, true, "
    + _FLAW
    + ", "
    + _CMIN.replace("x.", "l.")
    + """, (
    SELECT jsonb_agg("""
    + _BOUND
    + """->0 ORDER BY a.place DESC)
    FROM pg_catalog.pg_partition_ancestors(l.oid) WITH ORDINALITY AS a(relid, place)
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.relid JOIN pg_catalog.pg_class k ON k.oid = a.relid
    WHERE a.relid NOT IN (SELECT u.relid FROM pg_catalog.pg_partition_ancestors(c.oid) AS u)))"""
)
"""The storage of leaf ``l`` in schema ``s``, which this statement has created below root ``c``."""

ALTERED_LEAVES: Final = sql.SQL(
    """
    WITH RECURSIVE tree(leaf, oid, born, path) AS (
        SELECT leaf, leaf, true, '[]'::jsonb FROM unnest(leaves) AS leaf
        UNION ALL
        SELECT tree.leaf, i.inhparent, """
    + _BORN
    + ", "
    + _BOUND
    + """ || tree.path
        FROM tree JOIN pg_catalog.pg_inherits i ON i.inhrelid = tree.oid AND NOT i.inhdetachpending
        JOIN pg_catalog.pg_class k ON k.oid = i.inhrelid
        WHERE tree.oid <> relation
    )
    SELECT jsonb_object_agg(l.oid::text, """
    + _LEAF
    + """)
    FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid JOIN pg_catalog.pg_class l ON l.oid = tree.leaf
    JOIN pg_catalog.pg_namespace s ON s.oid = l.relnamespace WHERE tree.oid = relation
"""
)
"""The storage of the relations ``leaves``, as far as they are below ``relation``, as one JSON object."""

FLAW: Final = sql.SQL(_FLAW)
"""The flaw of leaf ``l`` in schema ``s`` below root ``c`` as a JSON array, NULL for none."""

DESCRIPTION_QUERY: Final = sql.SQL(_DESCRIPTION)
"""The description of relation ``c`` as one JSON object. The caller adds the WHERE clause."""
