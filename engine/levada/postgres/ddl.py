"""An event trigger that writes the new columns of an altered table into the WAL.

The message is transactional, so it lies in the stream between the rows that have the old columns and those that have
the new ones. Every role may write messages, so the trigger's are authenticated, see `levada.postgres.seal`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import DecodeError, NeedsOperator
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
"""Of messages without meaning, to be skipped."""
TRIGGER: Final = "levada_ddl"
_FUNCTION: Final = "emit_table_change"
_OPAQUE: Final = r"\$|--|/\*|\y(using|do|call|execute|select|perform)\y"
"""Words of a query that may run other statements than those that its text shows, or that hide parts of the text."""

# Published tables among those that were altered, their ancestors as partitions and, since an ALTER of a parent goes
# through to them, their children. ALTER TYPE concerns every table that has a column of a type that users made.
_ALTERED: Final = sql.SQL("""
WITH RECURSIVE altered(relid) AS (
    SELECT objid FROM pg_catalog.pg_event_trigger_ddl_commands()
    WHERE classid = 'pg_catalog.pg_class'::pg_catalog.regclass
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
), published AS (
    SELECT t.relid FROM pg_catalog.pg_publication p, LATERAL pg_catalog.pg_get_publication_tables(p.pubname) t
)
""")

_BODY: Final = sql.SQL("""
DECLARE
    description jsonb;
    statements jsonb;
BEGIN
    -- A query's text counts only if every statement in it says all that it does. Another statement, such as an INSERT
    -- with a trigger, could have altered the table by itself.
    SELECT pg_catalog.jsonb_agg(s) FILTER (WHERE s ~* {plain}) INTO statements
    FROM (SELECT pg_catalog.btrim(x, E' \t\r\n')
        FROM pg_catalog.regexp_split_to_table(pg_catalog.current_query(), ';') x) AS split(s)
    HAVING pg_catalog.current_query() !~* {opaque} AND pg_catalog.bool_and(s = '' OR s ~* {harmless});
    FOR description IN {altered} {description}
        WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
          AND c.oid IN (SELECT relid FROM concerned) AND c.oid IN (SELECT relid FROM published)
        ORDER BY c.oid
    LOOP
        PERFORM {emit}((description || pg_catalog.jsonb_build_object('statements', statements))::text);
    END LOOP;
    IF FOUND THEN
        -- Decoding places a message at the end of its record, which is where the next row begins. In a subtransaction,
        -- as this block is, the two would be of equal rank, and the row might come first: so the next row is put off.
        PERFORM pg_catalog.pg_logical_emit_message(true, {separator}, '');
    END IF;
EXCEPTION WHEN OTHERS THEN
    -- No ALTER of a user may fail because of Levada. It compares the catalog where a change is announced as unknown.
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

# The settings make the text of constants the same in whatever session the ALTER is run.
_CREATE_FUNCTION: Final = sql.SQL("""
CREATE FUNCTION {function}() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET extra_float_digits = 3 SET bytea_output = 'hex'
AS {body}
""")


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """A table as it is from the message on."""

    description: TableDescription
    statements: tuple[str, ...] = ()
    """Statements of the client's query that retype columns by PostgreSQL's own casts, and do nothing else."""

    @property
    def plainly_retyped(self) -> frozenset[int]:
        """The attnums of columns that those statements retype in this table."""
        names = frozenset[str]().union(*(plainly_retyped(s, self.name) for s in self.statements))
        return frozenset(c.attnum for c in self.columns if c.name in names)

    @property
    def table_id(self) -> TableId:
        """The table's OID."""
        return self.description.id

    @property
    def name(self) -> QualifiedTable:
        """The table's name, new if it was renamed."""
        return self.description.name

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every column but generated ones, in attnum order, published or not."""
        return self.description.columns


def parse_ddl_message(content: bytes) -> DdlMessage:
    """Read the content of an authenticated message; raise DecodeError ``bad_ddl_message``."""
    try:
        data = json.loads(content)
        return DdlMessage(TableDescription.from_json(data), tuple(map(str, data["statements"] or ())))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DecodeError(
            "bad_ddl_message",
            f"a message with prefix {DDL_PREFIX} is not what Levada's trigger writes: {type(error).__name__}",
            hint=f"something else writes messages with this prefix; the trigger is {TRIGGER}",
        ) from error


def install_ddl_trigger(conn: psycopg.Connection[Any]) -> bool:
    """Install the trigger in schema ``levada_ddl``, or renew it; return whether it is there now.

    False, with a note in the log, where the role may not (PostgreSQL asks for a superuser), the server is a standby, or
    the schema belongs to a role that could replace the trigger's functions.
    """
    statements = _statements()
    mark = f"levada {hashlib.sha256(''.join(s.as_string(None) for s in statements).encode()).hexdigest()[:16]}"
    if _installed(conn, mark):
        return True
    try:
        with source_errors("installing the DDL trigger"), conn.transaction():
            # Two drivers that start at the same time install one after the other.
            courtesy_lock(conn, TRIGGER)
            if _installed(conn, mark):
                return True
            if (owner := _foreign_owner(conn)) is not None:
                _log.warning(
                    "no DDL trigger, so changes of schema are found by comparing the catalog:"
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
    except NeedsOperator as error:
        if error.code not in ("insufficient_privilege", "source_read_only"):
            raise
        _log.info("no DDL trigger, so changes of schema are found by comparing the catalog: %s", error.message)
        return False
    return True


def read_ddl_seal(conn: psycopg.Connection[Any]) -> DdlSeal | None:
    """Return the key of the trigger's messages; None where the trigger cannot be relied on."""
    return read_seal(conn, TRIGGER)


def remove_ddl_trigger(conn: psycopg.Connection[Any]) -> bool:
    """Remove the trigger and its schema, unless something else is in it; return False if there is no trigger."""
    with source_errors("removing the DDL trigger"):
        if not conn.execute("SELECT FROM pg_catalog.pg_event_trigger WHERE evtname = %s", [TRIGGER]).fetchall():
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


def _statements() -> tuple[sql.Composed, ...]:
    """Return what makes the trigger. It fires in every replication role: a change that it passes over is a loss."""
    function, trigger = sql.Identifier(SEAL_SCHEMA, _FUNCTION), sql.Identifier(TRIGGER)
    emit_body = EMIT_BODY.format(key_table=KEY_TABLE, prefix=sql.Literal(DDL_PREFIX)).as_string(None)
    body = _BODY.format(
        altered=_ALTERED,
        description=DESCRIPTION_QUERY,
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
    """Return whether the trigger is of this version, and in place since it was installed as far as can be read."""
    row = conn.execute(
        "SELECT evtenabled = 'A' AND pg_catalog.obj_description(oid, 'pg_event_trigger') = %s,"
        " pg_catalog.pg_has_role(evtowner, 'USAGE') FROM pg_catalog.pg_event_trigger WHERE evtname = %s",
        [mark, TRIGGER],
    ).fetchone()
    if row is None or not row[0]:
        return False
    return not row[1] or read_ddl_seal(conn) is not None
