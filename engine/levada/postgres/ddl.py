"""An event trigger that writes the new columns of an altered table into the WAL.

The message is transactional. So the stream has it between the rows with the old columns and those with the new ones.
Every role may write messages, so those of the trigger are authenticated, as `levada.postgres.seal` describes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import sql

from levada import codes
from levada.errors import DecodeError, NeedsOperator, Transient
from levada.postgres.ddl_functions import DDL_PREFIX, DROP_TRIGGER, FUNCTIONS, TRIGGER, create_statements
from levada.postgres.description import TableDescription
from levada.postgres.failures import source_errors
from levada.postgres.lent_identities import TABLE as LENT
from levada.postgres.lent_identities import give_back, still_lent
from levada.postgres.problems import Problem, Severity
from levada.postgres.readmissions import TABLE as WITHDRAWN
from levada.postgres.seal import KEY_TABLE, SEAL_SCHEMA, DdlSeal, create_key, read_seal
from levada.postgres.sessions import courtesy_lock
from levada.printable import counted
from levada.schema import Column
from levada.schema.retypes import Cast, read_retypes
from levada.schema.storage import LeafStorage, leaves_from_json
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)


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
    query: str = ""
    """The client's query, if the statement is a part of it and it may retype columns."""
    withdrawn: frozenset[str] = frozenset()
    """The publications that the trigger took the table out of, because it has no replica identity any more."""
    readmitted: frozenset[str] = frozenset()
    """The publications that the trigger had taken the table out of in this transaction, and has added it to again.

    Nothing was written to the table meanwhile.
    """
    kept: bool = False
    """True if it has none, but stays in other publications, which another session had locked."""

    @property
    def casts(self) -> Mapping[int, Cast]:
        """The columns of the table that the query retypes, by attnum. Empty if that is unknown."""
        casts = read_retypes(self.query) if self.query else {}
        return {c.attnum: casts[c.name] for c in self.columns if c.name in casts}

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


@dataclass(frozen=True, slots=True)
class CreatedPartitions:
    """New partitions of a table, which one CREATE TABLE or CREATE SCHEMA created as such. They had no row before."""

    table_id: TableId
    leaves: Mapping[TableId, LeafStorage]


@dataclass(frozen=True, slots=True)
class DroppedTables:
    """Tables that one statement dropped. Only a baseline shows which of them were partitions, and of what."""

    tables: frozenset[TableId]
    table_id = TableId(0)
    """No table: the statement may concern several roots."""


@dataclass(frozen=True, slots=True)
class AlteredPartitions:
    """Partitions of a table after an ALTER TABLE of themselves, which left the table and its other partitions alone."""

    table_id: TableId
    leaves: Mapping[TableId, LeafStorage]


Announcement: TypeAlias = DdlMessage | CreatedPartitions | AlteredPartitions | DroppedTables


_AGAIN_S: Final = 0.2
_OWN_LENT: Final = """
SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = 'lent' AND pg_catalog.pg_get_userbyid(c.relowner) = current_user
"""


WITHOUT_TRIGGER: Final = (
    "schema changes are found by comparing the catalog, so several changes of columns at once need a resync"
    " (schema_change_ambiguous), a table that is rewritten and changed within ten seconds is parked, and one that loses"
    " its replica identity refuses UPDATEs for up to a second. No UPDATE fails if ALTER TABLE … REPLICA IDENTITY FULL"
    " comes before the statement that drops its key"
)

# Managed services let members of these roles create event triggers, and no one else is a superuser there.
_CREATABLE: Final = """
SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = current_user AND (r.rolsuper
    OR EXISTS (SELECT FROM pg_catalog.pg_event_trigger t WHERE t.evtname = %s AND t.evtenabled = 'A')
    OR EXISTS (SELECT FROM pg_catalog.pg_roles m WHERE m.rolname IN ('rds_superuser', 'supabase_admin')
        AND pg_catalog.pg_has_role(current_user, m.oid, 'MEMBER')))
"""


def parse_ddl_message(content: str | bytes) -> Announcement:
    """Parse the content of an authenticated message. Raise DecodeError ``bad_ddl_message``."""
    try:
        data = dict[str, Any](json.loads(content))
        if "dropped" in data:
            return DroppedTables(frozenset(map(TableId, data["dropped"])))
        if "created" in data:
            return CreatedPartitions(TableId(data["id"]), leaves_from_json(data["created"]))
        withdrawn = list[str | None](data.get("withdrawn") or ())
        if "altered" in data:
            return AlteredPartitions(TableId(data["id"]), leaves_from_json(data["altered"]))
        return DdlMessage(
            TableDescription.from_json(data),
            bool(data["locked"]),
            bool(data.get("outdated")),
            bool(data["logged"]),
            {name: frozenset(map(TableId, oids or ())) for name, oids in (data.get("partitions") or {}).items()},
            str(data.get("query") or ""),
            frozenset(name for name in withdrawn if name is not None),
            frozenset(map(str, data.get("readmitted") or ())),
            None in withdrawn,
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

    Return False, with a log line, in four cases: the role is not permitted (PostgreSQL requires a superuser), the
    server is a standby, the schema belongs to a role that could replace the trigger's functions, or another event
    trigger refuses a statement.
    """
    statements = create_statements(conn.info.server_version)
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
        if error.code not in (codes.INSUFFICIENT_PRIVILEGE, codes.SOURCE_READ_ONLY, codes.SOURCE_ERROR):
            raise
        level = logging.WARNING if error.code == codes.SOURCE_ERROR else logging.INFO
        _log.log(level, "no DDL trigger, so schema changes are detected by comparing the catalog: %s", error.message)
        return False
    return True


def trigger_problems(conn: psycopg.Connection[Any], *, declined: bool) -> Iterator[Problem]:
    """Yield a warning that says what a pipeline without the trigger lacks, if it is declined or cannot be created."""
    if declined:
        yield Problem(
            Severity.WARNING,
            "ddl_trigger_declined",
            f"spec.source.ddlTrigger is None: {WITHOUT_TRIGGER}",
            "set spec.source.ddlTrigger to Managed, with a role that is a superuser",
        )
    elif conn.execute(_CREATABLE, [TRIGGER]).fetchone() is None:
        yield Problem(
            Severity.WARNING,
            "ddl_trigger_unavailable",
            f"the role is no superuser, so it cannot create Levada's event trigger: {WITHOUT_TRIGGER}",
            "use a role that is a superuser. Or set spec.source.ddlTrigger to None, which accepts this",
        )


def read_ddl_seal(conn: psycopg.Connection[Any]) -> DdlSeal | None:
    """Return the key of the trigger's messages, or None if the trigger may have missed a change."""
    return read_seal(conn, TRIGGER)


def remove_ddl_trigger(conn: psycopg.Connection[Any], *, wait_s: float = 5.0) -> bool:
    """Remove the trigger, and its schema if nothing else is in it.

    Return False if there is no trigger, or if it stays because another role owns it, see `foreign_trigger_owner`. Raise
    Transient ``identity_lent`` if a table cannot get its own replica identity back for ``wait_s`` seconds.
    """
    with source_errors("removing the DDL trigger"):
        row = _owner(conn)
        if row is None or not row[1]:
            return False
        _give_all_back(conn, wait_s)
        with conn.transaction():
            _drop(conn)
            conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(LENT))
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
        " FROM pg_catalog.pg_event_trigger WHERE evtname = ANY (%s) ORDER BY evtname LIMIT 1",
        [[TRIGGER, DROP_TRIGGER]],
    ).fetchone()
    return None if row is None else (str(row[0]), bool(row[1]))


def _drop(conn: psycopg.Connection[Any]) -> None:
    schema = [SEAL_SCHEMA]
    give_back(conn)
    for trigger in (TRIGGER, DROP_TRIGGER):
        conn.execute(sql.SQL("DROP EVENT TRIGGER IF EXISTS {}").format(sql.Identifier(trigger)))
    if not conn.execute("SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", schema).fetchall():
        return
    # With any arguments, because another version of this program may have installed them.
    functions = (
        "SELECT p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)"
        " FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname = %s AND p.proname = ANY (%s) AND pg_catalog.pg_has_role(p.proowner, 'USAGE')"
    )
    for name, arguments in conn.execute(functions, [SEAL_SCHEMA, list(FUNCTIONS)]).fetchall():
        conn.execute(sql.SQL("DROP FUNCTION {}({})").format(sql.Identifier(SEAL_SCHEMA, name), sql.SQL(arguments)))
    for table in (KEY_TABLE, WITHDRAWN):
        conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
    # Another version of the trigger gives back what this one could not. Its superuser trusts no other role's table.
    if conn.execute(_OWN_LENT, schema).fetchone() is None or not still_lent(conn):
        conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(LENT))


def _give_all_back(conn: psycopg.Connection[Any], wait_s: float) -> None:
    """Give tables their own identities back before the record of them is dropped."""
    until = time.monotonic() + wait_s
    while not give_back(conn):
        if time.monotonic() < until:
            time.sleep(_AGAIN_S)
        elif statements := still_lent(conn):
            raise Transient(
                "identity_lent",
                f"event trigger {TRIGGER} stays for now: it gave {counted(len(statements), 'table')} another replica"
                " identity, and another session has the publication or the table locked",
                hint=f"end that session's transaction, or run: {'; '.join(statements)}",
            )
        else:
            return


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
        "SELECT t.evtenabled = 'A' AND pg_catalog.obj_description(t.oid, 'pg_event_trigger') = %s AND EXISTS ("
        "SELECT FROM pg_catalog.pg_event_trigger d WHERE d.evtname = %s AND d.evtenabled = 'A'),"
        " pg_catalog.pg_has_role(t.evtowner, 'USAGE') FROM pg_catalog.pg_event_trigger t WHERE t.evtname = %s",
        [mark, DROP_TRIGGER, TRIGGER],
    ).fetchone()
    if row is None or not row[0]:
        return False
    return not row[1] or read_ddl_seal(conn) is not None
