"""An event trigger that writes the new columns of an altered table into the WAL.

The message is transactional. So the stream has it between the rows with the old columns and those with the new ones.
Every role may write messages, so those of the trigger are authenticated, as `levada.postgres.seal` describes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import DecodeError, NeedsOperator, Transient
from levada.postgres.description import DESCRIPTION_QUERY, TableDescription
from levada.postgres.failures import source_errors
from levada.postgres.locks import courtesy_lock
from levada.postgres.seal import EMIT, EMIT_BODY, KEY_TABLE, SEAL_SCHEMA, DdlSeal, create_key, read_seal
from levada.schema import Column
from levada.schema.rewrites import PLAIN_RETYPE, plainly_retyped
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)

DDL_PREFIX: Final = "levada_ddl"
SEPARATOR_PREFIX: Final = "levada_ddl_end"
"""Prefix of empty messages that only separate records. Readers skip them."""
TRIGGER: Final = "levada_ddl"
_FUNCTION: Final = "emit_table_change"
_OPAQUE: Final = r"\$|--|/\*|\y(using|do|call|execute|select|perform)\y"
"""Parts of a query that may run statements that its text does not show, or that hide parts of the text."""

# The altered tables, their ancestors if they are partitions, and their children, which an ALTER of the parent changes
# too. ALTER TYPE affects every table that has a column of a user-defined type. With CASCADE it also adds, drops and
# renames columns of typed tables (CREATE TABLE ... OF).
_ALTERED: Final = sql.SQL("""
WITH RECURSIVE altered(relid) AS (
    (SELECT objid FROM pg_catalog.pg_event_trigger_ddl_commands()
     WHERE classid = 'pg_catalog.pg_class'::pg_catalog.regclass
     UNION
     SELECT r.oid FROM pg_catalog.pg_class r WHERE tg_tag = 'ALTER TYPE' AND r.reloftype <> 0)
    UNION
    SELECT i.inhrelid FROM altered JOIN pg_catalog.pg_inherits i ON i.inhparent = altered.relid
), concerned AS (
    SELECT relid FROM altered
    UNION
    SELECT a.relid
    FROM pg_catalog.pg_event_trigger_ddl_commands() d, LATERAL pg_catalog.pg_partition_ancestors(d.objid) a
    WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.object_type IN ('table', 'table column')
    UNION
    SELECT a.attrelid FROM pg_catalog.pg_attribute a
    WHERE tg_tag = 'ALTER TYPE' AND a.atttypid >= 16384 AND a.attnum > 0 AND NOT a.attisdropped
)
""")

# REPEATABLE READ and SERIALIZABLE read the catalog as of the transaction's first statement. A visible row that a later
# transaction has replaced or deleted shows that another one has altered the table since.
_OUTDATED: Final = sql.SQL("""EXISTS (
    SELECT FROM (
        SELECT r.xmax FROM pg_catalog.pg_class r WHERE r.oid = (description->>'id')::pg_catalog.oid
        UNION ALL SELECT a.xmax FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = (description->>'id')::pg_catalog.oid
        UNION ALL SELECT i.xmax FROM pg_catalog.pg_index i WHERE i.indrelid = (description->>'id')::pg_catalog.oid
    ) AS seen(replaced_by)
    WHERE replaced_by <> '0' AND pg_catalog.age(replaced_by)
        <= pg_catalog.age(pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.xid))
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
_PUBLISHED: Final = sql.SQL("""EXISTS (
    WITH RECURSIVE {members} SELECT FROM member m JOIN pg_catalog.pg_publication p ON p.oid = m.publication
    GROUP BY p.oid, p.pubviaroot
    HAVING CASE WHEN p.pubviaroot THEN pg_catalog.bool_and(m.relid = c.oid) ELSE c.relkind = 'r' END)
""")

# All tables below a partitioned one, by the publications that stream their changes as those of a table above. A table
# that is published itself stays in its publication when it is attached, but is no longer streamed under its name.
_PARTITIONS: Final = sql.SQL("""(
    WITH RECURSIVE {members}, below(relid) AS (
        SELECT i.inhrelid FROM pg_catalog.pg_inherits i
        WHERE description->>'kind' = 'p' AND i.inhparent = (description->>'id')::pg_catalog.oid
        UNION ALL
        SELECT i.inhrelid FROM below JOIN pg_catalog.pg_inherits i ON i.inhparent = below.relid
    )
    SELECT pg_catalog.jsonb_object_agg(p.pubname, (SELECT pg_catalog.jsonb_agg(relid::bigint) FROM below))
    FROM pg_catalog.pg_publication p WHERE p.pubviaroot AND p.oid IN (SELECT publication FROM member))
""")

_BODY: Final = sql.SQL("""
DECLARE
    description jsonb;
    statements jsonb;
    locked oid[];
BEGIN
    -- A query's text counts only if every statement in it shows all its effects. Another statement, such as an INSERT
    -- with a trigger, could alter the table itself.
    SELECT pg_catalog.jsonb_agg(s) FILTER (WHERE s ~* {plain}) INTO statements
    FROM (SELECT pg_catalog.btrim(x, E' \t\r\n')
        FROM pg_catalog.regexp_split_to_table(pg_catalog.current_query(), ';') x) AS split(s)
    HAVING pg_catalog.current_query() !~* {opaque} AND pg_catalog.bool_and(s = '' OR s ~* {harmless});
    SELECT pg_catalog.array_agg(l.relation) INTO locked FROM pg_catalog.pg_locks l
    WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.granted
      AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock');
    FOR description IN {altered} {description}
        WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND c.oid IN (SELECT relid FROM concerned)
          AND {published}
        ORDER BY c.oid
    LOOP
        PERFORM {emit}((description || pg_catalog.jsonb_build_object(
            'statements', statements,
            'logged', (SELECT r.relpersistence = 'p' FROM pg_catalog.pg_class r
                WHERE r.oid = (description->>'id')::pg_catalog.oid),
            'partitions', {partitions},
            'locked', coalesce((description->>'id')::pg_catalog.oid = ANY (locked), false),
            'outdated', pg_catalog.current_setting('transaction_isolation') <> 'read committed' AND {outdated}))::text);
    END LOOP;
    IF FOUND THEN
        -- Decoding places a message at the end of its record, which is where the next row begins. In a subtransaction,
        -- such as this block, both have equal rank and the row might come first. The separator moves the next row.
        PERFORM pg_catalog.pg_logical_emit_message(true, {separator}, '');
    END IF;
EXCEPTION WHEN OTHERS THEN
    -- No user's ALTER may fail because of Levada. An announced but unknown change makes it compare the catalog.
    RAISE WARNING 'levada could not announce a changed table: %', SQLERRM;
    BEGIN
        PERFORM {emit}('null');
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'levada could not announce that a table has changed: %', SQLERRM;
    END;
END
""")

_CREATE_EMIT: Final = sql.SQL("""
CREATE FUNCTION {emit}(content text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS {body}
""")

# The settings make the text of constants independent of the session that runs the ALTER.
_CREATE_FUNCTION: Final = sql.SQL("""
CREATE FUNCTION {function}() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET extra_float_digits = 3 SET bytea_output = 'hex' SET lc_monetary = 'C'
AS {body}
""")


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """A table's definition from the message's position on.

    If the table is not ``locked``, as with ALTER TYPE, another transaction may alter it before this one is committed.
    If it is ``outdated``, the transaction reads the catalog as it was before another one altered the table, so the
    definition may lack that change. If it is not ``logged``, its changes are not in the WAL. ``partitions`` has all
    tables below it, for each publication that streams their changes as those of this table.
    """

    description: TableDescription
    locked: bool
    outdated: bool
    logged: bool = True
    partitions: Mapping[str, frozenset[TableId]] = field(default_factory=dict)
    statements: tuple[str, ...] = ()
    """Statements of the client's query that only retype columns by PostgreSQL's own casts."""

    @property
    def plainly_retyped(self) -> frozenset[int]:
        """The attnums of the columns that these statements retype in this table."""
        names = frozenset[str]().union(*(plainly_retyped(s, self.name) for s in self.statements))
        return frozenset(c.attnum for c in self.columns if c.name in names)

    @property
    def table_id(self) -> TableId:
        """The table's OID."""
        return self.description.id

    @property
    def name(self) -> QualifiedTable:
        """The table's name. It is the new name after a rename."""
        return self.description.name

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns except generated ones in attnum order, published or not."""
        return self.description.columns


def parse_ddl_message(content: bytes) -> DdlMessage:
    """Parse the content of an authenticated message. Raise DecodeError ``bad_ddl_message``."""
    try:
        data = json.loads(content)
        return DdlMessage(
            TableDescription.from_json(data),
            bool(data["locked"]),
            bool(data["outdated"]),
            bool(data["logged"]),
            {name: frozenset(map(TableId, oids or ())) for name, oids in (data["partitions"] or {}).items()},
            tuple(map(str, data["statements"] or ())),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DecodeError(
            "bad_ddl_message",
            f"a message with prefix {DDL_PREFIX} does not have the form that Levada's trigger writes:"
            f" {type(error).__name__}",
            hint=f"another program writes messages with the prefix of trigger {TRIGGER}: stop it",
        ) from error


def install_ddl_trigger(conn: psycopg.Connection[Any]) -> bool:
    """Install or update the trigger in schema ``levada_ddl``. Return True if it is installed afterwards.

    Return False, with a log line, in three cases: the role is not permitted (PostgreSQL requires a superuser), the
    server is a standby, or the schema belongs to a role that could replace the trigger's functions.
    """
    statements = _statements(conn.info.server_version)
    mark = f"levada {hashlib.sha256(''.join(s.as_string(None) for s in statements).encode()).hexdigest()[:16]}"
    if _installed(conn, mark):
        return True
    try:
        with source_errors("installing the DDL trigger"), conn.transaction():
            # Two drivers that start simultaneously install one after the other.
            courtesy_lock(conn, TRIGGER)
            if _installed(conn, mark):
                return True
            if (owner := _foreign_owner(conn)) is not None:
                _log.warning(
                    "no DDL trigger, so schema changes are detected by comparing the catalog:"
                    " schema %s belongs to role %s, which could replace the trigger",
                    SEAL_SCHEMA,
                    owner,
                )
                return False
            _drop(conn)
            conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SEAL_SCHEMA)))
            for statement in statements:
                conn.execute(statement)
            conn.execute(
                sql.SQL("COMMENT ON EVENT TRIGGER {} IS {}").format(sql.Identifier(TRIGGER), sql.Literal(mark))
            )
            create_key(conn, TRIGGER)
    except (NeedsOperator, Transient) as error:
        if error.code not in ("insufficient_privilege", "source_read_only"):
            raise
        _log.info("no DDL trigger, so schema changes are detected by comparing the catalog: %s", error.message)
        return False
    return True


def read_ddl_seal(conn: psycopg.Connection[Any]) -> DdlSeal | None:
    """Return the key of the trigger's messages, or None if the trigger may have missed a change."""
    return read_seal(conn, TRIGGER)


def remove_ddl_trigger(conn: psycopg.Connection[Any]) -> bool:
    """Remove the trigger, and its schema if nothing else is in it.

    Return False if there is no trigger, or if it stays because another role owns it, see `foreign_trigger_owner`.
    """
    with source_errors("removing the DDL trigger"):
        row = _owner(conn)
        if row is None or not row[1]:
            return False
        with conn.transaction():
            _drop(conn)
        try:
            conn.execute(sql.SQL("DROP SCHEMA {} RESTRICT").format(sql.Identifier(SEAL_SCHEMA)))
        except (
            psycopg.errors.DependentObjectsStillExist,
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.InvalidSchemaName,
        ):
            _log.debug("schema %s stays: it has other objects, or another owner", SEAL_SCHEMA)
        return True


def foreign_trigger_owner(conn: psycopg.Connection[Any]) -> str | None:
    """Return the owner of the trigger if this role may not drop it, else None."""
    with source_errors("reading the owner of the DDL trigger"):
        row = _owner(conn)
    return None if row is None or row[1] else row[0]


def _owner(conn: psycopg.Connection[Any]) -> tuple[str, bool] | None:
    """Return the owner of the trigger and whether this role may drop it, or None without a trigger."""
    row = conn.execute(
        "SELECT pg_catalog.pg_get_userbyid(evtowner)::text, pg_catalog.pg_has_role(evtowner, 'USAGE')"
        " FROM pg_catalog.pg_event_trigger WHERE evtname = %s",
        [TRIGGER],
    ).fetchone()
    return None if row is None else (str(row[0]), bool(row[1]))


def _statements(version: int) -> tuple[sql.Composed, ...]:
    """Return the statements that create the trigger on a server of this version.

    The trigger fires in every replication role, because a change that it misses is a lost change.
    """
    function, trigger = sql.Identifier(SEAL_SCHEMA, _FUNCTION), sql.Identifier(TRIGGER)
    emit_body = EMIT_BODY.format(key_table=KEY_TABLE, prefix=sql.Literal(DDL_PREFIX)).as_string(None)
    schemas = _SCHEMAS if version >= 150000 else sql.SQL("")
    root = sql.SQL("(description->>'id')::pg_catalog.oid")
    body = _BODY.format(
        altered=_ALTERED,
        description=DESCRIPTION_QUERY,
        outdated=_OUTDATED,
        published=_PUBLISHED.format(members=_MEMBERS.format(relation=sql.SQL("c.oid"), schemas=schemas)),
        partitions=_PARTITIONS.format(members=_MEMBERS.format(relation=root, schemas=schemas)),
        emit=EMIT,
        separator=sql.Literal(SEPARATOR_PREFIX),
        opaque=sql.Literal(_OPAQUE),
        plain=sql.Literal(rf"^(?:{PLAIN_RETYPE})$"),
        harmless=sql.Literal(rf"^(?:{PLAIN_RETYPE}|begin|start transaction|commit|end)$"),
    ).as_string(None)
    return (
        _CREATE_EMIT.format(emit=EMIT, body=sql.Literal(emit_body)),
        _CREATE_FUNCTION.format(function=function, body=sql.Literal(body)),
        sql.SQL(
            "CREATE EVENT TRIGGER {} ON ddl_command_end WHEN TAG IN ('ALTER TABLE', 'ALTER TYPE', 'CREATE TABLE')"
            " EXECUTE FUNCTION {}()"
        ).format(trigger, function),
        sql.SQL("ALTER EVENT TRIGGER {} ENABLE ALWAYS").format(trigger),
    )


def _drop(conn: psycopg.Connection[Any]) -> None:
    schema = [SEAL_SCHEMA]
    conn.execute(sql.SQL("DROP EVENT TRIGGER IF EXISTS {}").format(sql.Identifier(TRIGGER)))
    if not conn.execute("SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", schema).fetchall():
        return
    conn.execute(sql.SQL("DROP FUNCTION IF EXISTS {}()").format(sql.Identifier(SEAL_SCHEMA, _FUNCTION)))
    conn.execute(sql.SQL("DROP FUNCTION IF EXISTS {}(text)").format(EMIT))
    conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(KEY_TABLE))


def _foreign_owner(conn: psycopg.Connection[Any]) -> str | None:
    """Return the owner of the schema if it is neither this role nor a superuser."""
    row = conn.execute(
        "SELECT r.rolname FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner"
        " WHERE n.nspname = %s AND NOT r.rolsuper AND r.rolname <> current_user",
        [SEAL_SCHEMA],
    ).fetchone()
    return None if row is None else str(row[0])


@source_errors("looking for the DDL trigger")
def _installed(conn: psycopg.Connection[Any], mark: str) -> bool:
    """Return True if the trigger has this version and, as far as the role can read, is in place since its
    installation.
    """
    row = conn.execute(
        "SELECT evtenabled = 'A' AND pg_catalog.obj_description(oid, 'pg_event_trigger') = %s,"
        " pg_catalog.pg_has_role(evtowner, 'USAGE') FROM pg_catalog.pg_event_trigger WHERE evtname = %s",
        [mark, TRIGGER],
    ).fetchone()
    if row is None or not row[0]:
        return False
    return not row[1] or read_ddl_seal(conn) is not None
