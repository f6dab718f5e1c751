"""Which version of a table the stream's rows are: what RELATION tells, with the attnums that it does not tell."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import psycopg

from levada.capture.matching import match_columns, same_look
from levada.errors import DecodeError, LevadaError, NeedsOperator
from levada.pgoutput.changes import LogicalMessage
from levada.pgoutput.decoder import SchemaResolver
from levada.pgoutput.messages import Relation, RelationColumn
from levada.postgres.catalog import published_tables, read_table_description, read_type_infos
from levada.postgres.connection import PostgresConnection
from levada.postgres.ddl import DDL_PREFIX, DdlMessage, parse_ddl_message, read_ddl_seal
from levada.postgres.description import TableDescription
from levada.postgres.seal import SEAL_SCHEMA, DdlSeal
from levada.schema import Column, IdentityKind, ReplicatedTableSchema, resolve_type
from levada.schema.changes import RESERVED_PREFIX
from levada.schema.types import is_builtin
from levada.stores.interface import SchemaStore
from levada.values import Lsn, OnUnrepresentable, QualifiedTable, SnapshotId, TableId, resync_command

_log = logging.getLogger(__name__)

_VERSIONS_IN_A_COMMIT: Final = 24
"""Versions after the first of one transaction count on from its LSN: a commit record is longer than this, so none of
the numbers is another transaction's."""

_WARN_EVERY_S: Final = 60.0
"""How often messages that the trigger did not write are logged: a role can write millions of them."""

Failed = Callable[[TableId, LevadaError], None]


class TableResolver(SchemaResolver):
    """Keeps each table's version in step with the stream, and new versions in the store. For one thread.

    ``selects`` tells whether a table that has no version yet is replicated; one that has stays so under any name.
    Where the source announces every ALTER TABLE in the stream by its trigger, a RELATION that looks as before *is* as
    before, and is not compared with the catalog. `levada.postgres.seal` says when that can be relied on.

    A table whose change cannot be understood is told to ``failed``, and its rows are left out from there on: only a new
    copy brings it back, after `begin_session`. Nothing is staged before ``failed`` returns, so it must have recorded
    the failure by then. ``altered`` is called with each announced change of a table that has a version, with the
    message's LSN and its transaction's ID. ``look`` is called where a RELATION shows that a table's catalog changed.
    """

    def __init__(
        self,
        connection: PostgresConnection,
        store: SchemaStore,
        publication: str,
        *,
        failed: Failed,
        selects: Callable[[QualifiedTable], bool] = lambda table: True,
        excluded_columns: Callable[[QualifiedTable], frozenset[str]] = lambda table: frozenset(),
        policy: OnUnrepresentable = OnUnrepresentable.ERROR,
        altered: Callable[[DdlMessage, Lsn, int], None] = lambda ddl, lsn, xid: None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._store = store
        self._publication = publication
        self._failed = failed
        self._selects = selects
        self._excluded_columns = excluded_columns
        self._policy = policy
        self._altered = altered
        self._look = look
        self._seal: DdlSeal | None = None
        self._seal_read = False
        self._unreadable = False
        self._warn_at = 0.0
        self._current: dict[TableId, ReplicatedTableSchema] = {}
        self._left_out: set[TableId] = set()
        self._open = ExitStack()
        self._catalog: psycopg.Connection[Any] | None = None

    @property
    def message_prefixes(self) -> tuple[str, ...]:
        """The logical messages that `message` understands."""
        return (DDL_PREFIX,)

    def begin_session(self) -> None:
        """Forget what the last session's stream had told: a new one tells it again."""
        self._current.clear()
        self._left_out.clear()
        self._unreadable = False

    def release(self) -> None:
        """Close the connection to the catalog; it is opened again when it is needed."""
        self._catalog = None
        self._seal_read = False
        self._open.close()

    def relation(self, relation: Relation, at: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the version of the rows that follow; None for a table that is not selected, or left out."""
        table = relation.oid
        if relation.schema == SEAL_SCHEMA:
            return None
        before = self._before(table, at)
        if table in self._left_out or (before is None and not self._selects(relation.table)):
            return None
        if table in self._current or not self._announced(at):
            # The server sends a RELATION again when the table's entry in the catalog has changed.
            self._look()
        try:
            return self._follow(relation, before, at)
        except NeedsOperator as error:
            self._leave_out(table, relation.table, error, at)
            return None

    def message(self, message: LogicalMessage, at: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the version that an ALTER TABLE announces; None if it changes nothing that is replicated."""
        if message.prefix != DDL_PREFIX:
            return None
        content = self._authenticated(message)
        if content is None:
            return None
        try:
            ddl = parse_ddl_message(content)
        except DecodeError as error:
            # The trigger itself wrote it: some table has changed, and only the catalog shows which.
            _log.warning("message at %s: %s; RELATIONs are compared with the catalog", message.lsn, error.message)
            self._unreadable = True
            return None
        before = self._before(ddl.table_id, at)
        if before is None or ddl.table_id in self._left_out:
            # The RELATION of its first row will tell.
            return None
        self._altered(ddl, message.lsn, message.xid)
        try:
            announced = ddl.description.schema(
                columns=self._column_list(ddl.table_id),
                exclude=self._excluded_columns(before.name),
                policy=self._policy,
                snapshot_id=at,
            )
        except NeedsOperator as error:
            self._leave_out(ddl.table_id, before.name, error, at)
            return None
        return None if _alike(before, announced) else self._settle(replace(announced, name=before.name), before, at)

    def _authenticated(self, message: LogicalMessage) -> bytes | None:
        """Return the content of a message if the trigger wrote it in its transaction."""
        seal = self._read_seal()
        content = None if seal is None or not message.transactional else seal.open(message.content, message.xid)
        if content is None and time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + _WARN_EVERY_S
            _log.warning(
                "a message with prefix %s at %s is passed over: %s",
                DDL_PREFIX,
                message.lsn,
                "Levada's trigger did not write it" if seal is not None else "there is no trigger to rely on",
            )
        return content

    def _announced(self, at: SnapshotId) -> bool:
        """Return whether every change of a table up to a transaction was announced by a message that could be read."""
        seal = self._read_seal()
        return seal is not None and at >= seal.since and not self._unreadable

    def _read_seal(self) -> DdlSeal | None:
        """Return the seal as it is after the slice was received, read once per slice.

        A trigger that is in place without a gap until now was so at every message of the slice.
        """
        if not self._seal_read:
            self._seal = read_ddl_seal(self._connected())
            self._seal_read = True
        return self._seal

    def _leave_out(self, table: TableId, name: QualifiedTable, error: LevadaError, at: SnapshotId) -> None:
        _log.error("%s is left out from %s on: %s", name, at, error)
        self._failed(table, error)
        self._left_out.add(table)

    def _before(self, table: TableId, at: SnapshotId) -> ReplicatedTableSchema | None:
        # A version that begins in this very transaction is what a session before this one has stored of it.
        return self._current.get(table) or self._store.get_table_schema(table, SnapshotId(at - 1))

    def _follow(
        self, relation: Relation, before: ReplicatedTableSchema | None, at: SnapshotId
    ) -> ReplicatedTableSchema:
        name = before.name if before is not None else relation.table
        excluded = self._excluded_columns(name)
        columns = [c for c in relation.columns if c.name not in excluded]
        for column in columns:
            if column.name.startswith(RESERVED_PREFIX):
                raise _reserved(name, column.name)
        unchanged = before is not None and same_look(columns, before.columns) and _same_identity(relation, before)
        if before is not None and unchanged and self._announced(at):
            self._current[relation.oid] = before
            return before
        description = self._describe(relation.oid)
        now = () if description is None else description.columns
        attnums = match_columns(columns, () if before is None else before.columns, now)
        if attnums is None:
            raise _ambiguous(name)
        version = self._version(relation, columns, attnums, before, description, at)
        return self._settle(replace(version, name=name), before, at)

    def _settle(
        self, version: ReplicatedTableSchema, before: ReplicatedTableSchema | None, at: SnapshotId
    ) -> ReplicatedTableSchema:
        """Make it the table's version: the one before if it is the same, one that was stored if this is a replay."""
        if before is None or not _alike(before, version):
            number = at if before is None else SnapshotId(max(at, before.snapshot_id + 1))
            known = (
                self._store.get_table_schema(version.id, SnapshotId(n))
                for n in range(number, at + _VERSIONS_IN_A_COMMIT)
            )
            stored = next((k for k in known if k is not None and k.snapshot_id >= number and _alike(k, version)), None)
            before = stored or replace(version, snapshot_id=number)
            if stored is None:
                self._store.store_table_schema(before)
                _log.info("%s has a new version at %s", before.name, before.snapshot_id)
        self._current[version.id] = before
        return before

    def _version(
        self,
        relation: Relation,
        columns: Sequence[RelationColumn],
        attnums: Sequence[int],
        before: ReplicatedTableSchema | None,
        description: TableDescription | None,
        at: SnapshotId,
    ) -> ReplicatedTableSchema:
        now = {} if description is None else description.schema(policy=self._policy).by_attnum
        old = {} if before is None else before.by_attnum
        pairs = list(zip(columns, attnums, strict=True))
        made = tuple(self._column(column, attnum, now, old) for column, attnum in pairs)
        marked = {attnum for column, attnum in pairs if column.is_key}
        identity = _IDENTITIES[relation.identity] if marked else IdentityKind.MISSING
        return ReplicatedTableSchema(
            id=relation.oid,
            name=relation.table,
            columns=made,
            identity=identity,
            identity_attnums=tuple(sorted(marked)),
            key=_key(identity, marked, set(attnums), before, description),
            snapshot_id=at,
        )

    def _column(
        self, column: RelationColumn, attnum: int, now: Mapping[int, Column], old: Mapping[int, Column]
    ) -> Column:
        for side in (now, old):
            known = side.get(attnum)
            if known is not None and (known.type_oid, known.typmod) == (column.type_oid, column.typmod):
                return replace(known, name=column.name)
        # It had this type only between the version before and the catalog's: nobody knows more of it.
        types = {} if is_builtin(column.type_oid) else read_type_infos(self._connected(), [column.type_oid])
        shape = resolve_type(column.type_oid, column.typmod, types, self._policy)
        info = types.get(column.type_oid)
        return Column(
            attnum, column.name, shape, shape.kind if info is None else info.name, column.type_oid, column.typmod
        )

    def _describe(self, table: TableId) -> TableDescription | None:
        try:
            return read_table_description(self._connected(), table)
        except NeedsOperator as error:
            if error.code != "table_missing":
                raise
            return None

    def _column_list(self, table: TableId) -> tuple[int, ...] | None:
        published = published_tables(self._connected(), self._publication)
        return next((p.column_attnums for p in published if p.id == table), None)

    def _connected(self) -> psycopg.Connection[Any]:
        if self._catalog is None:
            self._catalog = self._open.enter_context(self._connection.connect(application="schema"))
        return self._catalog


_IDENTITIES: Final[Mapping[str, IdentityKind]] = {
    "d": IdentityKind.PRIMARY_KEY,
    "i": IdentityKind.INDEX,
    "f": IdentityKind.FULL,
    "n": IdentityKind.MISSING,
}


def _same_identity(relation: Relation, version: ReplicatedTableSchema) -> bool:
    marked = {c.name for c in relation.columns if c.is_key}
    kind = _IDENTITIES[relation.identity] if marked else IdentityKind.MISSING
    names = {c.name for c in version.columns if c.attnum in version.identity_attnums}
    return kind is version.identity and names == marked & {c.name for c in version.columns}


def _key(
    identity: IdentityKind,
    marked: set[int],
    present: set[int],
    before: ReplicatedTableSchema | None,
    description: TableDescription | None,
) -> tuple[int, ...]:
    """Return the key's attnums in key order, which RELATION does not tell either."""
    orders: list[tuple[int, ...]] = [] if before is None else [before.key]
    if description is not None:
        orders.insert(0, description.primary_key if identity is IdentityKind.FULL else description.identity_key)
    if identity is IdentityKind.FULL:
        return next((order for order in orders if order and present.issuperset(order)), ())
    return next((order for order in orders if set(order) == marked), tuple(sorted(marked)))


def _alike(one: ReplicatedTableSchema, other: ReplicatedTableSchema) -> bool:
    """Compare what the stream can tell; a default that changed since makes no other version."""
    return _essence(one) == _essence(other)


def _essence(version: ReplicatedTableSchema) -> tuple[object, ...]:
    columns = tuple((c.attnum, c.name, c.type, c.type_oid, c.typmod) for c in version.columns)
    return columns, version.identity, version.identity_attnums, version.key


def _ambiguous(table: QualifiedTable) -> NeedsOperator:
    return NeedsOperator(
        "schema_change_ambiguous",
        f"{table}: its columns were changed several times at once, and the stream does not tell which column is which",
        hint=f"copy the table again: {resync_command(table)}; with the privilege to create the event trigger "
        "of levada's, the source tells each change",
    )


def _reserved(table: QualifiedTable, column: str) -> NeedsOperator:
    return NeedsOperator(
        "reserved_column_name",
        f"{table}: column {column} has a name that is Levada's own",
        hint=f"ALTER TABLE {table} RENAME COLUMN {column} TO …; then copy the table again",
    )
