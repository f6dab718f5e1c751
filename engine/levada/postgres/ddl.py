"""The source's own word on ALTER TABLE: an event trigger that writes the table's new columns into the WAL.

The message is transactional, so it lies in the stream between the rows that have the old columns and those that have
the new ones.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import DecodeError, NeedsOperator
from levada.postgres.description import DESCRIPTION_QUERY, TableDescription
from levada.postgres.failures import source_errors
from levada.schema import Column, ReplicatedTableSchema
from levada.values import OnUnrepresentable, QualifiedTable, SnapshotId, TableId

_log = logging.getLogger(__name__)

DDL_PREFIX: Final = "levada_ddl"
SEPARATOR_PREFIX: Final = "levada_ddl_end"
"""Of messages without meaning, to be skipped."""
TRIGGER: Final = "levada_ddl"
_SCHEMA: Final = "levada"
_FUNCTION: Final = "emit_table_change"

# Published tables among those that were altered and, since an ALTER of a parent goes through to them, their children.
_ALTERED: Final = sql.SQL("""
WITH RECURSIVE altered(relid) AS (
    SELECT objid FROM pg_catalog.pg_event_trigger_ddl_commands()
    WHERE classid = 'pg_catalog.pg_class'::pg_catalog.regclass
    UNION
    SELECT i.inhrelid FROM altered JOIN pg_catalog.pg_inherits i ON i.inhparent = altered.relid
), published AS (
    SELECT t.relid FROM pg_catalog.pg_publication p, LATERAL pg_catalog.pg_get_publication_tables(p.pubname) t
)
""")

_BODY: Final = sql.SQL("""
DECLARE
    description jsonb;
BEGIN
    FOR description IN {altered} {description}
        WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
          AND c.oid IN (SELECT relid FROM altered) AND c.oid IN (SELECT relid FROM published)
        ORDER BY c.oid
    LOOP
        PERFORM pg_catalog.pg_logical_emit_message(true, {prefix}, description::text);
    END LOOP;
    IF FOUND THEN
        -- Decoding places a message at the end of its record, which is where the next row begins. In a subtransaction,
        -- as this block is, the two would be of equal rank, and the row might come first: so the next row is put off.
        PERFORM pg_catalog.pg_logical_emit_message(true, {separator}, '');
    END IF;
EXCEPTION WHEN OTHERS THEN
    -- Levada compares the catalog as well; nobody's ALTER may fail because of it.
    RAISE WARNING 'levada could not tell of a changed table: %', SQLERRM;
END
""")

# The settings make the text of constants the same in whatever session the ALTER is run.
_CREATE_FUNCTION: Final = sql.SQL("""
CREATE OR REPLACE FUNCTION {function}() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'postgres'
SET extra_float_digits = 3 SET bytea_output = 'hex'
AS {body}
""")


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """A table as it is from the message on."""

    description: TableDescription

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

    def schema(
        self,
        *,
        columns: Collection[int] | None = None,
        exclude: Collection[str] = (),
        policy: OnUnrepresentable = OnUnrepresentable.ERROR,
        snapshot_id: SnapshotId | None = None,
    ) -> ReplicatedTableSchema:
        """Return the replicated version, as `levada.postgres.catalog.read_table_schema` would have."""
        return self.description.schema(columns=columns, exclude=exclude, policy=policy, snapshot_id=snapshot_id)


def parse_ddl_message(content: bytes) -> DdlMessage:
    """Read the content of a message with the prefix ``levada_ddl``; raise DecodeError ``bad_ddl_message``."""
    try:
        return DdlMessage(TableDescription.from_json(json.loads(content)))
    except (ValueError, KeyError, TypeError) as error:
        raise DecodeError(
            "bad_ddl_message",
            f"a message with prefix {DDL_PREFIX} is not what Levada's trigger writes: {type(error).__name__}",
            hint=f"something else writes messages with this prefix; the trigger is {TRIGGER}",
        ) from error


def install_ddl_trigger(conn: psycopg.Connection[Any]) -> bool:
    """Install the trigger in schema ``levada``, or renew it; return whether it is there now.

    False, with a note in the log, where the role may not (PostgreSQL asks for a superuser) or the server is a standby.
    """
    function = sql.Identifier(_SCHEMA, _FUNCTION)
    body = _BODY.format(
        altered=_ALTERED,
        description=DESCRIPTION_QUERY,
        prefix=sql.Literal(DDL_PREFIX),
        separator=sql.Literal(SEPARATOR_PREFIX),
    ).as_string(None)
    create = _CREATE_FUNCTION.format(function=function, body=sql.Literal(body))
    mark = f"levada {hashlib.sha256(create.as_string(None).encode()).hexdigest()[:16]}"
    if _installed(conn, mark):
        return True
    try:
        with source_errors("installing the DDL trigger"), conn.transaction():
            # Two drivers that start at once install one after the other.
            conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [TRIGGER])
            _drop(conn)
            conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(_SCHEMA)))
            conn.execute(create)
            conn.execute(sql.SQL("REVOKE ALL ON FUNCTION {}() FROM PUBLIC").format(function))
            conn.execute(
                sql.SQL(
                    "CREATE EVENT TRIGGER {} ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION {}()"
                ).format(sql.Identifier(TRIGGER), function)
            )
            conn.execute(
                sql.SQL("COMMENT ON EVENT TRIGGER {} IS {}").format(sql.Identifier(TRIGGER), sql.Literal(mark))
            )
    except NeedsOperator as error:
        if error.code not in ("insufficient_privilege", "source_read_only"):
            raise
        _log.info("no DDL trigger, so changes of schema are found by comparing the catalog: %s", error.message)
        return False
    return True


def remove_ddl_trigger(conn: psycopg.Connection[Any]) -> bool:
    """Remove the trigger and its function, and the schema if nothing else is in it; return False if there is none."""
    function = f"{_SCHEMA}.{_FUNCTION}"
    with source_errors("removing the DDL trigger"):
        row = conn.execute("SELECT to_regproc(%s) IS NOT NULL", [function]).fetchone()
        if row is None or not row[0]:
            return False
        with conn.transaction():
            _drop(conn)
        try:
            conn.execute(sql.SQL("DROP SCHEMA {} RESTRICT").format(sql.Identifier(_SCHEMA)))
        except (psycopg.errors.DependentObjectsStillExist, psycopg.errors.InsufficientPrivilege):
            _log.debug("schema %s stays: it has other objects, or another owner", _SCHEMA)
        return True


def _drop(conn: psycopg.Connection[Any]) -> None:
    conn.execute(sql.SQL("DROP EVENT TRIGGER IF EXISTS {}").format(sql.Identifier(TRIGGER)))
    conn.execute(sql.SQL("DROP FUNCTION IF EXISTS {}()").format(sql.Identifier(_SCHEMA, _FUNCTION)))


@source_errors("looking for the DDL trigger")
def _installed(conn: psycopg.Connection[Any], mark: str) -> bool:
    row = conn.execute(
        "SELECT evtenabled IN ('O', 'A') AND obj_description(oid, 'pg_event_trigger') = %s"
        " FROM pg_event_trigger WHERE evtname = %s",
        [mark, TRIGGER],
    ).fetchone()
    return row is not None and bool(row[0])
