"""Resolves the table version of each row in the stream. Adds the attnums that RELATION messages do not contain."""

from __future__ import annotations

import logging
import queue
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from levada.capture.alterations import Alterations
from levada.capture.announcements import Announcements
from levada.capture.attnums import identify_columns
from levada.capture.column_marks import ColumnMarks
from levada.capture.early_segments import UnknownVersionError
from levada.capture.host import CaptureHost, ErrorOf
from levada.capture.relation_versions import IDENTITIES, all_columns, describes, key_of, same_version
from levada.capture.schema_errors import ambiguous, outdated, require_usable_names, unexpected
from levada.capture.source_catalog import SourceCatalog
from levada.errors import DecodeError, LevadaError, NeedsOperator
from levada.pgoutput.changes import LogicalMessage
from levada.pgoutput.decoder import SchemaResolver
from levada.pgoutput.encoding import TextConversion, text_to_utf8
from levada.pgoutput.messages import Relation, RelationColumn
from levada.postgres.append_publication import PublicationNames
from levada.postgres.catalog import read_type_infos
from levada.postgres.column_mark import MARK_PREFIX
from levada.postgres.connection import PostgresConnection
from levada.postgres.ddl import (
    AlteredPartitions,
    CreatedPartitions,
    DdlMessage,
    DroppedTables,
    parse_ddl_message,
)
from levada.postgres.ddl_functions import DDL_PREFIX
from levada.postgres.description import TableDescription
from levada.postgres.failures import source_errors
from levada.postgres.generated_columns import require_masked
from levada.postgres.identity_remedies import identify_again, identity_statements
from levada.postgres.mask_comments import read_table_comments
from levada.postgres.membership import lost_identity, set_unlogged, streamed_as_root
from levada.postgres.seal import SEAL_SCHEMA
from levada.schema import Column, ExcludedColumn, IdentityKind, ReplicatedTableSchema, resolve_type
from levada.schema.exclusion import excluded_attnums, require_same_exclusion
from levada.schema.masking import require_same_masks, with_masks
from levada.schema.retypes import require_known_zone
from levada.schema.stored_types import ColumnChoice, with_mask_comments, with_stored_types
from levada.schema.types import is_builtin
from levada.stores.interface import SchemaStore
from levada.values import Lsn, OnUnrepresentable, QualifiedTable, SnapshotId, TableId, resync_command

_log = logging.getLogger(__name__)

_Before: TypeAlias = ReplicatedTableSchema | None
_VERSIONS_IN_A_COMMIT: Final = 24
"""The length, in bytes, of the LSN range for the version numbers of one transaction.

The first version has the commit's LSN as its number, and later ones count up from there. A commit record is longer than
this, so the range never contains the commit of another transaction."""


class TableResolver(SchemaResolver):
    """Tracks the current version of each table in the stream, and writes new versions to the store. For one thread.

    If the source's event trigger announces every ALTER TABLE in the stream, a RELATION without visible
    changes is trusted, and not compared with the catalog. `levada.postgres.seal` explains when that is safe.

    Each version of a table keeps the excluded columns, the chosen types and the masks of the version before it, until
    `choose_columns` sets others.
    ``host`` receives what the stream shows of tables. ``marks`` has the marks that the pipeline writes.
    ``append`` is the name of the second publication, ``slot`` that of the slot whose stream it is.
    """

    def __init__(
        self,
        connection: PostgresConnection,
        store: SchemaStore,
        publication: str,
        host: CaptureHost,
        *,
        policy: OnUnrepresentable = OnUnrepresentable.ERROR,
        marks: ColumnMarks | None = None,
        append: str = "",
        slot: str = "",
    ) -> None:
        self._store = store
        self._publication = publication
        self._append = append
        self._host = host
        self._policy = policy
        self._alterations = Alterations(host.table_altered)
        self._marks = marks or ColumnMarks()
        self._choices: queue.SimpleQueue[tuple[TableId, ColumnChoice]] = queue.SimpleQueue()
        self._chosen: dict[TableId, ColumnChoice] = {}
        self._current: dict[TableId, ReplicatedTableSchema] = {}
        self._left_out: set[TableId] = set()
        self._withdrawn: dict[tuple[TableId, Lsn], ErrorOf] = {}
        self._leaves: dict[tuple[TableId, SnapshotId, int], set[TableId]] = {}
        self._catalog = SourceCatalog(connection, PublicationNames(publication, append), slot)
        self._announcements = Announcements(self._catalog)
        self.conversion: TextConversion | None = None
        """The conversion of the session's stream, if the database has another encoding than UTF8."""

    @property
    def message_prefixes(self) -> tuple[str, ...]:
        """The prefixes of the logical messages that `message` reads."""
        return (DDL_PREFIX, MARK_PREFIX)

    def begin_session(self) -> None:
        """Discard the versions of the last session. The server sends every RELATION again in a new one."""
        self._current.clear()
        self._left_out.clear()
        self._announcements.begin_session()
        self._alterations.discard()
        self._withdrawn.clear()
        self._leaves.clear()

    def choose_columns(self, table: TableId, choice: ColumnChoice) -> None:
        """Give all versions of the table that are read from now on these columns. From any thread.

        A table whose columns were read in the current session has them until the next session.
        """
        self._choices.put((table, choice))

    def release(self) -> None:
        """Close the connection to the catalog. It is opened again on demand."""
        self._announcements.release()
        self._catalog.close()

    def relation(self, relation: Relation, at: SnapshotId, xid: int) -> ReplicatedTableSchema | None:
        """Return the version of the rows that follow, or None if the table is not selected or has failed."""
        table = relation.oid
        if relation.schema == SEAL_SCHEMA:
            return None
        before = self._before(table, at)
        if table in self._left_out or (before is None and not self._host.selects(relation.table)):
            return None
        if table in self._current or not self._announcements.complete(at):
            # Within a session, the server sends a second RELATION only after the table's catalog entry has changed.
            self._host.catalog_changed()
        with self._of_one_table(table, relation.table, at):
            return self._relation_version(relation, before, at, xid)
        return None

    def known_version(self, relation: Relation, at: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the version that `relation` returns if it begins none, and record nothing. See `KnownVersions`."""
        table = relation.oid
        if relation.schema == SEAL_SCHEMA or table in self._left_out:
            return None
        before = self._before(table, at)
        if before is None and not self._host.selects(relation.table):
            return None
        choice = None if before is None else self._choice(table, before.name, before)
        if before is None or choice != ColumnChoice.of(before) or not describes(relation, before, choice.excluded):
            raise UnknownVersionError
        return before

    def leaf(self, leaf: TableId, root: TableId, at: SnapshotId, xid: int) -> None:
        """Keep what the stream shows of a table's partitions for `settle`, unless it announces all of them."""
        if not self._announcements.complete(at):
            self._leaves.setdefault((root, at, xid), set()).add(leaf)

    def message(self, message: LogicalMessage, at: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the version that a message announces, or None if no replicated property changes."""
        if message.prefix == MARK_PREFIX:
            return self._marked(message, at)
        if message.prefix != DDL_PREFIX:
            return None
        content = self._announcements.content(message)
        if content is None:
            return None
        try:
            ddl = parse_ddl_message(text_to_utf8(content, self.conversion) or "")
        except DecodeError as error:
            # The trigger wrote the message, so a table did change. Only the catalog shows which one.
            _log.warning(
                "message at %s cannot be read, so RELATIONs are compared with the catalog: %s",
                message.lsn,
                error.message,
            )
            self._announcements.one_unreadable()
            self._host.identity_lost()
            return None
        if isinstance(ddl, DroppedTables):
            self._alterations.add(ddl, message, at)
            return None
        if isinstance(ddl, CreatedPartitions | AlteredPartitions):
            if self._is_followed(ddl.table_id, at):
                self._alterations.add(ddl, message, at)
            return None
        with self._of_one_table(ddl.table_id, ddl.description.name, at):
            return self._announced_change(ddl, message, at)
        return None

    def _announced_change(
        self, ddl: DdlMessage, message: LogicalMessage, at: SnapshotId
    ) -> ReplicatedTableSchema | None:
        """Return the version that an announced ALTER TABLE begins, or None if no replicated property changes."""
        if not ddl.logged:
            self._host.tables_unpublished(frozenset({ddl.table_id}), set_unlogged, Lsn(at))
            return None
        if ddl.kept:
            self._host.identity_lost()
        if self._publication in ddl.withdrawn:
            name = ddl.description.name
            remedy = identity_statements(self._catalog.connected(), [name]).get(name, identify_again(name))
            self._withdrawn[ddl.table_id, Lsn(at)] = partial(lost_identity, remedy=remedy)
            return None
        if self._publication in ddl.readmitted:
            self._withdrawn.pop((ddl.table_id, Lsn(at)), None)
        for publication in (self._publication, self._append):
            if partitions := ddl.partitions.get(publication):
                self._host.tables_unpublished(partitions, streamed_as_root, Lsn(at))
        before = self._before(ddl.table_id, at)
        if not self._is_followed(ddl.table_id, at):
            # The RELATION before the first row of the table has the same information.
            return None
        if ddl.outdated:
            if before is not None:
                self._leave_out(ddl.table_id, before.name, outdated(before.name), at)
            return None
        self._alterations.add(ddl, message, at)
        # A transaction without a lock on the table has not altered its columns, and one that has may have been
        # committed since.
        return self._described(ddl.description, before, at) if ddl.locked else None

    def _is_followed(self, table: TableId, at: SnapshotId) -> bool:
        """Return True if the table has a version, or gets that of its copy, and its changes are not skipped."""
        return table not in self._left_out and (self._before(table, at) is not None or self._host.is_copied(table))

    def _marked(self, message: LogicalMessage, at: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the version that begins at a mark, or None if the stream has shown it before."""
        found = self._marks.take(message.content) if message.transactional else None
        if found is None:
            return None
        table, description = found
        before = self._before(table, at)
        if before is None or table in self._left_out:
            return None
        self._host.catalog_changed()
        if description is not None:
            return self._described(description, before, at, by_statement=False)
        # An earlier process may have read its mark without staging what follows. Its version begins in this
        # transaction, which nobody can forge.
        stored = self._store.get_table_schema(table, SnapshotId(at + _VERSIONS_IN_A_COMMIT - 1))
        if stored is None or stored.snapshot_id < at:
            return None
        self._current[table] = stored
        return stored

    def _described(
        self, description: TableDescription, before: _Before, at: SnapshotId, *, by_statement: bool = True
    ) -> ReplicatedTableSchema | None:
        """Return the version with the columns of ``description``, or None if it is ``before``, None during a copy.

        ``by_statement`` is True if a statement was announced, which shows how it made the values of rows.
        """
        description = self._catalog.as_streamed(description)
        table, name = description.id, description.name if before is None else before.name
        choice = self._choice(table, name, before)
        excluded = choice.excluded
        if self._commented(table, choice) != (choice if before is None else ColumnChoice.of(before)):
            # The catalog shows which columns have these names, and the RELATION is compared with it.
            return None
        try:
            if before is not None:
                require_same_exclusion(before, excluded, {c.attnum: c.name for c in description.columns})
            columns = self._catalog.column_list(table)
            description.require_streamed_key(columns)
            announced = description.schema(
                columns=columns,
                exclude=excluded,
                policy=self._policy,
                types=choice.types,
                snapshot_id=at,
            )
            require_usable_names(name, announced.columns)
            announced = self._masked(announced, choice, before)
            require_masked(announced, description.storage.generated)
            if before is not None and not by_statement:
                require_known_zone(before, announced)
        except NeedsOperator as error:
            # A copy whose snapshot is later finds the same.
            if before is not None:
                self._leave_out(table, name, error, at)
            return None
        if before is not None and same_version(before, announced):
            return None
        return self._adopt(replace(announced, name=name), before, at)

    def truncated(self, tables: Collection[TableId], at: SnapshotId) -> None:
        """Record a TRUNCATE of tables in the stream, for the statements that altered them in the same transaction."""
        self._alterations.truncated(tables, at)

    def settle(self) -> None:
        """Report what a complete transaction has altered. Called before its changes are staged."""
        self._alterations.settle()
        withdrawn, self._withdrawn = self._withdrawn, {}
        for (table, at), error in withdrawn.items():
            self._host.tables_unpublished(frozenset({table}), error, at)
        streamed, self._leaves = self._leaves, {}
        for (root, committed, xid), leaves in streamed.items():
            self._host.leaves_streamed(frozenset(leaves), root, Lsn(committed), xid)

    def failed(self, table: TableId, error: DecodeError, at: SnapshotId) -> None:
        """Skip the changes of a table whose rows cannot be read, until the next session. It needs a resync."""
        before = self._before(table, at)
        if before is not None and table not in self._left_out:
            hint = f"copy the table again: {resync_command(before.name)}"
            self._leave_out(table, before.name, DecodeError(error.code, error.message, hint=hint), at)

    @contextmanager
    def _of_one_table(self, table: TableId, name: QualifiedTable, at: SnapshotId) -> Iterator[None]:
        """Leave the table out if the block fails, so that the others go on. An error that passes is raised."""
        try:
            with source_errors(f"reading the columns of {name}"):
                yield
        except (LevadaError, MemoryError) as error:
            if not isinstance(error, NeedsOperator) or error.passes:
                raise
            self._leave_out(table, name, error, at)
        except Exception as error:
            _log.error("%s: its columns cannot be read", name, exc_info=error)
            self._leave_out(table, name, unexpected(name, error), at)

    def _leave_out(self, table: TableId, name: QualifiedTable, error: LevadaError, at: SnapshotId) -> None:
        _log.error("%s: changes are skipped from %s on: %s", name, at, error)
        self._host.table_failed(table, error)
        self._left_out.add(table)

    def _before(self, table: TableId, at: SnapshotId) -> ReplicatedTableSchema | None:
        # A stored version that begins in this transaction was written by an earlier session, which read it too.
        return self._current.get(table) or self._store.get_table_schema(table, SnapshotId(at - 1))

    def _relation_version(
        self, relation: Relation, before: ReplicatedTableSchema | None, at: SnapshotId, xid: int
    ) -> ReplicatedTableSchema:
        name = before.name if before is not None else relation.table
        choice = self._choice(relation.oid, name, before)
        excluded = choice.excluded
        columns = [c for c in relation.columns if c.name not in excluded]
        require_usable_names(name, columns)
        unchanged = before is not None and describes(relation, before, excluded)
        if before is not None and unchanged and choice == ColumnChoice.of(before) and self._announcements.complete(at):
            self._current[relation.oid] = before
            return before
        # The message itself shows which generated columns were streamed at that time.
        found = self._catalog.describe(relation.oid)
        description = None if found is None else found.with_generated({c.name for c in relation.columns})
        choice = self._commented(relation.oid, choice)
        now = self._published(before, description)
        known = () if before is None else all_columns(before)
        attnums = identify_columns(relation, known, now, self._catalog, xid)
        if attnums is None:
            raise ambiguous(name)
        by_attnum = dict(zip(attnums, relation.columns, strict=True))
        names = {attnum: column.name for attnum, column in by_attnum.items()}
        left_out = excluded_attnums(names, excluded, before, {c.attnum: c.name for c in now})
        if before is not None:
            seen = {a: n for a, n in names.items() if a not in left_out or n in excluded}
            require_same_exclusion(before, excluded, seen)
        replicated = {a: c for a, c in by_attnum.items() if a not in left_out}
        version = replace(
            self._version(relation, list(replicated.values()), list(replicated), before, description, at, choice),
            name=name,
            excluded_columns=excluded,
            excluded=tuple(
                ExcludedColumn(a, c.name, c.type_oid, c.typmod) for a, c in by_attnum.items() if a in left_out
            ),
        )
        masked = self._masked(version, choice, before, {c.attnum: c.name for c in now})
        if before is not None:
            require_known_zone(before, masked)
        require_masked(masked, () if description is None else description.storage.generated)
        return self._adopt(masked, before, at)

    def _masked(
        self,
        version: ReplicatedTableSchema,
        choice: ColumnChoice,
        before: ReplicatedTableSchema | None,
        now: Mapping[int, str] | None = None,
    ) -> ReplicatedTableSchema:
        """Return a version with its columns masked, so that no clear value of the catalog is in it.

        ``now`` has the names in the catalog.
        """
        masked = with_masks(version, choice.masks, before, self._host.mask_keys, now)
        if before is not None:
            require_same_masks(before, masked)
        return masked

    def _published(
        self, before: ReplicatedTableSchema | None, description: TableDescription | None
    ) -> Sequence[Column]:
        """Return the columns in the catalog, without excluded ones that the publication no longer has."""
        if description is None:
            return ()
        known = frozenset[int]() if before is None else {c.attnum for c in before.excluded}
        listed = self._catalog.column_list(description.id) if known else None
        return [c for c in description.columns if listed is None or c.attnum in listed or c.attnum not in known]

    def _choice(self, table: TableId, name: QualifiedTable, before: ReplicatedTableSchema | None) -> ColumnChoice:
        """Return the columns of the table's next version. ``before`` is the version before it, if any."""
        with suppress(queue.Empty):
            while True:
                changed, choice = self._choices.get_nowait()
                self._chosen[changed] = choice
        if table in self._chosen:
            return self._chosen[table]
        return self._host.column_choice(name) if before is None else ColumnChoice.of(before)

    def _commented(self, table: TableId, choice: ColumnChoice) -> ColumnChoice:
        """Return the choice with the masks of the comments in the catalog.

        A column or a table that was added a moment ago with its comment is masked from its first row on.
        """
        if not self._host.comments_mask:
            return choice
        comments, keys = read_table_comments(self._catalog.connected(), table), self._host.mask_keys
        return with_mask_comments(choice, comments, keys.newest)

    def _adopt(self, version: ReplicatedTableSchema, before: _Before, at: SnapshotId) -> ReplicatedTableSchema:
        """Make ``version`` the table's current version, and store it if it is new.

        Return ``before`` if both are equal. Return the stored version, with its number, if the transaction is a replay.
        """
        if before is None or not same_version(before, version):
            number = at if before is None else SnapshotId(max(at, before.snapshot_id + 1))
            known = (
                self._store.get_table_schema(version.id, SnapshotId(n))
                for n in range(number, at + _VERSIONS_IN_A_COMMIT)
            )
            stored = next(
                (k for k in known if k is not None and k.snapshot_id >= number and same_version(k, version)), None
            )
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
        choice: ColumnChoice,
    ) -> ReplicatedTableSchema:
        now = {} if description is None else description.schema(policy=self._policy).by_attnum
        # Of a masked column, and of one whose type was chosen, the catalog alone has the type at the source. They may
        # have another choice now.
        chosen = dict(before.stored_types) if before is not None else {}
        known = {} if before is None else before.by_attnum
        old = {a: c for a, c in known.items() if c.mask is None and c.name not in chosen}
        pairs = list(zip(columns, attnums, strict=True))
        resolved = tuple(self._column(column, attnum, now, old) for column, attnum in pairs)
        marked = {attnum for column, attnum in pairs if column.is_key}
        identity = IDENTITIES[relation.identity] if marked else IdentityKind.MISSING
        version = ReplicatedTableSchema(
            id=relation.oid,
            name=relation.table,
            columns=resolved,
            identity=identity,
            identity_attnums=tuple(sorted(marked)),
            key=key_of(relation.table, identity, marked, set(attnums), before, description),
            snapshot_id=at,
        )
        return self._with_stored_types(version, choice, description)

    def _with_stored_types(
        self, version: ReplicatedTableSchema, choice: ColumnChoice, description: TableDescription | None
    ) -> ReplicatedTableSchema:
        if not choice.types.chosen:
            return version
        oids = [c.type_oid for c in version.columns if not is_builtin(c.type_oid)]
        known = {} if description is None else description.types
        read = read_type_infos(self._catalog.connected(), oids) if set(oids) - known.keys() else {}
        return with_stored_types(version, choice.types, {**read, **known})

    def _column(
        self, column: RelationColumn, attnum: int, now: Mapping[int, Column], old: Mapping[int, Column]
    ) -> Column:
        for side in (now, old):
            known = side.get(attnum)
            if known is not None and (known.type_oid, known.typmod) == (column.type_oid, column.typmod):
                return replace(known, name=column.name)
        # The column had this type only between the previous version and the state that the catalog shows.
        types = {} if is_builtin(column.type_oid) else read_type_infos(self._catalog.connected(), [column.type_oid])
        shape = resolve_type(column.type_oid, column.typmod, types, self._policy)
        info = types.get(column.type_oid)
        return Column(
            attnum, column.name, shape, shape.kind if info is None else info.name, column.type_oid, column.typmod
        )
