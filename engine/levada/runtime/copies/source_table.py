"""The state of a table in the snapshot of a copy: its publication, its columns and its storage."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq, sql

from levada.capture.requirements import table_not_published
from levada.copy.kept import Basis
from levada.errors import LevadaError, Transient
from levada.postgres.append_publication import PublicationNames, list_published, read_state
from levada.postgres.catalog import describe_tables, read_column_names, table_missing
from levada.postgres.copy_conditions import condition_error
from levada.postgres.generated_columns import as_streamed, require_masked
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.mask_comments import read_comments_of
from levada.postgres.slots import ExportedSnapshot
from levada.postgres.storage import read_identity_indexes, read_no_heaps
from levada.postgres.table_checks import copy_errors
from levada.runtime.config_ref import ConfigRef
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.append_record import publication_names
from levada.runtime.tables.publication_gaps import membership_text, record_membership
from levada.runtime.tables.requests import CopySettings
from levada.runtime.tables.table_names import table_renamed
from levada.schema import ReplicatedTableSchema
from levada.schema.exclusion import require_excluded
from levada.schema.flaws import flaw_error
from levada.schema.mask_comments import MaskComments
from levada.schema.masking import masked_column_missing, missing_masks, with_masks
from levada.schema.masks import TableMasks
from levada.schema.storage import TableStorage
from levada.schema.table import NEWEST_VERSION
from levada.stores.interface import PipelineStore
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from levada.postgres.catalog import PublishedTable
    from levada.postgres.description import TableDescription
    from levada.postgres.membership import PublicationState
    from levada.runtime.config import PipelineConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table in the snapshot of its copy. ``basis`` is that of `KeptCopy`.

    ``rows_stay`` is True if a row that does not change keeps its place. ``membership`` is that in the publication.
    """

    published: PublishedTable
    description: TableDescription
    schema: ReplicatedTableSchema
    basis: str
    rows_stay: bool
    membership: str


@dataclass(frozen=True, slots=True)
class WantedTable:
    """A table, and the settings of its copy."""

    table: TableId
    name: QualifiedTable
    settings: CopySettings


@dataclass(frozen=True, slots=True)
class _Catalog:
    """The entries of tables in the catalog. ``indexes`` and ``no_heaps`` are of relations, ``errors`` of copies."""

    started_at: str
    names: PublicationNames
    published: Mapping[TableId, PublishedTable]
    errors: Mapping[QualifiedTable, LevadaError]
    state: PublicationState
    descriptions: Mapping[TableId, TableDescription]
    comments: Mapping[QualifiedTable, MaskComments]
    indexes: Mapping[TableId, Sequence[Sequence[int]]]
    no_heaps: frozenset[TableId]


@dataclass(frozen=True, slots=True)
class SnapshotTables:
    """Reads tables of the source. ``sessions`` are its connections for that."""

    config_ref: ConfigRef
    store: PipelineStore
    sessions: IdleReaders

    def read(
        self, snapshot: ExportedSnapshot, table: TableId, name: QualifiedTable, settings: CopySettings
    ) -> SourceTable:
        """Return the table's state in a snapshot, and record its membership in the publication for the copy."""
        found = self.look(snapshot, table, name, settings)
        record_membership(self.store, table, found.membership)
        return found

    def read_all(
        self, snapshot: ExportedSnapshot, wanted: Sequence[WantedTable], wait_s: float
    ) -> Mapping[TableId, SourceTable | LevadaError]:
        """Do the same as `read` for several tables. The arguments are those of `look_at`."""
        found = self.look_at(snapshot, wanted, wait_s)
        with self.store.together():
            for table, its in found.items():
                if isinstance(its, SourceTable):
                    record_membership(self.store, table, its.membership)
        return found

    def look(
        self, snapshot: ExportedSnapshot, table: TableId, name: QualifiedTable, settings: CopySettings
    ) -> SourceTable:
        """Return the table's state in a snapshot. Raise the errors of a copy that may not be made."""
        found = self.look_at(snapshot, [WantedTable(table, name, settings)])[table]
        if isinstance(found, LevadaError):
            raise found
        return found

    def look_at(
        self, snapshot: ExportedSnapshot, wanted: Sequence[WantedTable], wait_s: float | None = None
    ) -> Mapping[TableId, SourceTable | LevadaError]:
        """Return the state of tables in a snapshot, or the error of a copy that may not be made, of each of them.

        Raise errors that concern all of them, such as a lock that is not granted within ``wait_s``.
        """
        begin = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET TRANSACTION SNAPSHOT {}"
        with self.sessions.session() as connection, connection.transaction():
            connection.execute(sql.SQL(begin).format(snapshot.name), prepare=False)
            if wait_s is not None:
                connection.execute(f"SET LOCAL lock_timeout = '{int(wait_s * 1000)}ms'", prepare=False)
            catalog = self._read(connection, wanted)
            found: dict[TableId, SourceTable | LevadaError] = {}
            for one in wanted:
                try:
                    found[one.table] = self._found(connection, catalog, one)
                except LevadaError as error:
                    if connection.info.transaction_status != pq.TransactionStatus.INTRANS:
                        raise
                    found[one.table] = error
            return found

    def _read(self, connection: psycopg.Connection[Any], wanted: Sequence[WantedTable]) -> _Catalog:
        """Read what the catalog has on the tables, by as many queries as for one."""
        config, tables = self.config_ref.current, [one.table for one in wanted]
        started_at = SourceRecord(self.store).require_verified(connection)
        names = publication_names(config, self.store)
        published = {t.id: t for t in list_published(connection, names, tables)}
        excluded = {one.name: one.settings.excluded_columns for one in wanted}
        errors = copy_errors(connection, config.publication.name, excluded)
        state = read_state(connection, names, tables)
        descriptions = describe_tables(connection, tables)
        comments = read_comments_of(connection, tables)
        leaves = {leaf for its in descriptions.values() for leaf in its.storage.leaves}
        indexes = read_identity_indexes(connection, leaves.union(tables))
        no_heaps = read_no_heaps(connection, leaves)
        return _Catalog(started_at, names, published, errors, state, descriptions, comments, indexes, no_heaps)

    def _found(self, connection: psycopg.Connection[Any], catalog: _Catalog, wanted: WantedTable) -> SourceTable:
        config, table, name, settings = self.config_ref.current, wanted.table, wanted.name, wanted.settings
        published = catalog.published.get(table)
        if published is None:
            raise table_not_published(connection, catalog.names.main, [name])
        if published.name != name and not config.is_selected(published.name):
            raise table_renamed(name, published.name)
        _require_filter(config, published)
        if (unreadable := catalog.errors.get(name)) is not None:
            raise unreadable
        if settings.copy_where and (refused := condition_error(connection, name, settings.copy_where)) is not None:
            raise refused
        membership = membership_text(connection, catalog.state, table, name)
        description = catalog.descriptions.get(table)
        if description is None:
            raise table_missing(connection, table)
        if missing := self.require_excluded(connection, table, name, settings.excluded_columns):
            _log.warning("columns.exclude of %s has %s, which is no column", name, ", ".join(sorted(missing)))
        if (flaw := flaw_error(name, description.storage.flaws)) is not None:
            raise flaw
        description = as_streamed(connection, catalog.names.main, description, published.column_attnums)
        description.require_streamed_key(published.column_attnums)
        schema = description.schema(
            columns=published.column_attnums,
            exclude=settings.excluded_columns,
            policy=config.on_unrepresentable,
            types=settings.stored_types,
        )
        self._require_comments(catalog.comments.get(description.name, MaskComments()), name, settings)
        schema = self._masked(connection, schema, settings.masks)
        require_masked(schema, description.storage.generated)
        leaves = description.storage.leaves.keys()
        basis = Basis(
            server=(catalog.started_at, config.slot.name),
            settings=(settings.to_text(), config.on_unrepresentable.value),
            publication=(membership, published.row_filter),
            table=(
                schema.to_json(),
                _versions(description.storage),
                sorted(list(index) for relation in {table, *leaves} for index in catalog.indexes.get(relation, ())),
            ),
        ).to_text()
        return SourceTable(published, description, schema, basis, catalog.no_heaps.isdisjoint(leaves), membership)

    def _masked(
        self, connection: psycopg.Connection[Any], schema: ReplicatedTableSchema, masks: TableMasks
    ) -> ReplicatedTableSchema:
        """Return the schema of a copy with its columns masked, also those that were renamed since the last copy.

        Raise NeedsOperator ``masked_column_missing`` if a name is no column's: the column would be copied in clear.
        """
        if not masks:
            return schema
        former = self.store.get_table_schema(schema.id, NEWEST_VERSION)
        names = read_column_names(connection, schema.id).values()
        if missing := missing_masks(masks, names, former):
            raise masked_column_missing(schema.name, missing)
        return with_masks(schema, masks, former, self.config_ref.current.mask_keys)

    def _require_comments(self, comments: MaskComments, name: QualifiedTable, settings: CopySettings) -> None:
        """Raise NeedsOperator ``mask_comment_refused`` if a comment says no mask, and Transient
        ``mask_comments_changed`` if the copy would not have the masks of the comments in its snapshot.
        """
        config = self.config_ref.current
        if (problem := config.comment_problem(settings.named or name, comments)) is not None:
            raise problem
        if comments.over(settings.masks, config.mask_keys.newest) != settings.masks:
            raise Transient(
                "mask_comments_changed",
                f"comments that mask columns of {name} have changed since the copy was planned, so it begins again",
                hint="if it lasts, levada check MANIFEST says why",
            )

    def require_excluded(
        self, connection: psycopg.Connection[Any], table: TableId, name: QualifiedTable, excluded: frozenset[str]
    ) -> frozenset[str]:
        """Raise NeedsOperator if the copy would have a column that the last version excludes.

        Return the excluded names that no column has. They are no error, because a column may have been dropped, or is
        yet to be added.
        """
        if not excluded:
            return excluded
        names = read_column_names(connection, table)
        former = self.store.get_table_schema(table, NEWEST_VERSION)
        if former is not None:
            require_excluded(replace(former, name=name), excluded, names)
        return excluded.difference(names.values())


def _require_filter(config: PipelineConfig, table: PublishedTable) -> None:
    """Raise Transient ``row_filter_missing`` if the manifest has a row filter and the publication has none."""
    if config.publication.managed and table.row_filter is None and config.row_filter(table.name) is not None:
        raise Transient(
            "row_filter_missing",
            f"spec.tables.include has where for {table.name}, and publication {config.publication.name} has no row"
            " filter of it, so it is not copied",
            hint="if it lasts, levada check MANIFEST says why",
        )


def _versions(storage: TableStorage) -> str:
    """Return the storage with the versions of its catalog rows, without what is no property of the table."""
    leaves = {oid: replace(leaf, empty=False) for oid, leaf in storage.leaves.items()}
    return replace(storage, leaves=leaves).to_text()
